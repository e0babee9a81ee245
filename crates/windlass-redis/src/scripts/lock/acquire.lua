-- Grants the lock, or puts the asker in line, or says who has it.
--
--   arguments: ttl ms, flags, the rest of the claim record (all but the fence)
--   flags: any of q = line up if held, r = record the claim now, h = give a foreign key without
--          expiry one
--   returns: the fence, if granted
--            {1, place, ms until it should ask} if in line
--            {2, holder, holder's ms left, holder's record or false, server's time in ms} if held
--
-- Atomic because "is it free, and does nobody wait" and "now it is mine" must not be parted.
-- Inner calls when free: EXISTS, SET (and one INCRBY for the batch).

local function grant(lock, claim, owner, ttl, flags, rest)
  local fence = draw()
  call('SET', lock, owner, 'PX', ttl)
  if string.find(flags, 'r', 1, true) then
    write_record(claim, digits(fence) .. ' ' .. rest, ttl)
  end
  return fence
end

local function acquire(lock, line, claim, owner, ttl, flags, rest)
  if call('EXISTS', lock, line) == 0 then
    return grant(lock, claim, owner, ttl, flags, rest)
  end

  local holder = call('GET', lock) or hand_over(lock, line, claim, owner)
  if holder == owner then
    local record = call('GET', claim)
    if record then
      local fence = string.match(record, '^%d+')
      if fence == PLACE then
        fence = digits(draw())
      end
      -- Never shorter than it was promised to the one who came before.
      local longest = math.max(tonumber(ttl), held_for(lock))
      call('PEXPIRE', lock, longest)
      write_record(claim, fence .. ' ' .. rest, longest)
      return tonumber(fence)
    end
    -- Granted before, but the answer never reached the asker, who comes again: nobody acts under
    -- that grant. Its fence is not known any more, and a new one would be higher than those of the
    -- waiters, so they go first.
    holder = hand_over(lock, line, claim, owner)
  end
  if not holder then
    return grant(lock, claim, owner, ttl, flags, rest)
  end

  if string.find(flags, 'h', 1, true) and held_for(lock) == -1 then
    call('PEXPIRE', lock, ttl)
  end
  if string.find(flags, 'q', 1, true) then
    local place = call('ZSCORE', line, owner)
    if place then
      place = tonumber(place)
    else
      place = draw()
      call('ZADD', line, digits(place), owner)
    end
    write_record(claim, (PLACE or digits(place)) .. ' ' .. rest, ttl)
    keep_line(line, ttl)
    return {1, place, look_after(lock, line, claim, owner, holder)}
  end
  local prefix = string.sub(claim, 1, -#owner - 1)
  return {2, holder, held_for(lock), call('GET', prefix .. holder), server_ms()}
end
