-- Writes a small key after a claim, if the claim exists. Replication is in order: a replica that
-- has acknowledged this write has the claim too.
--
--   KEYS: the lock, or the sorted set of holders (by the end of their claims); the key to write
--   ARGV: the kind, the owner
--   returns: 1 if it was written, 0 if the owner holds nothing
--
-- Atomic because a claim that ends in between must not count as acknowledged.

local call = redis.call
if ARGV[1] == 'lock' then
  if call('GET', KEYS[1]) ~= ARGV[2] then
    return 0
  end
else
  local time = call('TIME')
  local ends = call('ZSCORE', KEYS[1], ARGV[2])
  if not ends or tonumber(ends) <= time[1] * 1000 + math.floor(time[2] / 1000) then
    return 0
  end
end
call('SET', KEYS[2], '', 'PX', 1000)
return 1
