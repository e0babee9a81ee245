-- One decision, from looking to writing down.

-- What was asked for must be done before the server does anything else: so no decision does more than
-- this many of anything at once. Whoever is left over is told to ask, and goes on from there.
local MANY = 1000

-- Removes the records of holders whose set is gone.
local function void_holders(at)
  local all = call('HGETALL', at.room)
  for i = 1, #all, 2 do
    local ends = string.match(all[i + 1], '^%d+ %d+ %d+ (%d+) ')
    if string.sub(all[i], 1, 1) ~= ' ' and ends == '0' then
      call('HDEL', at.room, all[i])
      at.records[all[i]] = nil
    end
  end
  if at.extra ~= 0 then
    at.extra = 0
    at.changed.extra = true
  end
end

-- What is known of the room, and of the claim of the one who asks.
local function begin(room, held, line, kind, owner)
  local seen = call('HMGET', room, ' size', ' extra', ' line', ' overtook', ' open', ' until', owner)
  local at = {
    room = room, held = held, line = line, kind = kind, changed = {}, written = {}, news = false,
    records = {[owner] = seen[7]},
    size = tonumber(seen[1] or 0),
    extra = tonumber(seen[2] or 0),
    waiting = tonumber(seen[3] or 0),
    overtook = tonumber(seen[4] or 0),
    open = tonumber(seen[5] or 0),
    expires = tonumber(seen[6] or 0),
    count = call('ZCARD', held),
  }
  at.bare = at.count == 0
  at.count = math.max(at.count - 1, 0)
  if not seen[6] and (at.count > 0 or call('EXISTS', line) == 1) then
    -- The room was deleted or evicted, and with it what its claims weigh: they are void, and their
    -- owners will be told.
    call('DEL', held, line)
    at.bare, at.count = true, 0
  elseif seen[6] and at.bare then
    -- Those who hold were deleted or evicted, or nobody has held yet.
    void_holders(at)
  end
  return at
end

local function set(at, field, value)
  at[field] = value
  at.changed[field] = true
end

local names = {
  size = ' size', extra = ' extra', waiting = ' line', overtook = ' overtook', open = ' open',
  expires = ' until',
}

-- Writes down what has changed, and tells those who watch.
local function finish(at)
  local fields = {}
  for field in pairs(at.changed) do
    fields[#fields + 1] = names[field]
    fields[#fields + 1] = digits(at[field])
  end
  for owner, record in pairs(at.written) do
    fields[#fields + 1] = owner
    fields[#fields + 1] = record
  end
  -- Lua passes a few thousand arguments at most.
  for i = 1, #fields, MANY do
    call('HSET', at.room, unpack(fields, i, math.min(i + MANY - 1, #fields)))
  end
  if at.extend then
    call('PEXPIREAT', at.room, digits(at.expires))
    call('PEXPIREAT', at.held, digits(at.expires))
    call('PEXPIREAT', at.line, digits(at.expires))
  end
  if at.news and (at.kind == 'elect' or at.kind == 'barrier') then
    redis.pcall('PUBLISH', 'windlass:news:' .. at.room, '')
  end
end

-- The keys must outlive every claim, and the size be remembered for some time after.
local function keep(at, ttl)
  local remember = at.kind == 'sem' and 86400000 or 60000
  if at.expires < now + ttl + remember / 2 then
    if at.expires == 0 then
      at.changed.extra, at.changed.waiting = true, true
    end
    set(at, 'expires', now + ttl + remember)
    at.extend = true
  end
end

-- The parts of a claim.
local function read(record)
  local fence, weight, ttl, ends, since, rest =
    string.match(record, '^(%d+) (%d+) (%d+) (%d+) (%d+) (.*)$')
  return {
    fence = tonumber(fence), weight = tonumber(weight), ttl = tonumber(ttl), ends = tonumber(ends),
    since = since, rest = rest,
  }
end

-- Written down at the end, together with all else.
local function write(at, owner, claim)
  local record = digits(claim.fence) .. ' ' .. digits(claim.weight) .. ' ' ..
    digits(claim.ttl) .. ' ' .. digits(claim.ends) .. ' ' .. claim.since .. ' ' .. claim.rest
  at.records[owner], at.written[owner] = record, record
end

-- An owner's claim as it is now, or false.
local function record_of(at, owner)
  if at.records[owner] == nil then
    at.records[owner] = call('HGET', at.room, owner)
  end
  return at.records[owner]
end

local function erase(at, owner)
  call('HDEL', at.room, owner)
  at.records[owner], at.written[owner] = false, nil
end

local function address(rest)
  return string.match(rest, '^%S+ %d+')
end

local function fits(at, weight)
  return at.open == 0 and at.count + at.extra + weight <= at.size
end

local function hold(at, owner, weight, ends)
  if at.bare then
    call('ZADD', at.held, '+inf', ' ')
    at.bare, at.extend = false, true
  end
  call('ZADD', at.held, digits(ends), owner)
  at.count = at.count + 1
  if weight > 1 then
    set(at, 'extra', at.extra + weight - 1)
  end
  if at.kind == 'barrier' and at.count + at.extra == at.size then
    set(at, 'open', draw())
  end
  at.news = true
end

local function let_go(at, owner)
  call('ZREM', at.held, owner)
  at.count = at.count - 1
  at.news = true
  local record = record_of(at, owner)
  if record then
    erase(at, owner)
    local weight = read(record).weight
    if weight > 1 then
      set(at, 'extra', at.extra - weight + 1)
    end
  end
end

-- Tells a claim that it holds now, or (without a fence) to ask. A hint: if it is denied or gets lost,
-- a timer repairs it, and what has been decided stands.
local function wake(claim, fence)
  local channel, id = string.match(claim.rest, '^(%S+) (%d+)')
  redis.pcall('PUBLISH', channel, id .. ' ' .. digits(fence or 0))
end

local function leave_line(at, owner)
  call('ZREM', at.line, owner)
  set(at, 'waiting', at.waiting - 1)
end

-- Removes dead holders, and gives what is free to the first waiters alive.
local function settle(at)
  local dead = call('ZRANGEBYSCORE', at.held, '-inf', digits(now), 'LIMIT', 0, MANY)
  for i = 1, #dead do
    let_go(at, dead[i])
  end
  if at.count == 0 then
    -- Nobody holds: whatever was written down, nothing is taken.
    if at.open ~= 0 then
      set(at, 'open', 0)
    end
    if at.extra ~= 0 then
      set(at, 'extra', 0)
    end
  end
  local done = 0
  while at.waiting > 0 do
    done = done + 1
    local head = call('ZRANGE', at.line, 0, 0)[1]
    if not head then
      set(at, 'waiting', 0)
      break
    end
    local record = record_of(at, head)
    local claim = record and read(record)
    if claim and claim.weight > at.size then
      -- It would wait for ever, and all behind it. Told to ask, it hears why.
      leave_line(at, head)
      erase(at, head)
      wake(claim)
    elseif not fits(at, 1) then
      break
    elseif done > MANY then
      if claim then
        wake(claim)
      end
      break
    elseif not claim or claim.ends <= now then
      leave_line(at, head)
      erase(at, head)
    elseif fits(at, claim.weight) then
      leave_line(at, head)
      if claim.fence <= at.overtook then
        claim.fence = draw()
        set(at, 'overtook', claim.fence)
      end
      -- Until its own claim ends, and no longer: it may have died in line together with the one before
      -- it, and lives on only by its next sign of life.
      hold(at, head, claim.weight, claim.ends)
      claim.ends, claim.since = 0, digits(now)
      write(at, head, claim)
      wake(claim, claim.fence)
    else
      break
    end
  end
end

-- The end of an owner's claim as a holder, if it is alive.
local function held_until(at, owner)
  local ends = tonumber(call('ZSCORE', at.held, owner) or 0)
  return ends > now and ends
end

-- The holder whose claim ends first, and the ms left to it.
local function first_to_end(at)
  local first = call('ZRANGE', at.held, 0, 0, 'WITHSCORES')
  return first[1], math.max((tonumber(first[2]) or 0) - now, 0)
end

-- The ms after which a waiter should look for itself: when the first holder's claim ends. If there is
-- room for it, and only those ahead of it are in its way, then when the first of them is dead.
local function look_after(at, owner, weight)
  local _, left = first_to_end(at)
  if fits(at, weight) then
    local head = call('ZRANGE', at.line, 0, 0)[1]
    local record = head and head ~= owner and record_of(at, head)
    if record then
      left = math.min(left, math.max(read(record).ends - now, 0))
    end
  end
  return left
end

-- Only a semaphore's size is remembered when nobody needs it.
local function forget_size(at)
  if at.kind ~= 'sem' and at.count == 0 and at.waiting == 0 then
    at.size = 0
  end
end
