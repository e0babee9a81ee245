-- Decides one free lock, or one release with an empty queue, when it is alone in its batch: most
-- calls in a cluster are that. It comes first because each function or table that a script makes
-- costs as much as a command. It decides as the code below would.

if ARGV[2] == 'acquire' and #ARGV == 6 then
  if (ARGV[5] == 'q' or ARGV[5] == '') and call('EXISTS', KEYS[2], KEYS[3]) == 0 then
    last_fence = redis.pcall('INCRBY', fence_key, 1)
    -- Otherwise a new counter, or a server that takes no writes: "take_fence" deals with it.
    if type(last_fence) == 'number' and last_fence > 1 then
      call('SET', KEYS[2], ARGV[3], 'PX', ARGV[4])
      return {last_fence}
    end
  end
elseif may_migrate and ARGV[2] == 'release' and #ARGV == 4 and ARGV[4] == '' then
  local queue = redis.pcall('ZRANGE', KEYS[3], 0, 0)
  first_waiter = queue[1]
  if not first_waiter and not queue.err and redis.pcall('GET', KEYS[2]) == ARGV[3] then
    call('DEL', KEYS[2], KEYS[4])
    return {1}
  end
end
