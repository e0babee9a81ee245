-- Keeps a claim alive, held or waiting.
--
--   arguments: ttl ms, flags, the claim record
--   flags: any of = if a later claim of the same owner may be in the place, and is to be left alone,
--          ! to write the record anew (and so to take the place of an earlier claim)
--   returns: 1 if held, {1, ms until it should ask} if in line, 0 if neither
--
-- Atomic because a claim that is no longer the owner's must not be extended.
-- Inner calls when held: GET, PEXPIRE, PEXPIRE (SET instead, the first time).

local function renew(lock, line, claim, owner, ttl, flags, record)
  local holder = call('GET', lock) or hand_over(lock, line, claim, owner)
  local held = holder == owner
  if not held and not call('ZSCORE', line, owner) then
    return 0
  end
  if string.find(flags, '=', 1, true) and taken_over(claim, address_of(record)) then
    return 0
  end
  if not held then
    if PLACE then
      record = string.gsub(record, '^%d+', PLACE)
    end
    write_record(claim, record, ttl)
    keep_line(line, ttl)
    return {1, look_after(lock, line, claim, owner, holder)}
  end
  call('PEXPIRE', lock, ttl)
  -- A record that is there already keeps its fence and its time.
  if string.find(flags, '!', 1, true) or call('PEXPIRE', claim, ttl) == 0 then
    write_record(claim, record, ttl)
  end
  return 1
end
