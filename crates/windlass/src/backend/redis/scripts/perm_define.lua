-- Stores the schema of a space of permissions, if what is stored is still what its maker saw.
--
--   KEYS: the schema
--   ARGV: the schema seen before ('' for none), the new one ('' to remove it)
--   returns: 1 if it is stored, else 0
--
-- Atomic because two programs may add to a schema at once, and neither may undo the other's.

if (redis.call('GET', KEYS[1]) or '') ~= ARGV[1] then
  return 0
end
if ARGV[2] == '' then
  redis.call('DEL', KEYS[1])
else
  redis.call('SET', KEYS[1], ARGV[2])
end
return 1
