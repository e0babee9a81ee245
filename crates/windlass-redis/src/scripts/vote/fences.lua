-- The source of numbers on one node of a quorum, in the place of fences.lua: see lock_common.lua.

local now_ms, proposal
-- What stands in the record of one who waits for a lock, in the place of a number: others draw higher
-- ones than its place while it waits, so it draws its own when it holds. Nothing else is numbered 1.
local PLACE = '1'

-- Lua prints large numbers with an exponent; Redis and people do not.
local function digits(number)
  return string.format('%.0f', number)
end

-- A counter that is missing starts at the server's clock in microseconds. A node whose memory was
-- lost is told the others' counters before it votes, so this is for the first start alone.
local function draw()
  local counter = tonumber(call('GET', fence_key) or 0)
  if counter == 0 then
    local time = call('TIME')
    counter = time[1] * 1000000 + time[2]
  end
  counter = proposal and proposal > counter and proposal or counter + 1
  call('SET', fence_key, digits(counter))
  return counter
end

-- The server's clock.
local function server_ms()
  if not now_ms then
    local time = call('TIME')
    now_ms = time[1] * 1000 + math.floor(time[2] / 1000)
  end
  return now_ms
end
