-- What the keys of all records of the lock of a decision begin with.
local function record_prefix(n)
  if may_migrate then
    return string.sub(KEYS[2 * count + 1 + n], 1, -#ARGV[5 + n] - 1)
  end
  local queue = KEYS[count + 1 + n]
  local at = string.find(queue, 'lock:line:', 1, true)
  return string.sub(queue, 1, at - 1) .. 'lock:claim:' .. string.sub(queue, at + 10) .. ' '
end

-- Grants a lock that nobody holds (or that is being released) to the first living waiter, and
-- notifies that waiter alone. Returns the new holder, or false when nobody waits. "head" is the
-- first waiter, if it is known; outside a cluster it has been removed from the queue then.
local function hand_over(lock, queue, prefix, head)
  while true do
    if not head then
      if may_migrate then
        head = call('ZRANGE', queue, 0, 0)[1]
      else
        head = call('ZPOPMIN', queue)[1]
      end
      if not head then
        return false
      end
    end
    -- The one key that a caller cannot declare. While its slot migrates this fails, as the record
    -- may have moved already: before anything is changed, so that the decision can be tried again.
    local record = call('GET', prefix .. head)
    if may_migrate then
      call('ZREM', queue, head)
    end
    if record then
      local fence, channel, id = string.match(record, '^(%d+) %d+ %d+ (%S+) (%d+)')
      -- Until its own claim ends, and no longer: the waiter may have died together with the holder
      -- before it, and only its next heartbeat shows that it lives.
      call('SET', lock, head, 'PX', math.max(call('PTTL', prefix .. head), 1))
      -- A hint: if it is denied or lost, the waiter's timer repairs it.
      redis.pcall('PUBLISH', channel, id .. ' ' .. fence)
      return head
    end
    head = nil
  end
end
