-- Gives a Bloom filter its plan, unless it has one.
--
--   KEYS: the plan
--   ARGV: the plan
--   returns: the plan that is stored now
--
-- Atomic because two programs may come with different plans at once.

local found = redis.call('GET', KEYS[1])
if found then
  return found
end
redis.call('SET', KEYS[1], ARGV[1])
return ARGV[1]
