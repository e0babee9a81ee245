-- What the decisions share.

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
local function recheck_after(lock, queue, claim, owner, holder)
  local left = held_for(lock)
  local random = string.match(holder, ':%d+:(%x+)$')
  local prefix = string.sub(claim, 1, -#owner - 1)
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

-- The queue must outlive every claim in it.
local function extend_queue(queue, ttl)
  if call('PTTL', queue) < tonumber(ttl) then
    call('PEXPIRE', queue, ttl)
  end
end
