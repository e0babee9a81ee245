-- Decisions on one lock: what they share, then one function for each verb. "prefix" is what the keys
-- of all records of the lock begin with.

-- Decisions that only a node of a quorum takes: quorum_node/lock.lua defines them.
local confirm, requeue

local now_ms
-- The server's clock.
local function server_ms()
  if not now_ms then
    local time = call('TIME')
    now_ms = time[1] * 1000 + math.floor(time[2] / 1000)
  end
  return now_ms
end

-- Writes a claim record that lives for "expires_in" ms, or the ttl.
local function write_record(claim, fence, ttl, age, tail, expires_in)
  local since = digits(server_ms() - age)
  call('SET', claim, fence .. ' ' .. ttl .. ' ' .. since .. ' ' .. tail, 'PX', expires_in or ttl)
end

-- The claim's address in its tail.
local function address_of(tail)
  return string.match(tail, '^%S+ %d+')
end

-- Whether another claim of the same owner has replaced the one at that address.
local function is_replaced(claim, address)
  local record = call('GET', claim)
  return record and string.match(record, '^%d+ %d+ %d+ (%S+ %d+)') ~= address
end

-- The ms left to a lock's key; -1 if it never expires.
local function held_for(lock)
  return call('PTTL', lock)
end

-- The ms after which a waiter rechecks by itself; -1 for its heartbeat. That is when the holder's
-- claim ends. But a holder from another library releases without notifying anybody, so the first
-- waiter then rechecks every now and then; the others the more rarely the further back they are, in
-- case those ahead of them die. All of them together recheck a few times as often as the first
-- alone. A holder of ours may have no record yet, but has a random owner then.
local function recheck_after(lock, queue, prefix, owner, holder)
  local left = held_for(lock)
  local random = string.match(holder, ':%d+:(%x+)$')
  if (random and #random == 32) or call('EXISTS', prefix .. holder) == 1 then
    return left
  end
  local ahead = redis.pcall('ZRANK', queue, owner)
  local pause = 20 * (1 + (type(ahead) == 'number' and ahead or 0))
  if left < 0 or left > pause then
    return pause
  end
  return left
end

-- The queue must outlive every claim in it. "is_new" says whether it has no expiry yet; nil if that is
-- not known. Redis 7.0, the first to state its version, is also the first to know "GT".
local function extend_queue(queue, ttl, is_new)
  if is_new == false and redis.REDIS_VERSION_NUM then
    call('PEXPIRE', queue, ttl, 'GT')
  elseif is_new or call('PTTL', queue) < tonumber(ttl) then
    call('PEXPIRE', queue, ttl)
  end
end

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
-- Inner calls when free: EXISTS, SET (and one INCRBY for the batch). To enqueue, if others wait:
-- EXISTS, GET, INCRBY, ZADD, TIME, SET, PEXPIRE, PTTL.

local function grant(lock, claim, owner, ttl, flags, tail, proposal)
  local fence = take_fence(proposal)
  call('SET', lock, owner, 'PX', ttl)
  if string.find(flags, 'r', 1, true) then
    write_record(claim, digits(fence), ttl, 0, tail)
  end
  return fence
end

local function acquire(lock, queue, prefix, owner, ttl, flags, tail, proposal)
  local claim = prefix .. owner
  proposal = is_quorum_node and tonumber(proposal)
  local found = existing or call('EXISTS', lock, queue)
  if found == 0 then
    return grant(lock, claim, owner, ttl, flags, tail, proposal)
  end

  local holder = call('GET', lock)
  local is_new_queue
  if holder then
    is_new_queue = found == 1
  else
    holder = hand_over(lock, queue, prefix)
  end
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
    holder, is_new_queue = hand_over(lock, queue, prefix), nil
  end
  if not holder then
    return grant(lock, claim, owner, ttl, flags, tail, proposal)
  end

  if string.find(flags, 'h', 1, true) and held_for(lock) == -1 then
    call('PEXPIRE', lock, ttl)
  end
  if string.find(flags, 'q', 1, true) then
    -- A node of a quorum takes a number only if it needs one.
    local ticket = is_quorum_node and tonumber(call('ZSCORE', queue, owner) or nil)
    if not ticket then
      ticket = take_fence(proposal)
      if call('ZADD', queue, 'NX', digits(ticket), owner) == 0 then
        ticket = tonumber(call('ZSCORE', queue, owner))
      end
    end
    write_record(claim, PLACEHOLDER or digits(ticket), ttl, 0, tail)
    extend_queue(queue, ttl, is_new_queue)
    return {'queued', ticket, recheck_after(lock, queue, prefix, owner, holder)}
  end
  return {'busy', holder, held_for(lock), call('GET', prefix .. holder), server_ms()}
end

-- Extends a claim, held or waiting.
--
--   flags    any of = to respect a later claim of the same owner that has replaced this one,
--            ! to rewrite the record (and so to replace an earlier claim)
--   returns  1 if held, {'waiting', ms until the owner should recheck}, 0 if neither
--
-- Atomic because a claim that is no longer the owner's must not be extended.
-- Inner calls when held: GET, PEXPIRE, PEXPIRE (SET instead, the first time).

local function renew(lock, queue, prefix, owner, ttl, flags, fence, age, tail)
  local claim = prefix .. owner
  local holder = call('GET', lock) or hand_over(lock, queue, prefix)
  local held = holder == owner
  if not held and not call('ZSCORE', queue, owner) then
    return 0
  end
  if string.find(flags, '=', 1, true) and is_replaced(claim, address_of(tail)) then
    return 0
  end
  if not held then
    write_record(claim, PLACEHOLDER or fence, ttl, age, tail)
    extend_queue(queue, ttl, false)
    return {'waiting', recheck_after(lock, queue, prefix, owner, holder)}
  end
  call('PEXPIRE', lock, ttl)
  -- An existing record keeps its fence and its time.
  if string.find(flags, '!', 1, true) or call('PEXPIRE', claim, ttl) == 0 then
    write_record(claim, fence, ttl, age, tail)
  end
  return 1
end

-- Gives up what the owner has: the lock, which goes to the first living waiter in the same step, or
-- its place in the queue.
--
--   address  the claim's, or "" if no other claim can have this owner; a later claim of the same
--            owner is left alone
--   returns  1 if it was held, 2 if it was waiting, 0 if neither
--
-- Atomic because only the owner's own lock may be released.
-- Inner calls when nobody waits: GET, ZPOPMIN, DEL (in a batch, EXISTS for all queues). A hand-over: GET, ZPOPMIN, GET, PTTL, SET,
-- PUBLISH, DEL, however many wait. In a cluster, ZRANGE and ZREM instead of ZPOPMIN.

local function release(lock, queue, prefix, owner, address)
  local claim = prefix .. owner
  local holder = call('GET', lock)
  local ours = address == '' or not is_replaced(claim, address)
  if ours and holder == owner then
    if hand_over(lock, queue, prefix) then
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
    hand_over(lock, queue, prefix)
  end
  return waiting * 2
end

-- Takes the lock from its holder, and grants it to the first living waiter. The owner is empty.
--
--   returns  {'broken', old holder or false, its ms left, its record or false, server's time in ms}
--
-- Atomic so that the holder that is named is the one that lost the lock.

local function break_lock(lock, queue, prefix)
  local holder = call('GET', lock)
  local left = held_for(lock)
  local record = holder and call('GET', prefix .. holder)
  local next_holder = hand_over(lock, queue, prefix)
  if holder then
    call('DEL', prefix .. holder)
    if not next_holder then
      call('DEL', lock)
    end
  end
  return {'broken', holder, left, record, server_ms()}
end
