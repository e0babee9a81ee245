-- Idempotent execution: starts, stores the result, or forgets.
--
--   KEYS: the record: a hash of fence (decimal), payload (32 bytes) and, when it is done, result
--   ARGV: 'start', fence, payload, retention in ms
--         'finish', fence, result, retention in ms
--         'forget', fence or ''
--   returns: 'go', 'kept', 'stale', 'other', or {result}; for forget: 1 or 0
--
-- Atomic because the result of a caller that was suspended must not count once another one has
-- started. Fences are compared as decimal text (longer is larger), because Lua's numbers are not
-- exact beyond 2^53.

local record, verb, fence = KEYS[1], ARGV[1], ARGV[2]
local known = redis.call('HMGET', record, 'fence', 'payload', 'result')
local last, payload, result = known[1], known[2], known[3]

if verb == 'start' then
  if last then
    if result then
      return payload == ARGV[3] and {result} or 'other'
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
  -- PEXPIRE first: a server that is out of memory rejects a script at its first command that may
  -- allocate, unless the script has written before. So an execution that has started can finish,
  -- while a new one (the HSET above) is rejected.
  redis.call('PEXPIRE', record, ARGV[4])
  redis.call('HSET', record, 'result', ARGV[3])
  return 'kept'
elseif last and (fence == '' or (last == fence and not result)) then
  redis.call('DEL', record)
  return 1
end
return 0
