-- Decides what most batches consist of: a free lock with an empty queue, and a release by a holder
-- whose owner is random. One flat pass without functions, because each function that a script
-- defines costs as much as a command. What remains undecided, and what could fail, is left to the
-- functions below.
--
-- All decisions of a batch were under way at once, so deciding the common ones first is one of the
-- orders in which they may have arrived. But once a decision on a lock is left undecided, so is
-- each release of that lock behind it: a release must not overtake a request of the same owner.

local replies, undecided, left = {}, {}, {}
do
  local pcall_redis = redis.pcall
  local arguments = {
    acquire = is_quorum_node and 4 or 3, renew = 5, release = 1, break_lock = 0, confirm = 5, requeue = 5,
  }
  local key, arg, n, last = 2, 2, 0, #ARGV
  while arg < last do
    local verb, owner = ARGV[arg], ARGV[arg + 1]
    local lock, queue, claim = KEYS[key], KEYS[key + 1], KEYS[key + 2]
    local reply
    if verb == 'acquire' then
      -- ttl, flags, tail; on a node of a quorum, proposal
      if ARGV[arg + 3] == 'q' or ARGV[arg + 3] == '' then
        if call('EXISTS', lock, queue) == 0 then
          if not last_fence then
            if is_quorum_node then
              -- The counter is written back once, behind the loop.
              last_fence = tonumber(pcall_redis('GET', fence_key) or nil)
              next_fence = last_fence
            else
              last_fence = pcall_redis('INCRBY', fence_key, ARGV[1])
              -- Otherwise a new counter, or a server that takes no writes: "take_fence" deals with
              -- it.
              if type(last_fence) == 'number' and last_fence > tonumber(ARGV[1]) then
                next_fence = last_fence - ARGV[1]
              end
            end
          end
          if next_fence then
            call('SET', lock, owner, 'PX', ARGV[arg + 2])
            next_fence = next_fence + 1
            if is_quorum_node then
              next_fence = math.max(next_fence, tonumber(ARGV[arg + 5]))
            end
            reply = next_fence
          end
        end
      end
    elseif verb == 'release' and ARGV[arg + 2] == '' and not left[lock]
      and pcall_redis('GET', lock) == owner then
      local decided, next_holder = pcall(hand_over, lock, queue, claim, owner)
      if decided then
        if next_holder then
          call('DEL', claim)
        else
          call('DEL', lock, claim)
        end
        reply = 1
      end
    end
    n = n + 1
    if reply then
      replies[n] = reply
    else
      undecided[#undecided + 1] = {n = n, key = key, arg = arg}
      left[lock] = true
    end
    key = key + 3
    arg = arg + 2 + arguments[verb]
  end
  if is_quorum_node and next_fence then
    call('SET', fence_key, string.format('%.0f', next_fence))
  end
end
if #undecided == 0 then
  return replies
end
