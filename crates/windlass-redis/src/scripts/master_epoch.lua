-- Raises the fence counter when another server has become the master, or the same one has started anew.
--
--   KEYS: the fence counter, under whose reign it was used last
--   ARGV: the replication id of this reign, how much a start is worth,
--         the epoch of this reign (empty if nobody counts them), how much an epoch is worth,
--         whether the server knows its epoch itself, as the nodes of a cluster do ("1")
--   returns: 1 if it was raised, else 0
--
-- What a master granted last may never have reached the replica that took its place, nor the disk from
-- which it started anew; so the counter may be behind what was given out. It is raised by more than can
-- have been on its way, and to the clock if that is higher, before the first grant of a reign. The raise
-- itself may be lost as well, when the next master takes over. So where masters are appointed by number,
-- it is for each number since that of the copy at hand: whoever is appointed later starts above whoever
-- was appointed before, whatever became of that. A counter that is not there starts from the clock
-- anyway, but the number is noted before it does. Atomic so that it is done once.

local call = redis.call
local reign, noted = string.match(call('GET', KEYS[2]) or '', '^(%S+) ?(%d*)$')
noted = tonumber(noted or '')
local epoch = tonumber(ARGV[3])
if ARGV[5] == '1' then
  -- A node that is given a slot has a higher one from then on, of which its old connections know nothing. Whoever
  -- may not ask goes by what it was told.
  local info = redis.pcall('CLUSTER', 'INFO')
  local own = type(info) == 'string' and tonumber(string.match(info, 'cluster_my_epoch:(%d+)'))
  epoch = own and math.max(own, epoch or 0) or epoch
end
local is_same = reign == ARGV[1]
-- Without a note nobody knows for which number it was raised last: for none, unless it was for this reign.
local newer = epoch and math.max(epoch - (noted or is_same and epoch or 0), 0) or 0
if is_same and newer == 0 and (noted or not epoch) then
  return 0
end
-- Never lower: numbers are compared with the highest that the counter was raised for.
local note = math.max(epoch or -1, noted or -1)
-- A server that is full refuses a script that begins with what may take memory, and lets go on one that has
-- begun otherwise. Others draw there after such a beginning, so the raise must come through as well.
call('DEL', KEYS[2])
call('SET', KEYS[2], note < 0 and ARGV[1] or string.format('%s %.0f', ARGV[1], note))
if (is_same and newer == 0) or call('EXISTS', KEYS[1]) == 0 then
  return 0
end
-- With a limit, so that a number from another world does not use up all fences at once.
local raise = newer > 0 and math.min(newer, 65536) * ARGV[4] or ARGV[2]
local time = call('TIME')
local clock = time[1] * 1000000 + time[2]
local raised = tonumber(call('INCRBY', KEYS[1], string.format('%.0f', raise)))
if raised < clock then
  call('SET', KEYS[1], string.format('%.0f', clock))
end
return 1
