-- Reads a few fields of a subject that has many.
--
--   KEYS: the head of the schema, the bits of the subject
--   ARGV: the expected start of the head; then for each field: type, offset
--   returns: the values, or false if the space was removed or defined again
--
-- Atomic because bits must never be read by the layout of another schema.

if redis.call('GETRANGE', KEYS[1], 0, #ARGV[1] - 1) ~= ARGV[1] then
  return false
end
local args, n = {'BITFIELD_RO', KEYS[2]}, 2
for i = 2, #ARGV, 2 do
  args[n + 1], args[n + 2], args[n + 3] = 'GET', ARGV[i], ARGV[i + 1]
  n = n + 3
end
return redis.call(unpack(args))
