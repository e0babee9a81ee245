-- Reads a few fields of a subject that has many.
--
--   KEYS: the schema's head, the subject's bits
--   ARGV: what the head begins with; then for each field: type, offset
--   returns: the values, or false if the space is gone or was defined anew
--
-- Atomic because bits must never be read by a schema that is not the space's any more.

if redis.call('GETRANGE', KEYS[1], 0, #ARGV[1] - 1) ~= ARGV[1] then
  return false
end
local args, n = {'BITFIELD_RO', KEYS[2]}, 2
for i = 2, #ARGV, 2 do
  args[n + 1], args[n + 2], args[n + 3] = 'GET', ARGV[i], ARGV[i + 1]
  n = n + 3
end
return redis.call(unpack(args))
