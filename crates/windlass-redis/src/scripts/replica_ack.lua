-- Makes a small write behind a claim, if the claim is there: whoever has that write has the claim.
--
--   KEYS: the lock, or those who hold (sorted set of owners, by the end of their claims); a key to write to
--   ARGV: the kind, the owner
--   returns: 1 if it was written, 0 if the owner holds nothing
--
-- Atomic because a claim that ended in between must not count as acknowledged.

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
