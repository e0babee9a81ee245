-- One decision, from reading the pool to writing back what changed.

-- Decisions that only a node of a quorum takes: quorum_node/pool.lua defines them.
local confirm, requeue

-- No decision does more than this many of anything, as the server does nothing else meanwhile. A
-- waiter left over gets the order to recheck, and its request goes on from there.
local AT_ONCE = 1000

-- Removes the records of holders whose set is gone.
local function remove_holder_records(tx)
  local all = call('HGETALL', tx.pool)
  for i = 1, #all, 2 do
    local ends = string.match(all[i + 1], '^%d+ %d+ %d+ (%d+) ')
    if string.sub(all[i], 1, 1) ~= ' ' and ends == '0' then
      call('HDEL', tx.pool, all[i])
      tx.records[all[i]] = nil
    end
  end
  if tx.extra ~= 0 then
    tx.extra = 0
    tx.changed.extra = true
  end
end

-- Reads the pool, and the claim of the owner.
local function begin(pool, held, queue, kind, owner)
  local seen = known_fields
    or call('HMGET', pool, ' size', ' extra', ' line', ' overtook', ' open', ' until', owner)
  local tx = {
    pool = pool, held = held, queue = queue, kind = kind, changed = {}, written = {}, notify = false,
    records = {[owner] = seen[7]},
    size = tonumber(seen[1] or 0),
    extra = tonumber(seen[2] or 0),
    waiting = tonumber(seen[3] or 0),
    overtook = tonumber(seen[4] or 0),
    open = tonumber(seen[5] or 0),
    expires = tonumber(seen[6] or 0),
    count = known_count or call('ZCARD', held),
  }
  tx.no_set = tx.count == 0
  tx.count = math.max(tx.count - 1, 0)
  if not seen[6] and (tx.count > 0 or call('EXISTS', queue) == 1) then
    -- The pool was deleted or evicted, and with it what its claims weigh: they are void, and their
    -- owners find out at their next renewal.
    call('DEL', held, queue)
    tx.no_set, tx.count = true, 0
  elseif seen[6] and tx.no_set then
    -- The holders were deleted or evicted, or nobody has held yet.
    remove_holder_records(tx)
  end
  return tx
end

local function set(tx, field, value)
  tx[field] = value
  tx.changed[field] = true
end

local FIELDS = {
  size = ' size', extra = ' extra', waiting = ' line', overtook = ' overtook', open = ' open',
  expires = ' until',
}

-- Writes what has changed, and notifies observers.
local function commit(tx)
  local fields = {}
  for field in pairs(tx.changed) do
    fields[#fields + 1] = FIELDS[field]
    fields[#fields + 1] = digits(tx[field])
  end
  for owner, record in pairs(tx.written) do
    fields[#fields + 1] = owner
    fields[#fields + 1] = record
  end
  -- Lua passes a few thousand arguments at most.
  for i = 1, #fields, AT_ONCE do
    call('HSET', tx.pool, unpack(fields, i, math.min(i + AT_ONCE - 1, #fields)))
  end
  if tx.extend then
    call('PEXPIREAT', tx.pool, digits(tx.expires))
    call('PEXPIREAT', tx.held, digits(tx.expires))
    call('PEXPIREAT', tx.queue, digits(tx.expires))
  end
  if tx.notify and (tx.kind == 'elect' or tx.kind == 'barrier') then
    notify(tx.pool)
  end
end

-- The keys must outlive every claim, and a semaphore's size for some time after.
local function extend_keys(tx, ttl)
  local retention = tx.kind == 'sem' and 86400000 or 60000
  if tx.expires < now + ttl + retention / 2 then
    if tx.expires == 0 then
      tx.changed.extra, tx.changed.waiting = true, true
    end
    set(tx, 'expires', now + ttl + retention)
    tx.extend = true
  end
end

-- The parts of a claim record.
local function parse(record)
  local fence, weight, ttl, ends, since, tail =
    string.match(record, '^(%d+) (%d+) (%d+) (%d+) (%d+) (.*)$')
  return {
    fence = tonumber(fence), weight = tonumber(weight), ttl = tonumber(ttl), ends = tonumber(ends),
    since = since, tail = tail,
  }
end

-- "commit" stores it.
local function write(tx, owner, claim)
  local record = digits(claim.fence) .. ' ' .. digits(claim.weight) .. ' ' ..
    digits(claim.ttl) .. ' ' .. digits(claim.ends) .. ' ' .. claim.since .. ' ' .. claim.tail
  tx.records[owner], tx.written[owner] = record, record
end

-- An owner's claim record as it is now, or false.
local function record_of(tx, owner)
  if tx.records[owner] == nil then
    tx.records[owner] = call('HGET', tx.pool, owner)
  end
  return tx.records[owner]
end

local function erase(tx, owner)
  call('HDEL', tx.pool, owner)
  tx.records[owner], tx.written[owner] = false, nil
end

-- The claim's address in its tail.
local function address_of(tail)
  return string.match(tail, '^%S+ %d+')
end

local function fits(tx, weight)
  return tx.open == 0 and tx.count + tx.extra + weight <= tx.size
end

local function add_holder(tx, owner, weight, ends)
  if tx.no_set then
    call('ZADD', tx.held, '+inf', ' ')
    tx.no_set, tx.extend = false, true
  end
  call('ZADD', tx.held, digits(ends), owner)
  tx.count, tx.first = tx.count + 1, nil
  if weight > 1 then
    set(tx, 'extra', tx.extra + weight - 1)
  end
  if tx.kind == 'barrier' and tx.count + tx.extra == tx.size then
    set(tx, 'open', take_fence(tx.proposal))
  end
  tx.notify = true
end

local function remove_holder(tx, owner)
  call('ZREM', tx.held, owner)
  tx.count, tx.first = tx.count - 1, nil
  tx.notify = true
  local record = record_of(tx, owner)
  if record then
    erase(tx, owner)
    local weight = parse(record).weight
    if weight > 1 then
      set(tx, 'extra', tx.extra - weight + 1)
    end
  end
end

-- Notifies a claim that it holds now, or (without a fence) that it should recheck. A hint: if it is
-- denied or lost, the waiter's timer repairs it, and the decision stands.
local function wake(claim, fence)
  local channel, id = string.match(claim.tail, '^(%S+) (%d+)')
  redis.pcall('PUBLISH', channel, id .. ' ' .. digits(fence or 0))
end

local function dequeue(tx, owner)
  call('ZREM', tx.queue, owner)
  set(tx, 'waiting', tx.waiting - 1)
end

-- The holder whose claim ends first and when that is, as long as the holders do not change.
local function first_holder(tx)
  tx.first = tx.first or call('ZRANGE', tx.held, 0, 0, 'WITHSCORES')
  return tx.first[1], tonumber(tx.first[2])
end

-- Removes expired holders, and grants what is free to the first living waiters.
local function expire_and_grant(tx)
  local _, first_end = first_holder(tx)
  if first_end and first_end <= now then
    local dead = call('ZRANGEBYSCORE', tx.held, '-inf', digits(now), 'LIMIT', 0, AT_ONCE)
    for i = 1, #dead do
      remove_holder(tx, dead[i])
    end
  end
  if tx.count == 0 then
    -- Nobody holds, so nothing is taken, whatever the fields say.
    if tx.open ~= 0 then
      set(tx, 'open', 0)
    end
    if tx.extra ~= 0 then
      set(tx, 'extra', 0)
    end
  end
  local done = 0
  while tx.waiting > 0 do
    done = done + 1
    local head = call('ZRANGE', tx.queue, 0, 0)[1]
    if not head then
      set(tx, 'waiting', 0)
      break
    end
    local record = record_of(tx, head)
    local claim = record and parse(record)
    if claim and claim.weight > tx.size then
      -- It would wait for ever, and all behind it. When it rechecks, it gets the reason.
      dequeue(tx, head)
      erase(tx, head)
      wake(claim)
    elseif not fits(tx, 1) then
      break
    elseif done > AT_ONCE then
      if claim then
        wake(claim)
      end
      break
    elseif not claim or claim.ends <= now then
      dequeue(tx, head)
      erase(tx, head)
    elseif fits(tx, claim.weight) then
      dequeue(tx, head)
      if claim.fence <= tx.overtook then
        claim.fence = take_fence(tx.proposal)
        set(tx, 'overtook', claim.fence)
      end
      -- Until its own claim ends, and no longer: the waiter may have died together with the holder
      -- before it, and only its next heartbeat shows that it lives.
      add_holder(tx, head, claim.weight, claim.ends)
      claim.ends, claim.since = 0, digits(now)
      write(tx, head, claim)
      wake(claim, claim.fence)
    else
      break
    end
  end
end

-- The end of an owner's claim as a holder, if it is alive.
local function held_until(tx, owner)
  local ends = tonumber(call('ZSCORE', tx.held, owner) or 0)
  return ends > now and ends
end

-- The holder whose claim ends first, and the ms left to it.
local function first_to_expire(tx)
  local first, ends = first_holder(tx)
  return first, math.max((ends or 0) - now, 0)
end

-- The ms after which a waiter rechecks by itself: when the first holder's claim ends. If there is
-- capacity for it and only waiters ahead block it, then when the first of them expires.
local function recheck_after(tx, owner, weight)
  local _, left = first_to_expire(tx)
  if fits(tx, weight) then
    local head = call('ZRANGE', tx.queue, 0, 0)[1]
    local record = head and head ~= owner and record_of(tx, head)
    if record then
      left = math.min(left, math.max(parse(record).ends - now, 0))
    end
  end
  return left
end

-- Only a semaphore keeps its size when nobody holds or waits.
local function forget_size(tx)
  if tx.kind ~= 'sem' and tx.count == 0 and tx.waiting == 0 then
    tx.size = 0
  end
end
