-- Writes fields of one subject, and gives what they were.
--
--   KEYS: the schema's head, the subject's bits
--   ARGV: what the head begins with; then for each field: type, offset, value
--   returns: the values before, or false if the space is gone or was defined anew
--
-- Atomic because bits must never be written by a schema that is not the space's any more, and because all
-- that a subject is given at once is given in one step, however much it is.

if redis.call('GETRANGE', KEYS[1], 0, #ARGV[1] - 1) ~= ARGV[1] then
  return false
end
-- Lua hands at most some 8,000 arguments to a command: 4 a field.
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
