-- Fences: each is higher than all before it.

-- What the record of a waiter for a lock has as its fence on a node of a quorum, where its ticket
-- is none. No fence is 1.
local PLACEHOLDER = is_quorum_node and '1' or nil

-- Lua prints large numbers with an exponent; Redis and people do not.
local function digits(number)
  return string.format('%.0f', number)
end

-- Takes the next fence. A counter that is missing starts at the server's clock in microseconds, so
-- that fences go on growing even if the counter was lost with the server's memory.
--
-- On a node of a quorum: the number proposed if it is higher than all that this node has given, and
-- one more than the highest otherwise. So no number is given twice. A node that lost its memory
-- gets the counters of the others (join.lua) before it decides, so there the clock is for the very
-- first start alone.
--
-- Else one fence for each request of the batch is reserved in one command; those left over are
-- never used.
local function take_fence(proposal)
  if is_quorum_node then
    local counter = tonumber(call('GET', fence_key) or 0)
    if counter == 0 then
      local time = call('TIME')
      counter = time[1] * 1000000 + time[2]
    end
    counter = proposal and proposal > counter and proposal or counter + 1
    call('SET', fence_key, digits(counter))
    return counter
  end
  if not next_fence or next_fence >= last_fence then
    local count = next_fence and 1 or math.max(tonumber(ARGV[1]), 1)
    last_fence = call('INCRBY', fence_key, count)
    -- The fast path may have reserved as many from the same new counter.
    if last_fence <= 2 * count then
      local time = call('TIME')
      last_fence = call('INCRBY', fence_key, string.format('%.0f', time[1] * 1000000 + time[2]))
    end
    next_fence = last_fence - count
  end
  next_fence = next_fence + 1
  return next_fence
end

