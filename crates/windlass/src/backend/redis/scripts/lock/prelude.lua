-- What all lock decisions share. The files of this folder are joined into one script, which takes
-- a batch of decisions in order:
--
--   KEYS[1]            the fence counter
--   KEYS[2 ..]         for each decision: the lock (the bare name; value = owner), its line
--                      (sorted set of waiting owners, by place), the asker's claim record
--   ARGV[1]            how many fences the batch may need
--   ARGV[2 ..]         for each decision: its letter, the owner, then its own arguments
--
-- Returns one reply for each decision. One script is one atomic step for Redis; a decision that
-- fails (a key of another type) is answered with an error and does not touch the others.
--
-- A claim record is "<fence> <ttl ms> <since> <channel> <claim> <note>", and lives as long as the
-- claim: its expiry is how a dead waiter is known. "Since" is when it was made, in the server's
-- milliseconds, for people to see; clients send how long ago that was. <channel> and <claim> are the
-- claim's address. The key of another waiter's record is the asker's with the other owner in it: same
-- hash tag, same slot.

local call = redis.call
local fence_key = KEYS[1]
local next_fence, last_fence, now_ms

-- A number higher than any before. Drawn for the whole batch at once; those left over are never
-- used. A new counter starts at the server's clock in microseconds, so that fences go on growing
-- even if the counter was lost with the server's memory.
local function draw()
  if not next_fence then
    local count = tonumber(ARGV[1])
    last_fence = call('INCRBY', fence_key, count)
    if last_fence == count then
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

-- Gives a lock that nobody has (or that is being given up) to the first waiter alive, and tells
-- that waiter alone. Returns the new holder, or false when nobody waits.
local function hand_over(lock, line, claim, owner)
  local prefix = string.sub(claim, 1, -#owner - 1)
  while true do
    local head = call('ZPOPMIN', line)[1]
    if not head then
      return false
    end
    local record = call('GET', prefix .. head)
    if record then
      local fence, ttl, channel, id = string.match(record, '^(%d+) (%d+) %d+ (%S+) (%d+)')
      call('SET', lock, head, 'PX', ttl)
      call('PUBLISH', channel, id .. ' ' .. fence)
      return head
    end
  end
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
