-- Sets many bits of a shard, and returns the shard as it was.
--
--   KEYS: the plan, the shard, the record of creation, a temporary key
--   ARGV: the plan, a shard in which only these bits are set, with its header
--   returns: the shard as it was ('' if it did not exist), 0 if the filter does not exist, 2 if it has lost the shard
--
-- Atomic because the bits before decide whether an item was new. The argument has the header and
-- the full length, so a missing shard is created.

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
