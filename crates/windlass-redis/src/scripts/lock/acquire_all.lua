-- Grants several locks at once, or none. Behind lock/prelude.lua and lock/hand_over.lua.
--
--   KEYS     the fence counter, then for each lock: the lock, its queue, the owner's claim record
--   ARGV     how many, ttl ms, "r" to write the records now or "", then for each: the owner, the
--            record's tail
--   returns  the fences, if all were free
--            {'busy', which (from 0), holder, its ms left, its record or false, server's ms}
--
-- Atomic because a client that holds some while others hold the rest may wait for ever.

local count, ttl = tonumber(ARGV[1]), ARGV[2]
may_migrate = string.find(fence_key, '{', 1, true)
local time = call('TIME')
local now = string.format('%.0f', time[1] * 1000 + math.floor(time[2] / 1000))

for i = 1, count do
  local lock, queue, claim = KEYS[3 * i - 1], KEYS[3 * i], KEYS[3 * i + 1]
  local owner = ARGV[2 * i + 2]
  if call('EXISTS', lock, queue) > 0 then
    -- It may be free, with only dead waiters left in the queue.
    local prefix = string.sub(claim, 1, -#owner - 1)
    local holder = call('GET', lock) or hand_over(lock, queue, prefix)
    if holder then
      local record = call('GET', prefix .. holder)
      return {'busy', i - 1, holder, call('PTTL', lock), record, tonumber(now)}
    end
  end
end

local last = call('INCRBY', KEYS[1], count)
if last <= 2 * count then
  -- A new counter: see "take_fence" in fence.lua.
  last = call('INCRBY', KEYS[1], string.format('%.0f', time[1] * 1000000 + time[2]))
end
local fences = {}
for i = 1, count do
  fences[i] = last - count + i
  call('SET', KEYS[3 * i - 1], ARGV[2 * i + 2], 'PX', ttl)
  if ARGV[3] == 'r' then
    local record = string.format('%.0f', fences[i]) .. ' ' .. ttl .. ' ' .. now .. ' ' .. ARGV[2 * i + 3]
    call('SET', KEYS[3 * i + 1], record, 'PX', ttl)
  end
end
return fences
