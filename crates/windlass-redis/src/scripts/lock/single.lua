-- Decides what is usual for a decision that is alone in its batch: a free lock is granted, its
-- holder renews it, and gives it up when nobody waits. It decides as the code below would, and
-- leaves all else to that code. It comes first because each function or table that a script makes
-- costs as much as a command.

do
  local verb, owner = ARGV[2], ARGV[3]
  if verb == 'acquire' and #ARGV == 6 then
    local ttl, flags, tail = ARGV[4], ARGV[5], ARGV[6]
    if call('EXISTS', KEYS[2], KEYS[3]) == 0 then
      last_fence = redis.pcall('INCRBY', fence_key, 1)
      -- Otherwise a new counter, or a server that takes no writes: "take_fence" deals with it.
      if type(last_fence) == 'number' and last_fence > 1 then
        call('SET', KEYS[2], owner, 'PX', ttl)
        if string.find(flags, 'r', 1, true) then
          local time = call('TIME')
          local since = time[1] * 1000 + math.floor(time[2] / 1000)
          local numbers = string.format('%.0f %s %.0f ', last_fence, ttl, since)
          call('SET', KEYS[4], numbers .. tail, 'PX', ttl)
        end
        return {last_fence}
      end
    end
  elseif verb == 'renew' and #ARGV == 8 and (ARGV[5] == '' or ARGV[5] == '=') then
    local ttl, flags, tail = ARGV[4], ARGV[5], ARGV[8]
    if redis.pcall('GET', KEYS[2]) == owner then
      local record = flags == '=' and redis.pcall('GET', KEYS[4])
      -- A claim without a record gets one below, and one that was replaced is not renewed.
      local is_ours = flags == '' or type(record) == 'string'
        and string.match(record, '^%d+ %d+ %d+ (%S+ %d+)') == string.match(tail, '^%S+ %d+')
      if is_ours and redis.pcall('PEXPIRE', KEYS[4], ttl) == 1 then
        call('PEXPIRE', KEYS[2], ttl)
        return {1}
      end
    end
  elseif verb == 'release' and #ARGV == 4 and (may_migrate or ARGV[4] ~= '') then
    local address = ARGV[4]
    local queue = redis.pcall('ZRANGE', KEYS[3], 0, 0)
    first_waiter = queue[1]
    if not first_waiter and not queue.err and redis.pcall('GET', KEYS[2]) == owner then
      local record = address ~= '' and redis.pcall('GET', KEYS[4])
      local is_ours = not record or type(record) == 'string'
        and string.match(record, '^%d+ %d+ %d+ (%S+ %d+)') == address
      if is_ours and type(redis.pcall('DEL', KEYS[2], KEYS[4])) == 'number' then
        return {1}
      end
    end
  end
end
