-- All other requests: several quotas, windows, lending, returning, cancelling, and changed quotas.

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
      return {'t', state[2], state[3], tat, tat_part, since, before, lent}
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
      return {'t', state[2], state[3], tat, tat_part, since, before, lent}
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
    return {'t', state[2], state[3], us, parts, state[6], state[7], state[8]}
  end
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
    states, converted = match_up(rules, states, mark)
    if not states then
      return denied .. stored
    end
    converted = converted or ahead
  end

  local verb, costs = plan.verb, plan.at + 7 * q
  local which, changed = 0, nil
  local function cost_of(k, i)
    local at = costs + 2 * (q * (k - 1) + i - 1)
    return tonumber(ARGV[at]), tonumber(ARGV[at + 1])
  end
  if verb == 'R' or verb == 'C' then
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
  if verb == 'T' and plan.k == 1 and find(stored, 'l', 1, true) then
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
