-- Takes the lock from whoever has it, and gives it to the first living waiter.
--
--   arguments: none; the owner is empty, and the claim record's key ends after its prefix
--   returns: {1, old holder or false, its ms left, its record or false, server's time in ms}
--
-- Atomic so that the one who is named is the one who lost it.

local function break_lock(lock, line, prefix, owner)
  local holder = call('GET', lock)
  local left = held_for(lock)
  local record = holder and call('GET', prefix .. holder)
  local next_holder = hand_over(lock, line, prefix, owner)
  if holder then
    call('DEL', prefix .. holder)
    if not next_holder then
      call('DEL', lock)
    end
  end
  return {1, holder, left, record, server_ms()}
end
