-- Reads a lock and changes nothing.
--
--   KEYS     the lock, its queue
--   ARGV     the prefix of its claim records, of how many waiters to check whether they are alive
--   returns  {holder or false, its ms left, its record or false, server's time in ms, waiters}
--
-- Atomic so that what is shown was true at one moment.

local holder = redis.call('GET', KEYS[1])
local record = holder and redis.call('GET', ARGV[1] .. holder)
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local waiters = redis.call('ZCARD', KEYS[2])
local checked = math.min(waiters, tonumber(ARGV[2]))
for first = 0, checked - 1, 1000 do
  -- A waiter without a record is dead. Lua passes a few thousand arguments at most.
  local keys = redis.call('ZRANGE', KEYS[2], first, math.min(first + 1000, checked) - 1)
  for i = 1, #keys do
    keys[i] = ARGV[1] .. keys[i]
  end
  waiters = waiters - #keys + redis.call('EXISTS', unpack(keys))
end
return {holder, redis.call('PTTL', KEYS[1]), record, now, waiters}
