-- Grants several locks at once, or none.
--
-- Behind "hand_over" of lock/hand_over.lua.
--
--   KEYS: the fence counter, then for each lock: the lock, its line, the asker's claim record
--   ARGV: how many, ttl ms, "r" to record the claims now or "", then for each: the owner, the rest of
--         the claim record (all but the fence)
--   returns: the fences, if all were free
--            {0, which, holder or false, its ms left, its record or false, server's time in ms}
--
-- Atomic because whoever holds some of them while others are taken may wait for ever.

local count, ttl = tonumber(ARGV[1]), ARGV[2]
local time = call('TIME')
local now = string.format('%.0f', time[1] * 1000 + math.floor(time[2] / 1000))

for i = 1, count do
  local lock, line, claim = KEYS[3 * i - 1], KEYS[3 * i], KEYS[3 * i + 1]
  local owner = ARGV[2 * i + 2]
  if call('EXISTS', lock, line) > 0 then
    -- Nobody may have it, and only dead waiters be left.
    local holder = call('GET', lock) or hand_over(lock, line, claim, owner)
    if holder then
      local record = call('GET', string.sub(claim, 1, -#owner - 1) .. holder)
      return {0, i - 1, holder, call('PTTL', lock), record, tonumber(now)}
    end
  end
end

local last = call('INCRBY', KEYS[1], count)
if last <= 2 * count then
  -- A new counter: see "draw" in fences.lua.
  last = call('INCRBY', KEYS[1], string.format('%.0f', time[1] * 1000000 + time[2]))
end
local fences = {}
for i = 1, count do
  fences[i] = last - count + i
  call('SET', KEYS[3 * i - 1], ARGV[2 * i + 2], 'PX', ttl)
  if ARGV[3] == 'r' then
    local front, rest = string.match(ARGV[2 * i + 3], '^(%d+ )%d+(.*)$')
    call('SET', KEYS[3 * i + 1], string.format('%.0f', fences[i]) .. ' ' .. front .. now .. rest, 'PX', ttl)
  end
end
return fences
