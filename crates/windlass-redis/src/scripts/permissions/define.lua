-- Stores the schema of a permission space, if the stored one is still the one that the caller has
-- read.
--
--   KEYS: the head of the schema, its names, the ids of removed schemas whose subjects are not deleted yet
--   ARGV: the head that the caller has read ('' for none), the new head, the new names, the id
--   returns: 1 if it was stored, else 0
--
-- Atomic because two clients may extend a schema at once, and neither may undo the other's change;
-- and because subjects left over from a removed space must not become grants in this one.

if (redis.call('GET', KEYS[1]) or '') ~= ARGV[1] or redis.call('SISMEMBER', KEYS[3], ARGV[4]) == 1 then
  return 0
end
redis.call('MSET', KEYS[1], ARGV[2], KEYS[2], ARGV[3])
return 1
