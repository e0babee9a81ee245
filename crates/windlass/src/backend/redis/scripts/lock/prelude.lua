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
-- A claim record is "<fence> <ttl ms> <age ms> <channel> <claim> <note>", and lives as long as the
-- claim: its expiry is how a dead waiter is known. The key of another waiter's record is the asker's
-- with the other owner in it: same hash tag, same slot.

local call = redis.call
local fence_key = KEYS[1]
local next_fence, last_fence

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
