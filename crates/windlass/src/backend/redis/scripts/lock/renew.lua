-- Keeps a claim alive, held or waiting.
--
--   arguments: ttl ms, same owner, the claim record
--   same owner: "" if nobody else can come as this owner; "=" to leave a later claim of the same
--          owner alone; "!" to take its place
--   returns: 1 if held, {1, holder's ms left} if in line, 0 if neither
--
-- Atomic because a claim that is no longer the owner's must not be extended.
-- Inner calls when held: GET, PEXPIRE, PEXPIRE (SET instead, the first time).

local function renew(lock, line, claim, owner, ttl, same_owner, record)
  local holder = call('GET', lock) or hand_over(lock, line, claim, owner)
  local held = holder == owner
  if not held and not call('ZSCORE', line, owner) then
    return 0
  end
  if same_owner == '=' and taken_over(claim, address_of(record)) then
    return 0
  end
  if not held then
    write_record(claim, record, ttl)
    keep_line(line, ttl)
    return {1, held_for(lock)}
  end
  call('PEXPIRE', lock, ttl)
  -- A record that is there already keeps its fence and its time.
  if same_owner == '!' or call('PEXPIRE', claim, ttl) == 0 then
    write_record(claim, record, ttl)
  end
  return 1
end
