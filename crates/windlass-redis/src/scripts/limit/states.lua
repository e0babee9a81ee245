-- States: parsing, writing, and matching them with the quotas of a request.

local sub, min, max, fmod = string.sub, math.min, math.max, math.fmod
local LONGEST, EXACT = 3153600000000000, 9007199254740992
local YEAR = 31536000000000
-- The most that is refunded to a bucket, and counted by a window (windlass-core, rules/limit/hold).
local MOST = 4503599627370496

-- A state is a table: the letter, then the numbers, and the field "limit"; of a bucket also the
-- field "refunds", if units were ever held: the total, then times and amounts. A fixed window always has its end. A sliding log has period, units, first and last time, and its entries as text, which
-- may be long: only the entries that have ended, and the last one, are read.

local function digits(number)
  return format('%.0f', number)
end

-- How many numbers follow a letter.
local LENGTHS = {t = '47', z = '1', f = '34', s = '4', m = '1'}

local function empty_log(period)
  return {'l', period, 0, 0, 0, ''}
end

local function parse_log(record)
  local limit, period, rest = match(record, '^l(%d*) (%d+)()')
  if not limit then
    error({err = FOREIGN})
  end
  local state = empty_log(tonumber(period))
  if rest <= #record then
    local units, first, last, entries = match(record, '^ (%d+) (%d+) (%d+) ()%d', rest)
    if not units then
      error({err = FOREIGN})
    end
    state[3], state[4], state[5] = tonumber(units), tonumber(first), tonumber(last)
    state[6] = sub(record, entries)
  end
  state.limit = limit
  return state
end

-- One entry of a log at a position of its text: the units, the time until the next entry, and its
-- position; no time and no position for the last entry.
local function entry(text, at)
  local units, pause, next_at = match(text, '^(%d+) (%d+) ()', at)
  if not units then
    units = match(text, '^(%d+)$', at) or error({err = FOREIGN})
  end
  return tonumber(units), pause and tonumber(pause), next_at
end

-- The calls of a log that count now.
local function within(state, period)
  local units, first, last, text, at = state[3], state[4], state[5], state[6], 1
  if units == 0 or last + period <= now then
    return empty_log(period)
  end
  while first + period <= now do
    local ended, pause, next_at = entry(text, at)
    if not pause then
      error({err = FOREIGN})
    end
    units, first, at = units - ended, first + pause, next_at
  end
  return {'l', period, units, first, last, at == 1 and text or sub(text, at)}
end

-- The log with one more call, which is not earlier than the last.
local function logged(state, cost, time)
  local units, last, text = state[3], state[5], state[6]
  if units == 0 then
    return {'l', state[2], cost, time, time, digits(cost)}
  elseif last == time then
    -- The units of an entry have 16 digits at most.
    local at, before = match(text, '()(%d+)$', max(#text - 16, 1))
    text = sub(text, 1, at - 1) .. digits(before + cost)
  else
    text = text .. ' ' .. digits(time - last) .. ' ' .. digits(cost)
  end
  return {'l', state[2], units + cost, state[4], time, text}
end

-- The log as one entry, or as two: the first entries, as few as have this many units, and the rest.
-- The same units are left, and the same times until these units have ended, and until all have.
local function shortened(state, excess)
  local units, time, ended = state[3], state[4], 0
  if excess > 0 and excess < units then
    for some, pause in string.gmatch(state[6], '(%d+) ?(%d*)') do
      ended = ended + some
      if ended >= excess then
        break
      end
      time = time + pause
    end
  end
  if ended == 0 or ended >= units then
    return {'l', state[2], units, state[5], state[5], digits(units), limit = state.limit}
  end
  local rest = ' ' .. digits(state[5] - time) .. ' ' .. digits(units - ended)
  return {'l', state[2], units, time, state[5], digits(ended) .. rest, limit = state.limit}
end

-- The states, and the mark. Fails if the text is not a state.
local function parse(text)
  local states, mark, at = {}, 0, 1
  while at <= #text do
    local comma = find(text, ',', at, true) or #text + 1
    local record = sub(text, at, comma - 1)
    at = comma + 1
    local state, refunds
    if find(record, 'r', 1, true) then
      local bucket, word = match(record, '^(t[ %d]*) r([%d:]+)$')
      record, refunds = bucket or error({err = FOREIGN}), {}
      for number in string.gmatch(word, '%d+') do
        refunds[#refunds + 1] = tonumber(number)
      end
    end
    if sub(record, 1, 1) == 'l' and mark == 0 then
      state = parse_log(record)
    else
      state = {sub(record, 1, 1), limit = match(record, '^%a(%d*)')}
      for number in string.gmatch(record, ' (%d+)') do
        state[#state + 1] = tonumber(number)
      end
      local lengths = LENGTHS[state[1]]
      if mark > 0 or not lengths or not find(lengths, #state - 1, 1, true)
        or not find(record, '^%a[ %d]+$') then
        error({err = FOREIGN})
      end
    end
    state.refunds = refunds
    if state[1] == 'm' then
      mark = state[2]
    else
      if state[1] == 'f' and not state[5] then
        state[5] = state[2] + state[3]
      end
      states[#states + 1] = state
    end
  end
  if #states == 0 then
    error({err = FOREIGN})
  end
  return states, mark
end

-- The states of these quotas get their limits, unless a bucket took over the usage of a larger one;
-- those of other quotas keep theirs.
local function render(states, mark, rules)
  local texts = {}
  for i, state in ipairs(states) do
    local rule = rules[i]
    local limit = rule and rule.limit or state.limit
    if rule and rule.kind == 't' and mark == 0 then
      local ahead = state[4] - now
      if ahead > rule.full or (ahead == rule.full and state[5] > rule.full_part) then
        limit = ''
      end
    end
    local words, last = {state[1] .. limit}, #state
    if state[1] == 'f' and state[5] == state[2] + state[3] then
      last = 4
    elseif state[1] == 'l' then
      last = state[3] > 0 and 5 or 2
    end
    for j = 2, last do
      words[j] = digits(state[j])
    end
    if state[1] == 'l' and last == 5 then
      words[6] = state[6]
    elseif state.refunds then
      local numbers = {}
      for j, number in ipairs(state.refunds) do
        numbers[j] = digits(number)
      end
      words[#words + 1] = 'r' .. table.concat(numbers, ':')
    end
    texts[i] = table.concat(words, ' ')
  end
  if mark > 0 then
    texts[#texts + 1] = 'm ' .. digits(mark)
  end
  return table.concat(texts, ',')
end

-- When the state equals a fresh one.
local function ends(state)
  local letter = state[1]
  if letter == 't' then
    return state[4] + (state[5] > 0 and 1 or 0)
  elseif letter == 'z' then
    return now + YEAR
  elseif letter == 'f' then
    return state[5]
  elseif letter == 'l' then
    return state[3] > 0 and state[5] + state[2] or now
  end
  return state[3] + 2 * state[2]
end

local function fresh(rule)
  local kind = rule.kind
  if kind == 't' then
    return {'t', rule.amount, rule.period, now, 0}
  elseif kind == 'z' then
    return {'z', 0}
  elseif kind == 'f' then
    return {'f', rule.period, now, 0, now + rule.period}
  elseif kind == 'l' then
    return empty_log(rule.period)
  end
  return {'s', rule.period, now, 0, 0}
end

-- Units that are not refilled yet, for a change of rate.
local function used(state)
  if state[1] == 'z' then
    return state[2]
  elseif state[4] >= now then
    return ((state[4] - now) + state[5] / state[2]) * state[2] / state[3]
  end
  return 0
end

-- The state with no time that is too far ahead, because the clock has stepped back (windlass-core,
-- rules/limit/step_back); and whether it was lowered.
local function lower(rule, state, mark)
  if rule.kind ~= state[1] then
    return state, false
  elseif rule.kind == 't' then
    local since, before, lent = state[6], state[7], state[8]
    local lends = since and since > now
    local tat, part, ahead = state[4], state[5], state[4] - now
    local over = state.limit == rule.limit and rule.limit ~= '0' and (mark == 0 or lends)
      and (ahead > rule.full or (ahead == rule.full and part > rule.full_part))
    if state[2] ~= rule.amount or state[3] ~= rule.period or not (lends or over) then
      return state, false
    end
    if over then
      tat, part = now + rule.full, rule.full_part
    end
    if lends then
      since, before, lent = now, before + lent, 0
    end
    return {'t', state[2], state[3], tat, part, since, before, lent, limit = state.limit, refunds = state.refunds}, true
  elseif (rule.kind == 'f' or rule.kind == 's') and state[3] > now then
    local lowered = {unpack(state)}
    lowered.limit, lowered[3] = state.limit, now
    if rule.kind == 'f' then
      lowered[5] = min(state[5], now + state[2])
    end
    return lowered, true
  elseif rule.kind == 'l' and state[5] > now then
    -- The calls that lie ahead become one of now.
    local time, at, units, last, kept = state[4], 1, 0, 0, 0
    while time <= now do
      local some, pause, next_at = entry(state[6], at)
      units, last, kept = units + some, time, at + #digits(some) - 1
      time, at = time + pause, next_at
    end
    local lowered = {'l', state[2], units, state[4], last, sub(state[6], 1, kept)}
    lowered = logged(lowered, state[3] - units, now)
    lowered.limit = state.limit
    return lowered, true
  end
  return state, false
end

-- A state of the quota's algorithm, brought up to now and to this quota.
local function bring_up(rule, state)
  local kind, letter = rule.kind, state[1]
  if kind == 't' then
    if letter == 't' and state[2] == rule.amount and state[3] == rule.period then
      local tat, part = state[4], state[5]
      if tat < now then
        tat, part = now, 0
      end
      return {'t', rule.amount, rule.period, tat, part, state[6], state[7], state[8], refunds = state.refunds}
    end
    local ahead = min(ceil(used(state) * rule.period / rule.amount), LONGEST)
    local changed = {'t', rule.amount, rule.period, now + ahead, 0}
    if letter == 't' and state[6] then
      changed[6], changed[7], changed[8] = now, 0, rule.full
    end
    return changed
  elseif kind == 'z' then
    return letter == 'z' and state or {'z', min(ceil(used(state)), EXACT)}
  end
  local period, start = rule.period, state[3]
  if kind == 'f' then
    if now >= state[5] then
      return fresh(rule)
    elseif state[2] == period then
      return state
    elseif start + period > now then
      return {'f', period, start, state[4], start + period}
    end
    return {'f', period, start, state[4], min(state[5], now + period)}
  elseif kind == 'l' then
    return within(state, period)
  end
  local before, count = state[4], state[5]
  if now >= start + 2 * state[2] then
    start, before, count = now, 0, 0
  elseif now >= start + state[2] then
    start, before, count = start + state[2], count, 0
  end
  if now >= start + period then
    start, before, count = now, count, 0
  end
  return {'s', period, start, before, count}
end

local function is_of(rule, state)
  if rule.kind ~= state[1] then
    return false
  elseif rule.kind == 't' then
    return state[2] == rule.amount and state[3] == rule.period
  end
  return rule.kind == 'z' or state[2] == rule.period
end

local ALGORITHM = {t = 't', z = 't', f = 'f', s = 's', l = 'l'}

-- Matches states with quotas (windlass-core, rules/limit/matching). Returns the states of the
-- quotas as of now, then those of other quotas; whether any has to be stored; and whether any was
-- converted to another quota. Returns nothing if a quota has another algorithm.
local function match_up(rules, stored, mark)
  local found, taken, converted = {}, {}, false
  for i, rule in ipairs(rules) do
    local which
    for j, state in ipairs(stored) do
      if is_of(rule, state) then
        which = j
        if not taken[j] then
          break
        end
      end
    end
    if which then
      found[i], taken[which] = stored[which], true
    end
  end
  for pass = 1, 2 do
    for i, rule in ipairs(rules) do
      local first, last = 1, #stored
      if pass == 1 then
        first, last = i, min(i, last)
      end
      for j = first, last do
        if not found[i] and not taken[j] and ALGORITHM[stored[j][1]] == ALGORITHM[rule.kind] then
          found[i], taken[j], converted = stored[j], true, true
        end
      end
    end
  end
  local others, live = {}, false
  for j, state in ipairs(stored) do
    if not taken[j] then
      others[#others + 1] = state
      live = live or ends(state) > now
    end
  end
  local states, lowered_any = {}, false
  for i, rule in ipairs(rules) do
    if not found[i] and live then
      return
    end
    if found[i] then
      local state, lowered = lower(rule, found[i], mark)
      states[i], lowered_any = bring_up(rule, state), lowered_any or lowered
    else
      states[i] = fresh(rule)
    end
  end
  for _, state in ipairs(others) do
    states[#states + 1] = state
  end
  return states, converted or lowered_any, converted
end

