-- Removes the schema of a space of permissions.
--
--   KEYS: the schema's head, its names, the ids of what was removed and is not cleared away yet
--   ARGV: what the head begins with, the id
--   returns: 1 if it was there, else 0
--
-- Atomic because from the moment when the schema is gone, its id must be known as one to be cleared away.
-- Deleting comes first: a server that is full lets a script go on that has begun so.

if redis.call('GETRANGE', KEYS[1], 0, #ARGV[1] - 1) ~= ARGV[1] then
  return 0
end
redis.call('DEL', KEYS[1], KEYS[2])
redis.call('SADD', KEYS[3], ARGV[2])
return 1
