-- States: parsing, writing, and matching them with the quotas of a request.

local sub, min, max, fmod = string.sub, math.min, math.max, math.fmod
local LONGEST, EXACT = 3153600000000000, 9007199254740992
local YEAR = 31536000000000

-- A state is a table: the letter, then the numbers, and the field "limit". A fixed window always
-- has its end.

local function digits(number)
  return format('%.0f', number)
end

-- How many numbers follow a letter.
local LENGTHS = {t = '47', z = '1', f = '34', s = '4', m = '1'}

-- The states, and the mark. Fails if the text is not a state.
local function parse(text)
  local states, mark = {}, 0
  for record in string.gmatch(text, '[^,]+') do
    local state = {sub(record, 1, 1), limit = match(record, '^%a(%d*)')}
    for number in string.gmatch(record, ' (%d+)') do
      state[#state + 1] = tonumber(number)
    end
    local lengths = LENGTHS[state[1]]
    if mark > 0 or not lengths or not find(lengths, #state - 1, 1, true)
      or not find(record, '^%a[ %d]+$') then
      error({err = FOREIGN})
    end
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
    end
    for j = 2, last do
      words[j] = digits(state[j])
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
    return {'t', state[2], state[3], tat, part, since, before, lent, limit = state.limit}, true
  elseif (rule.kind == 'f' or rule.kind == 's') and state[3] > now then
    local lowered = {unpack(state)}
    lowered.limit, lowered[3] = state.limit, now
    if rule.kind == 'f' then
      lowered[5] = min(state[5], now + state[2])
    end
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
      return {'t', rule.amount, rule.period, tat, part, state[6], state[7], state[8]}
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

local ALGORITHM = {t = 't', z = 't', f = 'f', s = 's'}

-- Matches states with quotas (windlass-core, rules/limit/matching). Returns the states of the
-- quotas as of now, then those of other quotas; and whether any was converted. Returns nothing if a
-- quota has another algorithm.
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
  local states = {}
  for i, rule in ipairs(rules) do
    if not found[i] and live then
      return
    end
    if found[i] then
      local state, lowered = lower(rule, found[i], mark)
      states[i], converted = bring_up(rule, state), converted or lowered
    else
      states[i] = fresh(rule)
    end
  end
  for _, state in ipairs(others) do
    states[#states + 1] = state
  end
  return states, converted
end

