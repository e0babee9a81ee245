-- Keeps a claim alive, held or waiting.
--
--   arguments: ttl ms, the whole claim record
--   returns: 1 if held, {1, holder's ms left} if in line, 0 if neither
--
-- Atomic because a claim that is no longer the owner's must not be extended.
-- Inner calls when held: GET, PEXPIRE, SET.

local function renew(lock, line, claim, owner, ttl, record)
  local holder = call('GET', lock) or hand_over(lock, line, claim, owner)
  if holder == owner then
    call('PEXPIRE', lock, ttl)
    call('SET', claim, record, 'PX', ttl)
    return 1
  end
  if call('ZSCORE', line, owner) then
    call('SET', claim, record, 'PX', ttl)
    keep_line(line, ttl)
    return {1, held_for(lock)}
  end
  return 0
end
