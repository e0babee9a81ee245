-- Writes fields of one subject, and gives what they were.
--
--   KEYS: the schema, the subject's bits
--   ARGV: what the schema begins with; then for each field: type, offset, value
--   returns: the values before, or false if the space is gone or was defined anew
--
-- Atomic because bits must never be written by a schema that is not the space's any more.

local head = ARGV[1]
if redis.call('GETRANGE', KEYS[1], 0, #head - 1) ~= head then
  return false
end
local args, n = {'BITFIELD', KEYS[2]}, 2
for i = 2, #ARGV, 3 do
  args[n + 1], args[n + 2], args[n + 3], args[n + 4] = 'SET', ARGV[i], ARGV[i + 1], ARGV[i + 2]
  n = n + 4
end
return redis.call(unpack(args))
