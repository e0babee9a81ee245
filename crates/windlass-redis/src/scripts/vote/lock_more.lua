-- What a quorum asks of one node besides: to confirm, and to line up again.

-- Keeps a claim alive, as "renew" does, and draws a number for it if it is held.
--
--   arguments: ttl ms, flags as in "renew", the rest of the claim record (all but the fence)
--   returns: {8, number} if held, {1, ms until it should ask, holder} if in line, 0 if neither
--
-- Atomic because a number must be drawn while the owner holds: whoever holds this node later draws a
-- higher one.

local function confirm(lock, line, claim, owner, ttl, flags, rest)
  local holder = call('GET', lock) or hand_over(lock, line, claim, owner)
  local held = holder == owner
  local place = not held and call('ZSCORE', line, owner)
  if not held and not place then
    return 0
  end
  if string.find(flags, '=', 1, true) and taken_over(claim, string.match(rest, '^%d+ %d+ (%S+ %d+)')) then
    return 0
  end
  if not held then
    write_record(claim, PLACE .. ' ' .. rest, ttl)
    keep_line(line, ttl)
    return {1, look_after(lock, line, claim, owner, holder), holder}
  end
  local number = draw()
  call('PEXPIRE', lock, ttl)
  write_record(claim, digits(number) .. ' ' .. rest, ttl)
  return {8, number}
end

-- Gives the lock on this node to the next in line, and goes to the end of the line: for one who holds
-- here, but not on a majority, while nobody else does either.
--
--   arguments: ttl ms, the number that was last drawn here, the rest of the claim record
--   returns: 1 if it was done; 0 if it is not held under that number, or nobody else waits
--
-- Atomic because it must not undo a grant that came after: whoever counts on this node has drawn
-- another number since.

local function line_up_again(lock, line, claim, owner, ttl, number, rest)
  if call('GET', lock) ~= owner or string.match(call('GET', claim) or '', '^%d+') ~= number then
    return 0
  end
  if not hand_over(lock, line, claim, owner) then
    return 0
  end
  local place = draw()
  call('ZADD', line, digits(place), owner)
  write_record(claim, PLACE .. ' ' .. rest, ttl)
  keep_line(line, ttl)
  return 1
end
