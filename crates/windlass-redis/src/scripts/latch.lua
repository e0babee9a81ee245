-- Begins a generation of a latch, or counts it down.
--
--   KEYS: the latch (hash), the operations that were counted (set)
--   ARGV: how long to keep it in ms, the generation,
--         then "reset", the count; or "down", by how much, the operation
--   returns: {0} if begun, {1, remaining} if it was known or counted, {2, count} if known with another
--            count, {3, remaining} if it would go below zero, {4, present generation or false} if it is
--            another, {5, present generation} if the one to begin is over
--
-- Fields: "generation", "count", "remaining", "past" (up to 16 earlier generations, the latest first,
-- one a line, with "+" in front of those that came to zero).
-- Atomic because of two that count the last two down, one must see zero.

local call = redis.call
local latch, counted = KEYS[1], KEYS[2]
local keep, generation, verb, number, operation = ARGV[1], ARGV[2], ARGV[3], tonumber(ARGV[4]), ARGV[5]
local seen = call('HMGET', latch, 'generation', 'count', 'remaining', 'past')
local present, remaining = seen[1], tonumber(seen[3])

if verb == 'reset' then
  if present == generation then
    if tonumber(seen[2]) == number then
      return {1, remaining}
    end
    return {2, tonumber(seen[2])}
  end
  local past = ''
  if present then
    local lines = '\n' .. (seen[4] or '') .. '\n'
    if string.find(lines, '\n+' .. generation .. '\n', 1, true)
      or string.find(lines, '\n-' .. generation .. '\n', 1, true) then
      return {5, present}
    end
    past = (remaining == 0 and '+' or '-') .. present
    local kept = 1
    for line in string.gmatch(seen[4] or '', '[^\n]+') do
      kept = kept + 1
      if kept > 16 then break end
      past = past .. '\n' .. line
    end
  end
  call('HSET', latch, 'generation', generation, 'count', number, 'remaining', number, 'past', past)
  call('PEXPIRE', latch, keep)
  call('DEL', counted)
  redis.pcall('PUBLISH', 'windlass:news:' .. latch, '')
  return {0}
end

if present ~= generation then
  return {4, present}
end
if call('SISMEMBER', counted, operation) == 1 then
  return {1, remaining}
end
if number > remaining then
  return {3, remaining}
end
remaining = remaining - number
call('HSET', latch, 'remaining', remaining)
call('SADD', counted, operation)
call('PEXPIRE', latch, keep)
call('PEXPIRE', counted, keep)
if remaining == 0 then
  redis.pcall('PUBLISH', 'windlass:news:' .. latch, '')
end
return {1, remaining}
