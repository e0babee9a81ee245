-- Sets many bits of a shard at once, and gives what was there before.
--
--   KEYS: the plan, the shard's bits, what was made, a key for the time in between
--   ARGV: the plan, the shard as it would be with only these bits set, header included
--   returns: the shard as it was ('' if it was never made), or 0 if the filter is gone, 2 if it has lost the shard
--
-- Atomic because whether an item was new is told by the bits before, and by nobody else's in between.
-- The bits to set come with the header and at full length, so a shard that was never made is made.

if redis.call('GET', KEYS[1]) ~= ARGV[1] then
  return 0
end
local before = redis.call('GET', KEYS[2]) or ''
if string.sub(before, 1, 8) ~= string.sub(ARGV[2], 1, 8)
  and redis.call('GET', KEYS[3]) == '1 ' .. ARGV[1]
then
  return 2
end
redis.call('SET', KEYS[4], ARGV[2])
redis.call('BITOP', 'OR', KEYS[2], KEYS[2], KEYS[4])
redis.call('DEL', KEYS[4])
return before
