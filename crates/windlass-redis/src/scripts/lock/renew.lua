-- Extends a claim, held or waiting.
--
--   flags    any of = to respect a later claim of the same owner that has replaced this one,
--            ! to rewrite the record (and so to replace an earlier claim)
--   returns  1 if held, {'waiting', ms until the owner should recheck}, 0 if neither
--
-- Atomic because a claim that is no longer the owner's must not be extended.
-- Inner calls when held: GET, PEXPIRE, PEXPIRE (SET instead, the first time).

local function renew(lock, queue, claim, owner, ttl, flags, fence, age, tail)
  local holder = call('GET', lock) or hand_over(lock, queue, claim, owner)
  local held = holder == owner
  if not held and not call('ZSCORE', queue, owner) then
    return 0
  end
  if string.find(flags, '=', 1, true) and is_replaced(claim, address_of(tail)) then
    return 0
  end
  if not held then
    write_record(claim, PLACEHOLDER or fence, ttl, age, tail)
    extend_queue(queue, ttl)
    return {'waiting', recheck_after(lock, queue, claim, owner, holder)}
  end
  call('PEXPIRE', lock, ttl)
  -- An existing record keeps its fence and its time.
  if string.find(flags, '!', 1, true) or call('PEXPIRE', claim, ttl) == 0 then
    write_record(claim, fence, ttl, age, tail)
  end
  return 1
end
