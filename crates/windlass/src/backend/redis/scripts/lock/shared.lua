-- What the decisions share that were not among the common ones.

local now_ms

-- A number higher than any before. Drawn for the whole batch at once; those left over are never
-- used. A new counter starts at the server's clock in microseconds, so that fences go on growing
-- even if the counter was lost with the server's memory.
local function draw()
  if not next_fence then
    local count = tonumber(ARGV[1])
    local last_fence = call('INCRBY', fence_key, count)
    if last_fence <= 2 * count then
      local time = call('TIME')
      last_fence = call('INCRBY', fence_key, string.format('%.0f', time[1] * 1000000 + time[2]))
    end
    next_fence = last_fence - count
  end
  next_fence = next_fence + 1
  return next_fence
end

-- Lua prints large numbers with an exponent; Redis and people do not.
local function digits(number)
  return string.format('%.0f', number)
end

-- The server's clock.
local function server_ms()
  if not now_ms then
    local time = call('TIME')
    now_ms = time[1] * 1000 + math.floor(time[2] / 1000)
  end
  return now_ms
end

-- Writes a record, with the age that the client sent made a time of the server's.
local function write_record(claim, record, ttl)
  local front, age, rest = string.match(record, '^(%d+ %d+ )(%d+)(.*)$')
  call('SET', claim, front .. digits(server_ms() - age) .. rest, 'PX', ttl)
end

-- The address in a record.
local function address_of(record)
  return string.match(record, '^%d+ %d+ %d+ (%S+ %d+)')
end

-- Whether another claim of the same owner has taken the place of the one at that address.
local function taken_over(claim, address)
  local record = call('GET', claim)
  return record and address_of(record) ~= address
end

-- The time left to a key, in milliseconds; -1 for never.
local function held_for(lock)
  return call('PTTL', lock)
end

-- The line must outlive every claim in it.
local function keep_line(line, ttl)
  if call('PTTL', line) < tonumber(ttl) then
    call('PEXPIRE', line, ttl)
  end
end
