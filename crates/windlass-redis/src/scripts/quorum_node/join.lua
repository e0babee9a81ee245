-- Lets a restarted node of a quorum decide again: raises its counter to what the others have.
--
--   KEYS     the fence counter, the run of the server that has joined
--   ARGV     the run id that the caller saw, the highest counter of the others
--   returns  1
--
-- Atomic so that no run is marked without its counter. Where several clients come at once, the
-- highest counts. Numbers are compared as decimal text (longer is larger), because Lua's are not
-- exact beyond 2^53.

local function higher(a, b)
  if #a > #b or (#a == #b and a > b) then
    return a
  end
  return b
end

-- Its own clock counts too, for the first start, and in case all counters are lost.
local time = redis.call('TIME')
local clock = string.format('%.0f', time[1] * 1000000 + time[2])
local own = redis.call('GET', KEYS[1]) or '0'
redis.call('SET', KEYS[1], higher(higher(own, clock), ARGV[2]))
redis.call('SET', KEYS[2], ARGV[1])
return 1
