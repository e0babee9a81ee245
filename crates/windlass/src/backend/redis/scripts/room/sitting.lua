-- One decision, from looking to writing down.

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
  if kind ~= 'sem' and at.count == 0 and at.waiting == 0 then
    at.size = 0 -- only a semaphore's is remembered
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
  for owner, record in pairs(at.written) do
    fields[#fields + 1] = owner
    fields[#fields + 1] = record
  end
  for field in pairs(at.changed) do
    fields[#fields + 1] = names[field]
    fields[#fields + 1] = digits(at[field])
  end
  if #fields > 0 then
    call('HSET', at.room, unpack(fields))
  end
  if at.extend then
    call('PEXPIREAT', at.room, digits(at.expires))
    call('PEXPIREAT', at.held, digits(at.expires))
    call('PEXPIREAT', at.line, digits(at.expires))
  end
  if at.news and (at.kind == 'elect' or at.kind == 'barrier') then
    call('PUBLISH', 'windlass:news:' .. at.room, '')
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

local function hold(at, owner, weight, ttl)
  if at.bare then
    call('ZADD', at.held, '+inf', ' ')
    at.bare, at.extend = false, true
  end
  call('ZADD', at.held, digits(now + ttl), owner)
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

local function leave_line(at, owner)
  call('ZREM', at.line, owner)
  set(at, 'waiting', at.waiting - 1)
end

-- Removes dead holders, and gives what is free to the first waiters alive.
local function settle(at)
  while true do
    local dead = call('ZRANGEBYSCORE', at.held, '-inf', digits(now), 'LIMIT', 0, 100)
    for i = 1, #dead do
      let_go(at, dead[i])
    end
    if #dead < 100 then break end
  end
  if at.open ~= 0 and at.count == 0 then
    set(at, 'open', 0)
  end
  while at.waiting > 0 do
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
      local channel, id = string.match(claim.rest, '^(%S+) (%d+)')
      call('PUBLISH', channel, id .. ' 0')
    elseif not fits(at, 1) then
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
      claim.ends, claim.since = 0, digits(now)
      write(at, head, claim)
      hold(at, head, claim.weight, claim.ttl)
      local channel, id = string.match(claim.rest, '^(%S+) (%d+)')
      call('PUBLISH', channel, id .. ' ' .. digits(claim.fence))
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

-- The ms left to the holder whose claim ends first, and who that is.
local function first_to_end(at)
  local first = call('ZRANGE', at.held, 0, 0, 'WITHSCORES')
  return tonumber(first[2]) - now, first[1]
end
