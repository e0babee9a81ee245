-- Grants a lock that nobody holds (or that is being released) to the first living waiter, and
-- notifies that waiter alone. Returns the new holder, or false when nobody waits.
local function hand_over(lock, queue, claim, owner)
  local prefix = string.sub(claim, 1, -#owner - 1)
  while true do
    local head
    if may_migrate then
      head = first_waiter or call('ZRANGE', queue, 0, 0)[1]
      first_waiter = nil
    else
      head = call('ZPOPMIN', queue)[1]
    end
    if not head then
      return false
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
  end
end
