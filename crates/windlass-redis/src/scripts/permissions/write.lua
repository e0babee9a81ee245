-- Writes fields of one subject, and returns their previous values.
--
--   KEYS: the head of the schema, the bits of the subject
--   ARGV: the expected start of the head; then for each field: type, offset, value
--   returns: the previous values, or false if the space was removed or defined again
--
-- Atomic because bits must never be written by the layout of another schema, and because all
-- changes of a subject take effect together, however many there are.

if redis.call('GETRANGE', KEYS[1], 0, #ARGV[1] - 1) ~= ARGV[1] then
  return false
end
-- Lua passes at most about 8,000 arguments to a command: 4 per field.
local MOST = 1500 * 3
local before
for first = 2, #ARGV, MOST do
  local args, n = {'BITFIELD', KEYS[2]}, 2
  for i = first, math.min(first + MOST, #ARGV + 1) - 1, 3 do
    args[n + 1], args[n + 2], args[n + 3], args[n + 4] = 'SET', ARGV[i], ARGV[i + 1], ARGV[i + 2]
    n = n + 4
  end
  local values = redis.call(unpack(args))
  if before then
    for _, value in ipairs(values) do
      before[#before + 1] = value
    end
  else
    before = values
  end
end
return before or {}
