-- Decides what is done once: begin, keep a result, forget.
--
--   KEYS: the record: a hash of fence (decimal), payload (32 bytes) and, once there is one, result
--   ARGV: 'start', fence, payload, how long to keep in ms
--         'finish', fence, result, how long to keep in ms
--         'forget', fence or ''
--   returns: 'go', 'kept', 'stale', 'other', or {result}; for forget: 1 or 0
--
-- Atomic because the result of a sleeper must not count once somebody else has begun. Fences are
-- compared as decimal text (longer is larger), because Lua's numbers are not exact beyond 2^53.

local record, verb, fence = KEYS[1], ARGV[1], ARGV[2]
local known = redis.call('HMGET', record, 'fence', 'payload', 'result')
local last, payload, result = known[1], known[2], known[3]

if verb == 'start' then
  if last then
    if payload ~= ARGV[3] then
      return 'other'
    elseif result then
      return {result}
    elseif #last > #fence or (#last == #fence and last > fence) then
      return 'stale'
    end
  end
  redis.call('HSET', record, 'fence', fence, 'payload', ARGV[3])
  redis.call('PEXPIRE', record, ARGV[4])
  return 'go'
elseif verb == 'finish' then
  if result then
    return {result}
  elseif last ~= fence then
    return 'stale'
  end
  -- In this order: a server that is full refuses scripts that begin with what takes memory, and lets go on
  -- those that have begun otherwise. What was begun may end; what is new begins with the HSET above.
  redis.call('PEXPIRE', record, ARGV[4])
  redis.call('HSET', record, 'result', ARGV[3])
  return 'kept'
elseif last and (fence == '' or (last == fence and not result)) then
  redis.call('DEL', record)
  return 1
end
return 0
