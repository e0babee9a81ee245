-- Stores the plan of a Bloom filter, unless it has one.
--
--   KEYS: the plan, the record of creation ("0 PLAN" while shards are being created, then "1 PLAN")
--   ARGV: the plan
--   returns: {the stored plan}; or {'', another plan} if the filter had that plan and lost it, but its shards remain: they have
--            to be removed first
--
-- Atomic because two clients may come with different plans. A filter that has lost only its plan,
-- and is created with the same plan again, keeps its bits.

local found = redis.call('GET', KEYS[1])
if found then
  return {found}
end
local made = redis.call('GET', KEYS[2])
if made and string.sub(made, 3) ~= ARGV[1] then
  return {'', string.sub(made, 3)}
end
redis.call('SET', KEYS[1], ARGV[1])
if not made then
  redis.call('SET', KEYS[2], '0 ' .. ARGV[1])
end
return {ARGV[1]}
