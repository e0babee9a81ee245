-- Decides what is usual for the only decision of a batch if a record or a waiter is involved. Like
-- single.lua, it decides as the code below would, and leaves all else to that code.

if first_waiter then
  local decided, next_holder = pcall(hand_over, KEYS[2], KEYS[3], record_prefix(1), first_waiter)
  if decided and (next_holder or type(redis.pcall('DEL', KEYS[2])) == 'number') then
    return 1
  end
elseif verbs == 'R' then
  local lock, queue, owner, address = KEYS[2], KEYS[3], ARGV[6], ARGV[7]
  if redis.pcall('GET', lock) == owner then
    local prefix = record_prefix(1)
    local record = address ~= '' and redis.pcall('GET', prefix .. owner)
    local is_ours = not record or type(record) == 'string'
      and string.match(record, '^%d+ %d+ %d+ (%S+ %d+)') == address
    local decided, next_holder
    if is_ours then
      decided, next_holder = pcall(hand_over, lock, queue, prefix)
    end
    if decided then
      if next_holder then
        call('DEL', prefix .. owner)
      else
        call('DEL', lock, prefix .. owner)
      end
      return 1
    end
  end
elseif verbs == 'A' then
  local owner, ttl, flags, tail = ARGV[6], ARGV[7], ARGV[8], ARGV[9]
  existing = call('EXISTS', KEYS[2], KEYS[3])
  if existing == 0 and not is_quorum_node then
    last_fence = redis.pcall('INCRBY', fence_key, 1)
    -- Otherwise a new counter, or a server that takes no writes: "take_fence" deals with it.
    if type(last_fence) == 'number' and last_fence > 1 then
      call('SET', KEYS[2], owner, 'PX', ttl)
      if string.find(flags, 'r', 1, true) then
        local time = call('TIME')
        local since = time[1] * 1000 + math.floor(time[2] / 1000)
        local numbers = string.format('%.0f %s %.0f ', last_fence, ttl, since)
        call('SET', record_prefix(1) .. owner, numbers .. tail, 'PX', ttl)
      end
      return last_fence
    end
  end
elseif verbs == 'N' and (ARGV[8] == '' or ARGV[8] == '=') then
  local owner, ttl, flags, tail = ARGV[6], ARGV[7], ARGV[8], ARGV[11]
  if redis.pcall('GET', KEYS[2]) == owner then
    local claim = record_prefix(1) .. owner
    local record = flags == '=' and redis.pcall('GET', claim)
    -- A claim without a record gets one below, and one that was replaced is not renewed.
    local is_ours = flags == '' or type(record) == 'string'
      and string.match(record, '^%d+ %d+ %d+ (%S+ %d+)') == string.match(tail, '^%S+ %d+')
    if is_ours and redis.pcall('PEXPIRE', claim, ttl) == 1 then
      call('PEXPIRE', KEYS[2], ttl)
      return 1
    end
  end
end
