-- Deletes a counter.
--
--   KEYS: the counter
--   returns: its value
--
-- Atomic so that the returned value is the one that was deleted.

local counter = KEYS[1]
local kind = redis.call('TYPE', counter).ok
local value = '0'
if kind == 'string' then
  value = redis.call('GET', counter)
elseif kind == 'hash' then
  local width = redis.call('HGET', counter, 'width')
  local time = redis.call('TIME')
  local slot = width and math.floor((time[1] * 1000000 + time[2]) / width) or 0
  local sum, fields = 0, redis.call('HGETALL', counter)
  for i = 1, #fields, 2 do
    if fields[i] ~= 'width' and tonumber(fields[i]) + 60 > slot then
      sum = sum + fields[i + 1]
    end
  end
  value = string.format('%.0f', sum)
end
redis.call('DEL', counter)
return value
