-- The decisions on pools that only a node of a quorum takes: see quorum_node/lock.lua.

-- Extends a claim as "renew" does, and takes a number for it if it is held.
--
--   flags    as in "renew"
--   returns  {'held', number}, {'waiting', ms until the owner should recheck, the holder whose
--            claim ends first}, 0 if neither

function confirm(tx, owner, ttl, flags, age, tail, proposal)
  local reply = renew(tx, owner, ttl, flags, '0', age, tail)
  if type(reply) ~= 'table' then
    return reply
  end
  if reply[1] == 'waiting' then
    reply[3] = first_to_expire(tx) or ''
    return reply
  end
  local claim = parse(record_of(tx, owner))
  claim.fence, claim.tail = take_fence(tonumber(proposal)), tail
  if tx.waiting > 0 then
    -- The waiters' tickets are lower, so they are no fences for them any more.
    set(tx, 'overtook', claim.fence)
  end
  write(tx, owner, claim)
  return {'held', claim.fence}
end

-- Grants the share on this node to waiters, and puts its holder at the end of the queue.
--
--   number   what this node gave the owner last
--   returns  1 if it was done; 0 if it is not held under that number, or nobody else waits

function requeue(tx, owner, ttl, number, _age, tail, proposal)
  expire_and_grant(tx)
  local record = held_until(tx, owner) and record_of(tx, owner)
  local claim = record and parse(record)
  if not claim or digits(claim.fence) ~= number or tx.waiting == 0 then
    return 0
  end
  remove_holder(tx, owner)
  tx.proposal = tonumber(proposal)
  expire_and_grant(tx)
  claim.fence, claim.ends, claim.tail = take_fence(tx.proposal), now + ttl, tail
  call('ZADD', tx.queue, digits(claim.fence), owner)
  set(tx, 'waiting', tx.waiting + 1)
  extend_keys(tx, tonumber(ttl))
  write(tx, owner, claim)
  expire_and_grant(tx)
  return 1
end
