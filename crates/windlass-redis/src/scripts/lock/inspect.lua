-- Reads a lock and changes nothing.
--
--   KEYS     the lock, its queue
--   ARGV     the prefix of its claim records
--   returns  {holder or false, its ms left, its record or false, server's time in ms, waiters}
--
-- Atomic so that what is shown was true at one moment.

local holder = redis.call('GET', KEYS[1])
local record = holder and redis.call('GET', ARGV[1] .. holder)
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
return {holder, redis.call('PTTL', KEYS[1]), record, now, redis.call('ZCARD', KEYS[2])}
