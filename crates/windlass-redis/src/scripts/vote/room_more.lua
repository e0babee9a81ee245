-- What a quorum asks of one node besides, of all that is not a lock: see lock_more.lua.

-- Keeps a claim alive, as "renew" does, and draws a number for it if it is held.
--
--   arguments: ttl ms, flags as in "renew", ms since it was granted, the claim's address and note,
--              proposal
--   returns: {8, number} if held, {1, ms until the first holder's claim ends, that holder} if in line,
--            0 if neither

local function confirm(at, owner, ttl, flags, age, rest, wanted)
  local answer = renew(at, owner, ttl, flags, '0', age, rest)
  if type(answer) ~= 'table' then
    return answer
  end
  if answer[1] == 1 then
    answer[3] = first_to_end(at) or ''
    return answer
  end
  proposal = tonumber(wanted)
  local claim = read(record_of(at, owner))
  claim.fence, claim.rest = draw(), rest
  if at.waiting > 0 then
    -- Those in line have lower places, which are no fences for them any more.
    set(at, 'overtook', claim.fence)
  end
  write(at, owner, claim)
  return {8, claim.fence}
end

-- Gives up the share on this node to those in line, and goes to the end of the line.
--
--   arguments: ttl ms, the number that was last drawn here, the claim's address and note, proposal
--   returns: 1 if it was done; 0 if it is not held under that number, or nobody else waits

local function line_up_again(at, owner, ttl, number, rest, wanted)
  settle(at)
  local record = held_until(at, owner) and record_of(at, owner)
  local claim = record and read(record)
  if not claim or digits(claim.fence) ~= number or at.waiting == 0 then
    return 0
  end
  let_go(at, owner)
  proposal = tonumber(wanted)
  settle(at)
  claim.fence, claim.ends, claim.rest = draw(), now + ttl, rest
  call('ZADD', at.line, digits(claim.fence), owner)
  set(at, 'waiting', at.waiting + 1)
  keep(at, tonumber(ttl))
  write(at, owner, claim)
  settle(at)
  return 1
end
