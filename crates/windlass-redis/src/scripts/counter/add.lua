-- Adds to a counter, unless that exceeds a bound.
--
--   KEYS: the counter, the record of the operation (any key of the same slot if it has no id)
--   ARGV: amount, min, max, expiry in ms or "", width of a window's slot in us or "" for a plain counter,
--         retention of the operation in ms or "", the number of the operation among those of its id (0: the only one)
--   returns: {1 if added, else 0; the value; 1 if it was done before, else 0}
--            {2, the other amount} if it was done before with another amount
--            {3} if the counter is of another kind
--
-- A plain counter is a string. A windowed one is a hash: the sum of each slot of time by the number
-- of the slot, and the width of a slot ("width"). The record of an operation is "<amount> <value>
-- <number> <1 if added, else 0>"; the rules are in windlass-core, rules/operation.
--
-- Atomic because a concurrent addition must not come between the check of the bounds and the
-- addition. Values have up to 64 bits, more than Lua's numbers: Redis adds, and bounds are compared
-- as text.

local call = redis.call
local counter, once = KEYS[1], KEYS[2]
local amount, min, max, expire, width, remember, number = unpack(ARGV)
local negative = string.sub(amount, 1, 1) == '-'

-- "a > b" for whole numbers as text.
local function above(a, b)
  local a_minus, b_minus = string.sub(a, 1, 1) == '-', string.sub(b, 1, 1) == '-'
  if a_minus ~= b_minus then
    return b_minus
  end
  if #a ~= #b then
    return (#a > #b) ~= a_minus
  end
  return a ~= b and (a > b) ~= a_minus
end

local function beyond(sum)
  if negative then
    return above(min, sum)
  end
  return amount ~= '0' and above(sum, max)
end

if remember ~= '' then
  local before = call('GET', once)
  if before then
    local then_amount, value, last, added = string.match(before, '^(%S+) (%S+) (%d+) ([01])$')
    if tonumber(number) == tonumber(last) and then_amount ~= amount then
      return {2, then_amount}
    elseif tonumber(number) <= tonumber(last) then
      return {tonumber(added), value, 1}
    end
  end
end

local kind = call('TYPE', counter).ok
local value, added
local now, sum, over, stored = 0, 0, {}, width
if kind == 'hash' then
  local time = call('TIME')
  now = time[1] * 1000000 + time[2]
  stored = call('HGET', counter, 'width')
  local fields, in_use = call('HGETALL', counter), false
  local slot = math.floor(now / stored)
  for i = 1, #fields, 2 do
    if fields[i] ~= 'width' then
      if tonumber(fields[i]) + 60 > slot then
        sum, in_use = sum + fields[i + 1], true
      else
        over[#over + 1] = fields[i]
      end
    end
  end
  if not in_use then
    call('DEL', counter)
    kind, over, stored = 'none', {}, width
  end
end
if width == '' then
  if kind ~= 'string' and kind ~= 'none' then
    return {3}
  end
  local old = call('GET', counter)
  value, added = old or '0', 1
  if amount ~= '0' then
    local sum = redis.pcall('INCRBY', counter, amount)
    if type(sum) == 'table' then
      if string.find(sum.err, 'not an integer', 1, true) then
        return {3}
      elseif not string.find(sum.err, 'overflow', 1, true) then
        -- An error of the server, such as out of memory.
        return sum
      end
      added = 0
    else
      local exact = call('GET', counter)
      if beyond(exact) then
        added = 0
        if old then
          call('SET', counter, old, 'KEEPTTL')
        else
          call('DEL', counter)
        end
      else
        value = exact
        if not old and expire ~= '' then
          call('PEXPIRE', counter, expire)
        end
      end
    end
  end
else
  if kind == 'string' or stored ~= width then
    return {3}
  end
  if kind == 'none' then
    local time = call('TIME')
    now = time[1] * 1000000 + time[2]
  end
  value, added = string.format('%.0f', sum), 1
  if amount ~= '0' then
    local total = string.format('%.0f', sum + amount)
    local slot = string.format('%.0f', math.floor(now / width))
    local in_slot = string.format('%.0f', (call('HGET', counter, slot) or 0) + amount)
    -- Lua must represent all of these exactly.
    local most = '9007199254740991'
    local function exact(number)
      return not above(number, most) and not above('-' .. most, number)
    end
    if beyond(total) or not (exact(amount) and exact(total) and exact(in_slot)) then
      added = 0
    else
      value = total
      if #over > 0 then
        call('HDEL', counter, unpack(over))
      end
      call('HINCRBY', counter, slot, amount)
      call('HSET', counter, 'width', width)
      call('PEXPIRE', counter, math.ceil(60 * width / 1000) + 1)
    end
  end
end
if remember ~= '' and (added == 1 or number ~= '0') then
  call('SET', once, amount .. ' ' .. value .. ' ' .. number .. ' ' .. added, 'PX', remember)
end
return {added, value, 0}
