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

-- The line must outlive every claim in it.
local function keep_line(line, ttl)
  if call('PTTL', line) < tonumber(ttl) then
    call('PEXPIRE', line, ttl)
  end
end
