-- Raises the fence counter once for each master epoch. master_epoch.rs gives the argument for why
-- fences then grow across failovers.
--
--   KEYS: the fence counter, the mark (the epoch of the last raise: "REPLICATION-ID[ NUMBER]")
--   ARGV: the replication id of this epoch,
--         the failover number of this epoch (empty if failovers are not numbered),
--         "1" if the server is a cluster node, which knows its number itself,
--         how far (µs) the counter may be ahead of the clock so that the client waits,
--         the raises of a counter that is further ahead: for a new id, for each number
--   returns: 0 if fences are high enough now, else the µs after which to ask again
--
-- Atomic so that it is raised once. A counter that does not exist starts from the clock anyway;
-- only the mark is written for it.

local call = redis.call
local id, noted = string.match(call('GET', KEYS[2]) or '', '^(%S+) ?(%d*)$')
noted = tonumber(noted or '')
local epoch = tonumber(ARGV[2])
if ARGV[3] == '1' then
  -- A node that is given a slot gets a higher number, which its old connections do not know.
  local own = tonumber(string.match(call('CLUSTER', 'INFO'), 'cluster_my_epoch:(%d+)'))
  epoch = own and math.max(own, epoch or 0) or epoch
end
local is_same = id == ARGV[1]
-- A mark without a number counts as zero, unless it is of this epoch.
local newer = epoch and math.max(epoch - (noted or is_same and epoch or 0), 0) or 0
if is_same and newer == 0 and (noted or not epoch) then
  return 0
end
local counter = (not is_same or newer > 0) and tonumber(call('GET', KEYS[1]) or nil)
local time = call('TIME')
local clock = time[1] * 1000000 + time[2]
local ahead = counter and counter - clock
if ahead and ahead >= 0 and ahead <= tonumber(ARGV[4]) then
  return ahead + 1
end
-- A server that is out of memory rejects a script at its first command that may allocate, unless
-- the script has written before. Releases start with a DEL for this reason, and may take a fence
-- for the next waiter; so does this script.
call('DEL', KEYS[2])
-- The mark never goes back: it is the highest number that the counter was raised for.
local note = math.max(epoch or -1, noted or -1)
call('SET', KEYS[2], note < 0 and ARGV[1] or string.format('%s %.0f', ARGV[1], note))
if ahead and ahead < 0 then
  call('SET', KEYS[1], string.format('%.0f', clock))
elseif ahead then
  -- Capped, so that an absurd number does not use up all fences at once.
  local raise = newer > 0 and math.min(newer, 65536) * ARGV[6] or ARGV[5]
  call('INCRBY', KEYS[1], string.format('%.0f', raise))
end
return 0
