-- Grants a share, or puts the owner in the queue, or says who is in the way.
--
--   flags    any of q = enqueue if it does not fit, r = write the record now, b = barge: ignore the
--            queue, a = adopt another size
--   returns  the fence if granted
--            {'queued', ticket, ms until the owner should recheck}
--            {'busy', the holder whose claim ends first, its ms left, its record or false, now}
--            {'other_size', size} if another size is stored
--            {'too_heavy', size} if the weight exceeds the size
--            {'other_weight', weight} if the owner has a claim of another weight
--
-- Atomic because "does it fit, with an empty queue" and "this owner holds it" are one decision.

local function acquire(tx, owner, weight, size, ttl, flags, tail)
  weight, size, ttl = tonumber(weight), tonumber(size), tonumber(ttl)
  expire_and_grant(tx)
  forget_size(tx)
  local stored = tx.size == 0 and size or tx.size
  if stored ~= size and not string.find(flags, 'a', 1, true) then
    return {'other_size', stored}
  end
  if weight > stored then
    return {'too_heavy', stored}
  end
  local ends = held_until(tx, owner)
  local record = record_of(tx, owner)
  local claim = record and parse(record)
  local alive = ends or claim and claim.ends > now
  if alive and (claim and claim.weight or 1) ~= weight then
    return {'other_weight', claim and claim.weight or 1}
  end
  if tx.size == 0 then
    set(tx, 'size', stored)
  end
  extend_keys(tx, ttl)
  if ends then
    if not claim then
      -- Granted before, but the reply was lost and the owner asks again. The fence of that grant is
      -- not known any more; waiters will have higher ones.
      claim = {fence = take_fence(), since = digits(now), ends = 0}
      if tx.waiting > 0 then
        set(tx, 'overtook', claim.fence)
      end
    end
    -- Never shorter than an earlier claim of the same owner was promised.
    call('ZADD', tx.held, digits(math.max(ends, now + ttl)), owner)
    tx.first = nil
    claim.weight, claim.ttl, claim.tail = weight, ttl, tail
    write(tx, owner, claim)
    tx.notify = true -- the note may be another one
    return claim.fence
  end

  if fits(tx, weight) and (tx.waiting == 0 or string.find(flags, 'b', 1, true)) then
    if claim then
      dequeue(tx, owner)
      erase(tx, owner)
    end
    local fence = take_fence()
    if tx.waiting > 0 then
      set(tx, 'overtook', fence)
    end
    if weight > 1 or string.find(flags, 'r', 1, true) then
      write(tx, owner,
        {fence = fence, weight = weight, ttl = ttl, ends = 0, since = digits(now), tail = tail})
    end
    add_holder(tx, owner, weight, now + ttl)
    return fence
  end

  if string.find(flags, 'q', 1, true) then
    local ticket = claim and claim.fence
    if not ticket then
      ticket = take_fence()
      call('ZADD', tx.queue, digits(ticket), owner)
      set(tx, 'waiting', tx.waiting + 1)
      if tx.waiting == 1 then
        tx.extend = true
      end
    end
    write(tx, owner,
      {fence = ticket, weight = weight, ttl = ttl, ends = now + ttl, since = digits(now), tail = tail})
    return {'queued', ticket, recheck_after(tx, owner, weight)}
  end
  local first, left = first_to_expire(tx)
  return {'busy', first or '', left, first and record_of(tx, first), now}
end

-- Extends a claim, held or waiting.
--
--   flags    any of = to respect a later claim of the same owner that has replaced this one,
--            ! to rewrite the record (and so to replace an earlier claim)
--   returns  {'held', fence}, {'waiting', ms until the owner should recheck}, 0 if neither
--
-- Atomic because a claim that is no longer the owner's must not be extended.

local function renew(tx, owner, ttl, flags, fence, age, tail)
  ttl = tonumber(ttl)
  expire_and_grant(tx)
  local ends = held_until(tx, owner)
  local record = record_of(tx, owner)
  local claim = record and parse(record)
  if not ends and claim and not call('ZSCORE', tx.queue, owner) then
    erase(tx, owner) -- the queue was deleted or evicted
    claim = nil
  end
  if not ends and not claim then
    return 0
  end
  local respect = string.find(flags, '=', 1, true)
  if respect and claim and (ends or claim.ends > now) and address_of(claim.tail) ~= address_of(tail) then
    return 0
  end
  extend_keys(tx, ttl)
  if ends then
    -- No owner is "". A server that is out of memory refuses a script whose first write may take
    -- memory, and lets one go on whose first write does not: that must not lose a held claim.
    call('ZREM', tx.held, '')
    call('ZADD', tx.held, digits(now + ttl), owner)
    tx.first = nil
    if not claim or string.find(flags, '!', 1, true) then
      -- An existing record keeps its fence, weight and time.
      claim = claim or {fence = tonumber(fence), weight = 1, since = digits(now - age)}
      claim.ttl, claim.ends, claim.tail = ttl, 0, tail
      write(tx, owner, claim)
    end
    return {'held', claim.fence}
  end
  claim.ttl, claim.ends, claim.tail = ttl, now + ttl, tail
  write(tx, owner, claim)
  return {'waiting', recheck_after(tx, owner, claim.weight)}
end

-- Gives up what the owner has, a share or its place in the queue, and grants what is free to
-- waiters.
--
--   address  the claim's, or "" if no other claim can have this owner; a later claim of the same
--            owner is left alone
--   returns  1 if it was held, 2 if it was waiting, 0 if neither
--
-- Atomic because only the owner's own share may be released.

local function release(tx, owner, address)
  local outcome = 0
  local ends = held_until(tx, owner)
  local record = record_of(tx, owner)
  local claim = record and parse(record)
  local ours = address == '' or not claim or address_of(claim.tail) == address
  if ends then
    if ours then
      remove_holder(tx, owner)
      outcome = 1
    end
  elseif claim and call('ZSCORE', tx.queue, owner) and (ours or claim.ends <= now) then
    -- Out of the queue first: what is free is not for an owner that leaves.
    dequeue(tx, owner)
    erase(tx, owner)
    outcome = 2
  end
  expire_and_grant(tx)
  return outcome
end

-- Makes a held share smaller, and grants what is free to waiters.
--
--   returns  1, or 0 if the claim at that address holds no share of at least that weight

local function shrink(tx, owner, address, weight)
  weight = tonumber(weight)
  expire_and_grant(tx)
  local ends = held_until(tx, owner)
  local record = record_of(tx, owner)
  local claim = record and parse(record)
  if not ends or not claim or address_of(claim.tail) ~= address or claim.weight < weight then
    return 0
  end
  set(tx, 'extra', tx.extra - claim.weight + weight)
  claim.weight = weight
  write(tx, owner, claim)
  expire_and_grant(tx)
  return 1
end

-- Sets the size, and grants what is free to waiters. No holder loses its share.
--
--   returns  the size before, 0 if it was not known

local function resize(tx, _, size)
  expire_and_grant(tx)
  forget_size(tx)
  local before = tx.size
  set(tx, 'size', tonumber(size))
  extend_keys(tx, 0)
  expire_and_grant(tx)
  return before
end
