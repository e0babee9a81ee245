-- The decisions on locks that only a node of a quorum takes.

-- Extends a claim as "renew" does, and takes a number for it if it is held.
--
--   flags    as in "renew"
--   returns  {'held', number}, {'waiting', ms until the owner should recheck, holder}, 0 if neither
--
-- Atomic because the number must be taken while the owner holds this node: a later holder takes a
-- higher one.

function confirm(lock, queue, prefix, owner, ttl, flags, age, tail, proposal)
  local claim = prefix .. owner
  local holder = call('GET', lock) or hand_over(lock, queue, prefix)
  local held = holder == owner
  local ticket = not held and call('ZSCORE', queue, owner)
  if not held and not ticket then
    return 0
  end
  if string.find(flags, '=', 1, true) and is_replaced(claim, address_of(tail)) then
    return 0
  end
  if not held then
    write_record(claim, PLACEHOLDER, ttl, age, tail)
    extend_queue(queue, ttl)
    return {'waiting', recheck_after(lock, queue, prefix, owner, holder), holder}
  end
  local number = take_fence(tonumber(proposal))
  call('PEXPIRE', lock, ttl)
  write_record(claim, digits(number), ttl, age, tail)
  return {'held', number}
end

-- Grants the lock on this node to the first waiter, and puts its holder at the end of the queue:
-- for an owner that holds this node but no majority, while no other owner has one either.
--
--   number   what this node gave the owner last
--   returns  1 if it was done; 0 if it is not held under that number, or nobody else waits
--
-- Atomic because it must not undo a later grant: an owner that counts on this node has taken
-- another number since.

function requeue(lock, queue, prefix, owner, ttl, number, age, tail, proposal)
  local claim = prefix .. owner
  if call('GET', lock) ~= owner or string.match(call('GET', claim) or '', '^%d+') ~= number then
    return 0
  end
  if not hand_over(lock, queue, prefix) then
    return 0
  end
  call('ZADD', queue, digits(take_fence(tonumber(proposal))), owner)
  write_record(claim, PLACEHOLDER, ttl, age, tail)
  extend_queue(queue, ttl)
  return 1
end
