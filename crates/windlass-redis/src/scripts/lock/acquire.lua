-- Grants the lock, or puts the owner in the queue, or says who holds it.
--
--   flags     any of q = enqueue if held, r = write the record now, h = give a foreign key without
--             expiry one
--   proposal  the number that a quorum would like; not sent to a single server
--   returns   the fence if granted
--             {'queued', ticket, ms until the owner should recheck}
--             {'busy', holder, its ms left, its record or false, server's time in ms}
--
-- Atomic because "is it free with an empty queue" and "this owner holds it" are one decision.
-- Inner calls when free: EXISTS, SET (and one INCRBY for the batch).

local function grant(lock, claim, owner, ttl, flags, tail, proposal)
  local fence = take_fence(proposal)
  call('SET', lock, owner, 'PX', ttl)
  if string.find(flags, 'r', 1, true) then
    write_record(claim, digits(fence), ttl, 0, tail)
  end
  return fence
end

local function acquire(lock, queue, claim, owner, ttl, flags, tail, proposal)
  proposal = is_quorum_node and tonumber(proposal)
  if call('EXISTS', lock, queue) == 0 then
    return grant(lock, claim, owner, ttl, flags, tail, proposal)
  end

  local holder = call('GET', lock) or hand_over(lock, queue, claim, owner)
  if holder == owner then
    local record = call('GET', claim)
    if record then
      local fence = string.match(record, '^%d+')
      if fence == PLACEHOLDER then
        fence = digits(take_fence(proposal))
      end
      -- Never shorter than an earlier claim of the same owner was promised.
      local longest = math.max(tonumber(ttl), held_for(lock))
      call('PEXPIRE', lock, longest)
      write_record(claim, fence, ttl, 0, tail, longest)
      return tonumber(fence)
    end
    -- Granted before, but the reply was lost and the owner asks again: nothing acts under that
    -- grant. Its fence is not known any more, and a new one would be higher than the waiters'
    -- tickets, so they go first.
    holder = hand_over(lock, queue, claim, owner)
  end
  if not holder then
    return grant(lock, claim, owner, ttl, flags, tail, proposal)
  end

  if string.find(flags, 'h', 1, true) and held_for(lock) == -1 then
    call('PEXPIRE', lock, ttl)
  end
  if string.find(flags, 'q', 1, true) then
    local ticket = call('ZSCORE', queue, owner)
    if ticket then
      ticket = tonumber(ticket)
    else
      ticket = take_fence(proposal)
      call('ZADD', queue, digits(ticket), owner)
    end
    write_record(claim, PLACEHOLDER or digits(ticket), ttl, 0, tail)
    extend_queue(queue, ttl)
    return {'queued', ticket, recheck_after(lock, queue, claim, owner, holder)}
  end
  local prefix = string.sub(claim, 1, -#owner - 1)
  return {'busy', holder, held_for(lock), call('GET', prefix .. holder), server_ms()}
end
