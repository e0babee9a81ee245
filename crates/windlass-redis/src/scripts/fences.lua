-- What the decisions share that were not among the common ones: a source of fences, and the time.

local now_ms
-- A place in line is the fence to be, and stands in the record as such.
local PLACE = nil

-- A number higher than any before. Drawn for the whole batch at once, with one for each request;
-- those left over are never used. A new counter starts at the server's clock in microseconds, so
-- that fences go on growing even if the counter was lost with the server's memory.
local function draw()
  if not next_fence or next_fence >= last_fence then
    local count = next_fence and 1 or math.max(tonumber(ARGV[1]), 1)
    last_fence = call('INCRBY', fence_key, count)
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

