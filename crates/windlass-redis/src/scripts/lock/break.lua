-- Takes the lock from its holder, and grants it to the first living waiter. The owner is empty, and
-- the claim record's key ends behind its prefix.
--
--   returns  {'broken', old holder or false, its ms left, its record or false, server's time in ms}
--
-- Atomic so that the holder that is named is the one that lost the lock.

local function break_lock(lock, queue, prefix, owner)
  local holder = call('GET', lock)
  local left = held_for(lock)
  local record = holder and call('GET', prefix .. holder)
  local next_holder = hand_over(lock, queue, prefix, owner)
  if holder then
    call('DEL', prefix .. holder)
    if not next_holder then
      call('DEL', lock)
    end
  end
  return {'broken', holder, left, record, server_ms()}
end
