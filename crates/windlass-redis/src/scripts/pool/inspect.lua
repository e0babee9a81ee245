-- Reads a pool and changes nothing.
--
--   KEYS     the pool, its holders, its queue
--   ARGV     how many holders to name at most, the kind, of how many waiters to check whether they
--            are alive
--   returns  {size, what living holders weigh, waiters, open, server's time in ms,
--             {owner, end of its claim in ms, its record or false, …}}
--
-- Atomic so that what is shown was true at one moment.

local call = redis.call
local time = call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local bound = string.format('%.0f', now)
local seen = call('HMGET', KEYS[1], ' size', ' extra', ' open')
local waiting = call('ZCARD', KEYS[3])
local checked = math.min(waiting, tonumber(ARGV[3]))
for first = 0, checked - 1, 1000 do
  -- Lua passes a few thousand arguments at most.
  local owners = call('ZRANGE', KEYS[3], first, math.min(first + 1000, checked) - 1)
  local records = call('HMGET', KEYS[1], unpack(owners))
  for i = 1, #owners do
    local ends = records[i] and string.match(records[i], '^%d+ %d+ %d+ (%d+) ')
    if not ends or tonumber(ends) <= now then
      waiting = waiting - 1
    end
  end
end
local used = math.max(call('ZCARD', KEYS[2]) - 1, 0) + (seen[2] or 0)
used = used - call('ZCOUNT', KEYS[2], '-inf', bound)
if seen[2] and seen[2] ~= '0' then
  -- A holder that weighs more than one has a record. Of very many dead, some may be counted as one
  -- each.
  local dead = call('ZRANGEBYSCORE', KEYS[2], '-inf', bound, 'LIMIT', 0, 10000)
  for i = 1, #dead do
    local record = call('HGET', KEYS[1], dead[i])
    used = used - (record and string.match(record, '^%d+ (%d+)') or 1) + 1
  end
end
local size = tonumber(seen[1] or 0)
if ARGV[2] ~= 'sem' and used == 0 and waiting == 0 then
  size = 0 -- only a semaphore keeps its size
end
local holders = {}
local alive = call('ZRANGEBYSCORE', KEYS[2], '(' .. bound, '(+inf', 'WITHSCORES', 'LIMIT', 0, ARGV[1])
for i = 1, #alive, 2 do
  holders[#holders + 1] = alive[i]
  holders[#holders + 1] = tonumber(alive[i + 1])
  holders[#holders + 1] = call('HGET', KEYS[1], alive[i])
end
return {size, used, waiting, tonumber(seen[3] or 0), now, holders}
