-- Gives up what the owner has: the lock, which goes to the first living waiter in the same step, or
-- its place in the queue.
--
--   address  the claim's, or "" if no other claim can have this owner; a later claim of the same
--            owner is left alone
--   returns  1 if it was held, 2 if it was waiting, 0 if neither
--
-- Atomic because only the owner's own lock may be released.
-- Inner calls when nobody waits: GET, ZPOPMIN, DEL. A hand-over: GET, ZPOPMIN, GET, PTTL, SET,
-- PUBLISH, DEL, however many wait. In a cluster, ZRANGE and ZREM instead of ZPOPMIN.

local function release(lock, queue, claim, owner, address)
  local holder = call('GET', lock)
  local ours = address == '' or not is_replaced(claim, address)
  if ours and holder == owner then
    if hand_over(lock, queue, claim, owner) then
      call('DEL', claim)
    else
      call('DEL', lock, claim)
    end
    return 1
  end
  local waiting = 0
  if ours then
    waiting = call('ZREM', queue, owner)
    call('DEL', claim)
  end
  if not holder then
    hand_over(lock, queue, claim, owner)
  end
  return waiting * 2
end
