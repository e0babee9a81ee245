-- All other requests: several quotas, windows, lending, returning, cancelling, holds, and changed quotas.

-- "a <= b", each in whole microseconds and parts.
local function at_most(us, part, other, other_part)
  return us < other or (us == other and part <= other_part)
end

-- The difference, in parts of amount; zero if it were negative.
local function minus(us, part, other, other_part, amount)
  if at_most(us, part, other, other_part) then
    return 0, 0
  elseif part >= other_part then
    return us - other, part - other_part
  end
  return us - other - 1, part + amount - other_part
end

-- "a * b <= c * d" for numbers below 2^53. If the products are too large, the fractions a/c and d/b
-- are compared as continued fractions: whole parts first, then the reciprocals of the remainders.
local function product_at_most(a, b, c, d)
  if a * b < EXACT and c * d < EXACT then
    return a * b <= c * d
  end
  if c == 0 or b == 0 then
    return a == 0 or b == 0
  end
  while true do
    local left, right = fmod(a, c), fmod(d, b)
    local p, q = (a - left) / c, (d - right) / b
    if p ~= q then
      return p < q
    elseif left == 0 then
      return true
    elseif right == 0 then
      return false
    end
    a, c, d, b = b, right, c, left
  end
end

-- The state after the charge, or nothing if it exceeds the quota.
local function charge(rule, state, cost, part, wait, lends)
  local kind = rule.kind
  if kind == 't' then
    local tat, tat_part = state[4], state[5]
    local since, before, lent = state[6], state[7], state[8]
    if lends then
      local while_ends = now + min(wait, rule.lend)
      wait = 0
      if tat < while_ends then
        tat, tat_part = while_ends, 0
      end
      if not since or now >= since + 2 * rule.lend then
        since, before, lent = now, 0, 0
      elseif now >= since + rule.lend then
        since, before, lent = now, lent, 0
      end
      lent = lent + cost + (part > 0 and 1 or 0)
    end
    tat, tat_part = tat + cost, tat_part + part
    if tat_part >= rule.amount then
      tat, tat_part = tat + 1, tat_part - rule.amount
    end
    if at_most(tat, tat_part, now + wait + rule.full, rule.full_part) then
      local refunds = state.refunds
      if refunds and not at_most(tat, tat_part, now + rule.full, rule.full_part) then
        -- It is used later: earlier holds get no refund.
        refunds = {unpack(refunds)}
        refunds[1] = min(refunds[1] + tat + (tat_part > 0 and 1 or 0) - now, MOST)
      end
      return {'t', state[2], state[3], tat, tat_part, since, before, lent, refunds = refunds}
    end
  elseif kind == 'z' then
    if state[2] + cost <= rule.full then
      return {'z', state[2] + cost}
    end
  elseif kind == 'f' then
    if state[4] + cost <= rule.full then
      return {'f', state[2], state[3], state[4] + cost, state[5]}
    end
  elseif kind == 'l' then
    if state[3] + cost <= rule.full then
      return logged(state, cost, now)
    end
  else
    local start, before, count = state[3], state[4], state[5] + cost
    local left = rule.period - max(now - start, 0)
    if count <= rule.full and product_at_most(before, left, rule.full - count, rule.period) then
      return {'s', rule.period, start, before, count}
    end
  end
end

-- The state after lent units are returned unused, or nothing if they cannot be returned.
local function give_back(rule, state, cost, part, lent_at, life)
  local kind = rule.kind
  if lent_at > now then
    return
  end
  if kind == 't' then
    local since, before, lent = state[6], state[7], state[8]
    if not since or now >= lent_at + min(life, rule.lend) then
      return
    end
    if lent_at >= since then
      lent = lent - cost
    else
      before = before - cost
    end
    if lent < 0 or before < 0 then
      return
    end
    local tat, tat_part = minus(state[4], state[5], cost, part, rule.amount)
    local needed = now + rule.lend + before + lent
    if tat < needed then
      tat, tat_part = needed, 0
    end
    if not at_most(state[4], state[5], tat, tat_part) then
      return {'t', state[2], state[3], tat, tat_part, since, before, lent, refunds = state.refunds}
    end
  elseif kind == 'z' then
    if state[2] >= cost then
      return {'z', state[2] - cost}
    end
  elseif kind ~= 'l' and lent_at >= state[3] then
    local counted = kind == 'f' and 4 or 5
    if state[counted] >= cost then
      local changed = {unpack(state)}
      changed[counted] = state[counted] - cost
      return changed
    end
  end
end

-- The state after a reservation is cancelled, or nothing if nothing is given back.
local function cancel(rule, state, cost, part, tat, tat_part)
  if rule.kind ~= 't' or at_most(tat, tat_part, now + rule.full, rule.full_part) then
    return
  end
  local later, later_part = minus(state[4], state[5], tat, tat_part, rule.amount)
  local back, back_part = minus(cost, part, later, later_part, rule.amount)
  if back > 0 or back_part > 0 then
    local us, parts = minus(state[4], state[5], back, back_part, rule.amount)
    if us < now then
      us, parts = now, 0
    end
    return {'t', state[2], state[3], us, parts, state[6], state[7], state[8], refunds = state.refunds}
  end
end

-- The log with fewer units taken at a time, or nothing if as many were not taken then.
local function without(state, time, units)
  local text, at, entry_time, before_time, pause_at, pause_before = state[6], 1, state[4], nil, nil, nil
  if state[3] == 0 then
    return
  end
  while true do
    local some, pause, next_at = entry(text, at)
    if entry_time == time then
      if some < units then
        return
      end
      local first, last = state[4], state[5]
      if some > units then
        text = sub(text, 1, at - 1) .. digits(some - units) .. sub(text, at + #digits(some))
      elseif at == 1 and not pause then
        return empty_log(state[2])
      elseif at == 1 then
        first, text = time + pause, sub(text, next_at)
      elseif not pause then
        last, text = before_time, sub(text, 1, pause_at - 2)
      else
        text = sub(text, 1, pause_at - 1) .. digits(pause_before + pause) .. ' ' .. sub(text, next_at)
      end
      return {'l', state[2], state[3] - units, first, last, text}
    elseif not pause or entry_time > time then
      return
    end
    before_time, pause_at, pause_before = entry_time, at + #digits(some) + 1, pause
    entry_time, at = entry_time + pause, next_at
  end
end

-- The state after the rest of the true cost of a hold is charged; and how much that is.
local function charge_rest(rule, state, held, cost, part, units)
  if rule.kind == 't' then
    local debt = now + min(16 * rule.full, LONGEST) + rule.full
    local us, parts = minus(cost, part, held[3], held[4], rule.amount)
    local most, most_parts = minus(debt, rule.full_part, state[4], state[5], rule.amount)
    if at_most(most, most_parts, us, parts) then
      us, parts = most, most_parts
    end
    local tat, tat_part = state[4] + us, state[5] + parts
    if tat_part >= rule.amount then
      tat, tat_part = tat + 1, tat_part - rule.amount
    end
    return {'t', state[2], state[3], tat, tat_part, state[6], state[7], state[8],
      refunds = state.refunds or {0}}, us, parts
  end
  local at = rule.kind == 'z' and 2 or rule.kind == 'f' and 4 or rule.kind == 'l' and 3 or 5
  local more = max(min(state[at] + units - held[2], MOST), state[at]) - state[at]
  if rule.kind == 'l' then
    return more > 0 and logged(state, more, now) or state, more, 0
  end
  local changed = {unpack(state)}
  changed[at] = state[at] + more
  return changed, more, 0
end

-- Counts a refund to a hold of a time (windlass-core, rules/limit/hold).
local function add_refund(refunds, time, amount, full)
  local added, done = {min(refunds[1] + amount, MOST)}, false
  for i = 2, #refunds, 2 do
    local at, some = refunds[i], refunds[i + 1]
    if not done and at >= time then
      added[#added + 1] = time
      added[#added + 1] = at == time and some + amount or amount
      done = true
    end
    if at ~= time and at + full > now then
      added[#added + 1] = at
      added[#added + 1] = some
    end
  end
  if not done then
    added[#added + 1] = time
    added[#added + 1] = amount
  end
  if #added > 65 then
    added[3] = added[3] + added[5]
    table.remove(added, 4)
    table.remove(added, 4)
  end
  return added
end

-- The state after the excess of an estimate is refunded, and how much that is; or nothing.
local function refund(rule, state, held, held_at, cost, part, units)
  if rule.kind == 't' then
    local refunds = state.refunds or {0}
    local meanwhile = refunds[1] - held[9]
    for j = 2, #refunds, 2 do
      if refunds[j] > held_at then
        meanwhile = meanwhile - refunds[j + 1]
      end
    end
    if (state[6] and state[6] + 2 * rule.lend > held_at) or refunds[1] >= MOST or meanwhile < 0 then
      return
    end
    local us, parts = minus(held[3], held[4], cost, part, rule.amount)
    local most, most_parts = minus(held[7], held[8], now + meanwhile, 0, rule.amount)
    if at_most(most, most_parts, us, parts) then
      us, parts = most, most_parts
    end
    local tat, tat_part = minus(state[4], state[5], us, parts, rule.amount)
    if tat < now then
      tat, tat_part = now, 0
    end
    if us > 0 or parts > 0 then
      local full = rule.full + (rule.full_part > 0 and 1 or 0)
      refunds = add_refund(refunds, held_at, us + (parts > 0 and 1 or 0), full)
    end
    return {'t', state[2], state[3], tat, tat_part, state[6], state[7], state[8], refunds = refunds}, us, parts
  end
  local excess = held[2] - units
  if rule.kind == 'l' then
    local changed = without(state, held_at, excess)
    if changed then
      return changed, excess, 0
    end
    return
  end
  local at
  if rule.kind == 'z' then
    at = 2
  elseif held_at >= state[3] then
    at = rule.kind == 'f' and 4 or 5
  elseif rule.kind == 's' and held_at + state[2] >= state[3] then
    at = 4
  end
  if at and state[at] >= excess then
    local changed = {unpack(state)}
    changed[at] = state[at] - excess
    return changed, excess, 0
  end
end

-- The time and the mark of a hold, and what it charged to each quota: the letter, then the numbers.
local function parse_hold(text)
  local held = {}
  for record in string.gmatch(text, '[^,]+') do
    local words = {match(record, '^%a')}
    for number in string.gmatch(record, '%d+') do
      words[#words + 1] = tonumber(number)
    end
    held[#held + 1] = words
  end
  local head = table.remove(held, 1)
  if not head or #head ~= 2 then
    error({err = FOREIGN})
  end
  return head[1], head[2], held
end

local function hold_is_of(rule, held)
  if not held or held[1] ~= rule.kind then
    return false
  elseif rule.kind == 't' then
    return held[5] == rule.amount and held[6] == rule.period
  end
  return rule.kind == 'z' or held[3] == rule.period
end

local function read_rules(plan)
  local rules = {}
  for i = 1, plan.q do
    local at = plan.at + 7 * (i - 1)
    rules[i] = {kind = ARGV[at], amount = tonumber(ARGV[at + 1]), period = tonumber(ARGV[at + 2]),
      full = tonumber(ARGV[at + 3]), full_part = tonumber(ARGV[at + 4]), lend = tonumber(ARGV[at + 5]),
      limit = ARGV[at + 6]}
  end
  return rules
end

local function decide(key, plan)
  plan.rules = plan.rules or read_rules(plan)
  local rules, q = plan.rules, plan.q
  local verb, costs = plan.verb, plan.at + 7 * q
  local hold_key, held_at, held_mark, held
  if verb == 'H' or verb == 'S' then
    hold_key = KEYS[tonumber(ARGV[costs + 2 * q])]
    local known = pcall_redis('GET', hold_key) or nil
    if known and known.err then
      error(known)
    elseif verb == 'H' and known then
      return 'E'
    elseif verb == 'S' and not known then
      return 'N'
    elseif verb == 'S' and known == 's' then
      return 'D'
    elseif verb == 'S' then
      held_at, held_mark, held = parse_hold(known)
      for i = 1, max(q, #held) do
        if not rules[i] or not hold_is_of(rules[i], held[i]) then
          return 'Q'
        end
      end
    end
  end
  local stored = pcall_redis('GET', key) or nil
  local states, converted, mark = nil, false, 0
  if not stored then
    stored, states = '', {}
    for i, rule in ipairs(rules) do
      states[i] = fresh(rule)
    end
  elseif stored.err then
    error(stored)
  else
    states, mark = parse(stored)
    local ahead = mark > now
    mark = ahead and 0 or mark
    local requoted
    states, converted, requoted = match_up(rules, states, mark)
    if not states then
      return denied .. stored
    end
    converted = converted or ahead
    if requoted and mark > 0 then
      -- Units taken under another quota cannot be returned.
      mark = now
    end
  end

  local which, changed, new_hold = 0, nil, nil
  local function cost_of(k, i)
    local at = costs + 2 * (q * (k - 1) + i - 1)
    return tonumber(ARGV[at]), tonumber(ARGV[at + 1])
  end
  if verb == 'S' then
    local refundable = held_mark > 0 and held_mark == mark and held_at <= now
    local moved = {}
    for i, rule in ipairs(rules) do
      local cost, part = cost_of(1, i)
      local units = tonumber(ARGV[costs + 2 * q + i])
      local state, us, parts
      if units > held[i][2] then
        state, us, parts = charge_rest(rule, states[i], held[i], cost, part, units)
      elseif units < held[i][2] and refundable then
        state, us, parts = refund(rule, states[i], held[i], held_at, cost, part, units)
      end
      if state then
        states[i], changed = state, changed or us > 0 or parts > 0
      end
      moved[i] = digits(held[i][2]) .. ':' .. digits(us or 0) .. ':' .. digits(parts or 0)
    end
    if changed and mark == 0 then
      mark = now
    end
    which = table.concat(moved, ',')
    local done = pcall_redis('SET', hold_key, 's', 'KEEPTTL')
    if done.err then
      error(done)
    end
  elseif verb == 'H' then
    changed = converted
    local after, takes = {unpack(states)}, false
    for i = 1, q do
      local cost, part = cost_of(1, i)
      if after and ARGV[costs + 2 * q + i] ~= '0' then
        local state = charge(rules[i], states[i], cost, part, 0, false)
        if state and rules[i].kind == 't' then
          state.refunds = state.refunds or {0}
        end
        takes = true
        if state then
          after[i] = state
        else
          after = nil
        end
      end
    end
    if after then
      states, which, changed = after, 1, takes or changed
      if takes and mark == 0 then
        mark = now
      end
      local words = {digits(now) .. ' ' .. digits(mark)}
      for i, rule in ipairs(rules) do
        local units = ARGV[costs + 2 * q + i]
        if rule.kind == 't' then
          local cost, part = cost_of(1, i)
          words[i + 1] = table.concat({'t', units, digits(cost), digits(part), digits(rule.amount),
            digits(rule.period), digits(states[i][4]), digits(states[i][5]), digits(states[i].refunds and states[i].refunds[1] or 0)}, ' ')
        elseif rule.kind == 'z' then
          words[i + 1] = 'z ' .. units
        else
          words[i + 1] = rule.kind .. ' ' .. units .. ' ' .. digits(rule.period)
        end
      end
      new_hold = table.concat(words, ',')
    end
  elseif verb == 'R' or verb == 'C' then
    local given = tonumber(ARGV[costs + 2 * q])
    -- Loans and reservations of a state that is gone do not count any more.
    for i = 1, (given > 0 and given == mark) and q or 0 do
      local cost, part = cost_of(1, i)
      local state
      if verb == 'R' then
        state = give_back(rules[i], states[i], cost, part, plan.wait, tonumber(ARGV[costs + 2 * q + 1]))
      elseif rules[i].kind == 't' then
        -- With another rate, the same time would be another number of units.
        local at = costs + 2 * q + 1 + 2 * (i - 1)
        state = cancel(rules[i], states[i], cost, part, tonumber(ARGV[at]), tonumber(ARGV[at + 1]))
      end
      if state then
        states[i], which, changed = state, 1, true
      end
    end
  else
    changed = converted and verb ~= 'P'
    for k = 1, plan.k do
      local after, fits, free = {}, true, true
      for i = 1, #states do
        after[i] = states[i]
        if fits and i <= q then
          local cost, part = cost_of(k, i)
          free = free and cost == 0 and part == 0
          after[i] = charge(rules[i], states[i], cost, part, plan.wait, verb == 'L')
          fits = after[i] ~= nil
        end
      end
      if free then
        which = k
        break
      elseif fits then
        states, which, changed = after, k, true
        if mark == 0 and plan.wait > 0 then
          mark = now
        end
        break
      end
    end
  end

  if changed then
    stored = render(states, mark, rules)
    local last = now
    for _, state in ipairs(states) do
      last = max(last, ends(state))
    end
    local done = pcall_redis('SET', key, stored, 'PX', digits(ceil((last - now) / 1000) + 2))
    if done.err then
      error(done)
    end
  end
  -- After the charge, so that nothing is refunded that was not charged.
  if new_hold then
    local done = pcall_redis('SET', hold_key, new_hold, 'PX', digits(plan.wait))
    if done.err then
      error(done)
    end
  end
  if (verb == 'T' or verb == 'H') and plan.k == 1 and find(stored, 'l', 1, true) then
    for i, state in ipairs(states) do
      if state[1] == 'l' then
        local limit = rules[i] and rules[i].full or tonumber(state.limit) or 0
        local cost = rules[i] and cost_of(1, i) or 0
        states[i] = shortened(state, state[3] + cost - limit)
      end
    end
    stored = render(states, mark, rules)
  end
  return which .. stamp .. stored
end

for i = 1, #undecided, 2 do
  local n = undecided[i]
  local ok, reply = pcall(decide, KEYS[n], undecided[i + 1])
  if ok then
    replies[n] = reply
  else
    replies[n] = {'error', type(reply) == 'table' and reply.err or tostring(reply)}
  end
end
return replies
