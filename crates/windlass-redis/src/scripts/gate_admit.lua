-- Admits a fence unless a higher one was admitted before.
--
--   KEYS     the gate
--   ARGV     the fence in decimal, retention in ms
--   returns  false if admitted, else the highest fence
--
-- Atomic because two fences may arrive at once. Fences are compared as decimal text (longer is
-- larger), because Lua's numbers are not exact beyond 2^53.

local seen, fence = redis.call('GET', KEYS[1]), ARGV[1]
if seen and (#seen > #fence or (#seen == #fence and seen > fence)) then
  return seen
end
redis.call('SET', KEYS[1], fence, 'PX', ARGV[2])
return false
