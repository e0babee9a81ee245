-- Decides what most batches consist of: free locks with an empty queue, and releases by holders for
-- whom nobody waits. One pass in order, without functions. One command looks for all queues. What
-- remains undecided, and what could fail, is left to the functions below; each decision on the same
-- lock behind it is then left as well, so that all decisions on a lock are taken in order.

local replies, undecided = {}, 0
-- How many arguments a decision has besides its owner, by its letter.
local arguments = {
  [97] = is_quorum_node and 1 or 0, [116] = is_quorum_node and 1 or 0, [65] = is_quorum_node and 4 or 3,
  [114] = 0, [82] = 1, [78] = 5, [66] = 0, [67] = 5, [81] = 5,
}
if count == 1 or not string.find(verbs, '[atr]') then
  undecided = count
else
  local pcall_redis, byte, left = redis.pcall, string.byte, {}
  local nobody_waits = pcall_redis('EXISTS', unpack(KEYS, count + 2, 2 * count + 1)) == 0
  local next_argument = count + 6
  for n = 1, count do
    local verb, lock, owner = byte(verbs, n), KEYS[n + 1], ARGV[n + 5]
    local reply
    if verb == 97 or verb == 116 then
      -- Without a fence but with a reply to "INCRBY": a new counter, or a server that takes no
      -- writes. "take_fence" deals with it.
      if not left[lock] and (next_fence or not last_fence)
        and (nobody_waits or pcall_redis('EXISTS', KEYS[count + 1 + n]) == 0) then
        if is_quorum_node and not next_fence then
          -- The counter is written back once, behind the loop.
          last_fence = tonumber(pcall_redis('GET', fence_key) or nil) or 0
          next_fence = last_fence > 0 and last_fence
        end
        local set = (next_fence or not is_quorum_node) and pcall_redis('SET', lock, owner, 'NX', 'PX', ARGV[3])
        if set and set.ok then
          if not next_fence then
            last_fence = pcall_redis('INCRBY', fence_key, ARGV[1])
            if type(last_fence) == 'number' and last_fence > tonumber(ARGV[1]) then
              next_fence = last_fence - ARGV[1]
            else
              call('DEL', lock)
            end
          end
          if next_fence then
            next_fence = next_fence + 1
            if is_quorum_node then
              next_fence = math.max(next_fence, tonumber(ARGV[next_argument]))
            end
            reply = next_fence
          end
        end
      end
    elseif verb == 114 and not left[lock] and pcall_redis('GET', lock) == owner
      and (nobody_waits or pcall_redis('EXISTS', KEYS[count + 1 + n]) == 0)
      and pcall_redis('DEL', lock) == 1 then
      reply = 1
    end
    if reply then
      replies[n] = reply
    else
      undecided = undecided + 1
      left[lock] = true
    end
    next_argument = next_argument + arguments[verb]
  end
  if is_quorum_node and next_fence then
    call('SET', fence_key, string.format('%.0f', next_fence))
  end
end
if undecided == 0 then
  return replies
end
