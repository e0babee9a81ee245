-- Gives a lock that nobody has (or that is being given up) to the first waiter alive, and tells
-- that waiter alone. Returns the new holder, or false when nobody waits.
local function hand_over(lock, line, claim, owner)
  local prefix = string.sub(claim, 1, -#owner - 1)
  while true do
    local head
    if may_move then
      head = first_in_line or call('ZRANGE', line, 0, 0)[1]
      first_in_line = nil
    else
      head = call('ZPOPMIN', line)[1]
    end
    if not head then
      return false
    end
    -- The one key that nobody could declare. In a cluster this fails while the slot is on its way, and the record
    -- perhaps gone ahead: before anything is changed, so that it can be tried again.
    local record = call('GET', prefix .. head)
    if may_move then
      call('ZREM', line, head)
    end
    if record then
      local fence, channel, id = string.match(record, '^(%d+) %d+ %d+ (%S+) (%d+)')
      -- Until its own claim ends, and no longer: it may have died in line together with the one before
      -- it, and lives on only by its next sign of life.
      call('SET', lock, head, 'PX', math.max(call('PTTL', prefix .. head), 1))
      -- A hint: if it is denied or gets lost, a timer repairs it.
      redis.pcall('PUBLISH', channel, id .. ' ' .. fence)
      return head
    end
  end
end
