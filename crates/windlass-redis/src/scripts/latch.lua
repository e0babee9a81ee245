-- Begins a generation of a latch, or counts it down.
--
--   KEYS     the latch (hash), the operations that were counted (set)
--   ARGV     retention in ms, the generation, then "reset", the count; or "count_down", by how
--            much, the operation
--   returns  for a reset
--              {'begun'}
--              {'known', remaining}
--              {'other_count', count} if it is known with another count
--              {'over', present generation} if a later generation has begun
--            for a count-down
--              {'counted', remaining}
--              {'below_zero', remaining}
--              {'other_generation', present generation or nothing}
--
-- Fields: "generation", "count", "remaining", "past" (up to 16 earlier generations, the latest
-- first, one a line, with "+" in front of those that reached zero and "-" in front of the others).
-- Atomic because of two clients that count the last two down, one must see zero.

local call = redis.call
local latch, counted = KEYS[1], KEYS[2]
local retention, generation, verb = ARGV[1], ARGV[2], ARGV[3]
local number, operation = tonumber(ARGV[4]), ARGV[5]
local seen = call('HMGET', latch, 'generation', 'count', 'remaining', 'past')
local present, remaining = seen[1], tonumber(seen[3])

if verb == 'reset' then
  if present == generation then
    if tonumber(seen[2]) == number then
      return {'known', remaining}
    end
    return {'other_count', tonumber(seen[2])}
  end
  local past = ''
  if present then
    local lines = '\n' .. (seen[4] or '') .. '\n'
    if string.find(lines, '\n+' .. generation .. '\n', 1, true)
      or string.find(lines, '\n-' .. generation .. '\n', 1, true) then
      return {'over', present}
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
  call('PEXPIRE', latch, retention)
  call('DEL', counted)
  notify(latch)
  return {'begun'}
end

if present ~= generation then
  -- A list ends where a nil is.
  return {'other_generation', present or nil}
end
-- The same operation again: its reply was lost.
if call('SISMEMBER', counted, operation) == 1 then
  return {'counted', remaining}
end
if number > remaining then
  return {'below_zero', remaining}
end
remaining = remaining - number
call('HSET', latch, 'remaining', remaining)
call('SADD', counted, operation)
call('PEXPIRE', latch, retention)
call('PEXPIRE', counted, retention)
if remaining == 0 then
  notify(latch)
end
return {'counted', remaining}
