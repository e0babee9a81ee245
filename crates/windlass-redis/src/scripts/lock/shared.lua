-- What the decisions about locks share.

-- Writes a record, with the age that the client sent made a time of the server's.
local function write_record(claim, record, ttl)
  local front, age, rest = string.match(record, '^(%d+ %d+ )(%d+)(.*)$')
  call('SET', claim, front .. digits(server_ms() - age) .. rest, 'PX', ttl)
end

-- The address in a record.
local function address_of(record)
  return string.match(record, '^%d+ %d+ %d+ (%S+ %d+)')
end

-- Whether another claim of the same owner has taken the place of the one at that address.
local function taken_over(claim, address)
  local record = call('GET', claim)
  return record and address_of(record) ~= address
end

-- The time left to a key, in milliseconds; -1 for never.
local function held_for(lock)
  return call('PTTL', lock)
end

-- How long a waiter waits before it asks by itself, in milliseconds; -1 for no longer than a heartbeat.
-- That is when the holder's claim ends; but a holder of another library goes without telling anybody,
-- so the first in line looks every now and then. The others look the more rarely the further back
-- they are, in case those before them die: all together ask a few times as often as the first alone.
-- A claim of ours may have no record yet, but then its owner is one that we have drawn.
local function look_after(lock, line, claim, owner, holder)
  local left = held_for(lock)
  local drawn = string.match(holder, ':%d+:(%x+)$')
  local prefix = string.sub(claim, 1, -#owner - 1)
  if (drawn and #drawn == 32) or call('EXISTS', prefix .. holder) == 1 then
    return left
  end
  local ahead = redis.pcall('ZRANK', line, owner)
  local pause = 20 * (1 + (type(ahead) == 'number' and ahead or 0))
  if left < 0 or left > pause then
    return pause
  end
  return left
end

-- The line must outlive every claim in it.
local function keep_line(line, ttl)
  if call('PTTL', line) < tonumber(ttl) then
    call('PEXPIRE', line, ttl)
  end
end
