-- Stores the schema of a space of permissions, if what is stored is still what its maker saw.
--
--   KEYS: the schema's head, its names, the ids of what was removed and is not cleared away yet
--   ARGV: the head seen before ('' for none), the new head, the new names, the id
--   returns: 1 if it is stored, else 0
--
-- Atomic because two programs may add to a schema at once, and neither may undo the other's; and because
-- what is left over from a space that was removed must not become a grant in this one.

if (redis.call('GET', KEYS[1]) or '') ~= ARGV[1] or redis.call('SISMEMBER', KEYS[3], ARGV[4]) == 1 then
  return 0
end
redis.call('MSET', KEYS[1], ARGV[2], KEYS[2], ARGV[3])
return 1
