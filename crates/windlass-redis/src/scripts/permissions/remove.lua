-- Removes the schema of a permission space.
--
--   KEYS: the head of the schema, its names, the ids of removed schemas whose subjects are not deleted yet
--   ARGV: the expected start of the head, the id
--   returns: 1 if it existed, else 0
--
-- Atomic because the id must be listed as removed from the moment when the schema is gone. DEL
-- comes first: a server that is out of memory continues a script that has written before.

if redis.call('GETRANGE', KEYS[1], 0, #ARGV[1] - 1) ~= ARGV[1] then
  return 0
end
redis.call('DEL', KEYS[1], KEYS[2])
redis.call('SADD', KEYS[3], ARGV[2])
return 1
