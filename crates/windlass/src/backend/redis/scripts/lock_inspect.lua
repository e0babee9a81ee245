-- Looks at a lock and changes nothing.
--
--   KEYS: the lock, its line
--   ARGV: the prefix of its claim records
--   returns: {holder or false, holder's ms left, holder's record or false, waiters}
--
-- Atomic so that what is shown was true at one moment.

local holder = redis.call('GET', KEYS[1])
local record = holder and redis.call('GET', ARGV[1] .. holder)
return {holder, redis.call('PTTL', KEYS[1]), record, redis.call('ZCARD', KEYS[2])}
