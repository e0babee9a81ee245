-- Gives a Bloom filter its plan, unless it has one.
--
--   KEYS: the plan, what was made
--   ARGV: the plan
--   returns: {the plan that is stored now}; or {'', another plan} if the filter had that one, lost it, and
--         what was made by it is still there: it has to be removed first
--
-- Atomic because two programs may come with different plans at once. Of a filter that has lost nothing but
-- its plan, and is created by the same, everything is still there.

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
