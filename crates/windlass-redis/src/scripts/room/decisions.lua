-- Grants a share, or puts the asker in line, or says who is in the way.
--
--   arguments: weight, size, ttl ms, flags, the claim's address and note
--   flags: any of q = line up if there is no room, r = record the claim now, b = do not respect the
--          line, a = adopt another size
--   returns: the fence, if granted
--            {1, place, ms until the first holder's claim ends} if in line
--            {2, that holder, its ms left, its record or false, server's time in ms} if there is no room
--            {4, size} if another size is stored, {5, size} if more is asked for than that,
--            {6, weight} if the owner has a claim of another weight
--
-- Atomic because "is there room, and does nobody wait" and "now it is mine" must not be parted.

local function acquire(at, owner, weight, size, ttl, flags, rest)
  weight, size, ttl = tonumber(weight), tonumber(size), tonumber(ttl)
  settle(at)
  forget_size(at)
  local stored = at.size == 0 and size or at.size
  if stored ~= size and not string.find(flags, 'a', 1, true) then
    return {4, stored}
  end
  if weight > stored then
    return {5, stored}
  end
  local ends = held_until(at, owner)
  local record = record_of(at, owner)
  local claim = record and read(record)
  local alive = ends or claim and claim.ends > now
  if alive and (claim and claim.weight or 1) ~= weight then
    return {6, claim and claim.weight or 1}
  end
  if at.size == 0 then
    set(at, 'size', stored)
  end
  keep(at, ttl)
  if ends then
    if not claim then
      -- Granted before, but the answer never reached the asker, who comes again. The fence of that
      -- grant is not known any more; those who wait will have higher ones.
      claim = {fence = draw(), since = digits(now), ends = 0}
      if at.waiting > 0 then
        set(at, 'overtook', claim.fence)
      end
    end
    -- Never shorter than it was promised to the one who came before.
    call('ZADD', at.held, digits(math.max(ends, now + ttl)), owner)
    claim.weight, claim.ttl, claim.rest = weight, ttl, rest
    write(at, owner, claim)
    at.news = true -- it may come with another note
    return claim.fence
  end

  if fits(at, weight) and (at.waiting == 0 or string.find(flags, 'b', 1, true)) then
    if claim then
      leave_line(at, owner)
      erase(at, owner)
    end
    local fence = draw()
    if at.waiting > 0 then
      set(at, 'overtook', fence)
    end
    if weight > 1 or string.find(flags, 'r', 1, true) then
      write(at, owner,
        {fence = fence, weight = weight, ttl = ttl, ends = 0, since = digits(now), rest = rest})
    end
    hold(at, owner, weight, now + ttl)
    return fence
  end

  if string.find(flags, 'q', 1, true) then
    local place = claim and claim.fence
    if not place then
      place = draw()
      call('ZADD', at.line, digits(place), owner)
      set(at, 'waiting', at.waiting + 1)
      if at.waiting == 1 then
        at.extend = true
      end
    end
    write(at, owner,
      {fence = place, weight = weight, ttl = ttl, ends = now + ttl, since = digits(now), rest = rest})
    return {1, place, look_after(at, owner, weight)}
  end
  local first, left = first_to_end(at)
  return {2, first or '', left, first and record_of(at, first), now}
end

-- Keeps a claim alive, held or waiting.
--
--   arguments: ttl ms, flags, the fence, ms since it was granted, the claim's address and note
--   flags: any of = if a later claim of the same owner may be in the place, and is to be left alone,
--          ! to write the record anew (and so to take the place of an earlier claim)
--   returns: {7, fence} if held, {1, ms until the first holder's claim ends} if in line, 0 if neither
--
-- Atomic because a claim that is no longer the owner's must not be extended.

local function renew(at, owner, ttl, flags, fence, age, rest)
  ttl = tonumber(ttl)
  settle(at)
  local ends = held_until(at, owner)
  local record = record_of(at, owner)
  local claim = record and read(record)
  if not ends and claim and not call('ZSCORE', at.line, owner) then
    erase(at, owner) -- the line was deleted or evicted
    claim = nil
  end
  if not ends and not claim then
    return 0
  end
  local respect = string.find(flags, '=', 1, true)
  if respect and claim and (ends or claim.ends > now) and address(claim.rest) ~= address(rest) then
    return 0
  end
  keep(at, ttl)
  if ends then
    -- Nobody is called "". A server that is full refuses a script that begins with what may take memory,
    -- and lets go on one that has begun otherwise: what is held must not be lost by that.
    call('ZREM', at.held, '')
    call('ZADD', at.held, digits(now + ttl), owner)
    if not claim or string.find(flags, '!', 1, true) then
      -- A record that is there already knows its fence, weight and time best.
      claim = claim or {fence = tonumber(fence), weight = 1, since = digits(now - age)}
      claim.ttl, claim.ends, claim.rest = ttl, 0, rest
      write(at, owner, claim)
    end
    return {7, claim.fence}
  end
  claim.ttl, claim.ends, claim.rest = ttl, now + ttl, rest
  write(at, owner, claim)
  return {1, look_after(at, owner, claim.weight)}
end

-- Gives up what the owner has: a share, or a place in line. What comes free is handed on in the
-- same step.
--
--   arguments: the claim's address, or "" if nobody else can come as this owner
--   returns: 1 if it was held, 2 if it was in line, 0 if neither
--
-- Atomic because only the owner's own share may be given up.

local function release(at, owner, who)
  local outcome = 0
  local ends = held_until(at, owner)
  local record = record_of(at, owner)
  local claim = record and read(record)
  local ours = who == '' or not claim or address(claim.rest) == who
  if ends then
    if ours then
      let_go(at, owner)
      outcome = 1
    end
  elseif claim and call('ZSCORE', at.line, owner) and (ours or claim.ends <= now) then
    -- Out of line first: what is free is not for one who is leaving.
    leave_line(at, owner)
    erase(at, owner)
    outcome = 2
  end
  settle(at)
  return outcome
end

-- Makes a held share smaller, and hands on what comes free.
--
--   arguments: the claim's address, the new weight
--   returns: 1, or 0 if that claim holds no share of at least that weight

local function shrink(at, owner, who, weight)
  weight = tonumber(weight)
  settle(at)
  local ends = held_until(at, owner)
  local record = record_of(at, owner)
  local claim = record and read(record)
  if not ends or not claim or address(claim.rest) ~= who or claim.weight < weight then
    return 0
  end
  set(at, 'extra', at.extra - claim.weight + weight)
  claim.weight = weight
  write(at, owner, claim)
  settle(at)
  return 1
end

-- Sets the size, and hands on what comes free. Nobody loses a share.
--
--   arguments: the size
--   returns: what it was, 0 if that was not known

local function resize(at, _, size)
  settle(at)
  forget_size(at)
  local before = at.size
  set(at, 'size', tonumber(size))
  keep(at, 0)
  settle(at)
  return before
end
