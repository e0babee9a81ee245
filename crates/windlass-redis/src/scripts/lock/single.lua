-- Decides what is most usual for a decision that is alone in its batch: a free lock is granted, and
-- given up when nobody waits. It decides as the code below would, and leaves all else to that code.
-- It comes first because each function or table that a script makes costs time; a list around the
-- reply does too.

if verbs == 'a' or verbs == 't' then
  existing = call('EXISTS', KEYS[2], KEYS[3])
  if existing == 0 then
    local fence
    if is_quorum_node then
      local counter = tonumber(redis.pcall('GET', fence_key) or nil)
      fence = counter and math.max(counter + 1, tonumber(ARGV[7]))
      if fence then
        call('SET', fence_key, string.format('%.0f', fence))
      end
    else
      last_fence = redis.pcall('INCRBY', fence_key, ARGV[1])
      -- Otherwise a new counter, or a server that takes no writes: "take_fence" deals with it.
      fence = type(last_fence) == 'number' and last_fence > 1 and last_fence
    end
    if fence then
      call('SET', KEYS[2], ARGV[6], 'PX', ARGV[3])
      return fence
    end
  end
elseif verbs == 'r' and redis.pcall('GET', KEYS[2]) == ARGV[6] then
  local first
  if may_migrate then
    first = redis.pcall('ZRANGE', KEYS[3], 0, 0)
  else
    first = redis.pcall('ZPOPMIN', KEYS[3])
  end
  if not first.err then
    first_waiter = first[1] or false
    if not first_waiter and type(redis.pcall('DEL', KEYS[2])) == 'number' then
      return 1
    end
  end
end
