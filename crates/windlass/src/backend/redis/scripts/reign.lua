-- Raises the fence counter when another server has become the master, or the same one has started anew.
--
--   KEYS: the fence counter, under whose reign it was used last
--   ARGV: the replication id of this reign, the margin
--   returns: 1 if it was raised, else 0
--
-- What a master granted last may never have reached the replica that took its place, nor the disk from
-- which it started anew; so the counter may be behind what was given out. It is raised by more than can
-- have been on its way, and to the clock if that is higher, before the first grant of a reign. A
-- counter that is not there starts from the clock anyway. Atomic so that it is done once.

local call = redis.call
if call('EXISTS', KEYS[1]) == 0 or call('GET', KEYS[2]) == ARGV[1] then
  return 0
end
call('SET', KEYS[2], ARGV[1])
local time = call('TIME')
local clock = time[1] * 1000000 + time[2]
local raised = tonumber(call('INCRBY', KEYS[1], ARGV[2]))
if raised < clock then
  call('SET', KEYS[1], string.format('%.0f', clock))
end
return 1
