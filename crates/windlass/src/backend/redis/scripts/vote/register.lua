-- What one node of a quorum keeps of a value that a majority agrees on: see rules/register.rs.
--
--   KEYS: the register (hash), the fence counter, the mark of the run that has joined
--   ARGV: "kept"; or
--         "promise", the number proposed; or
--         "accept", the number promised, the value, how long to keep it in ms, a channel for news or ''
--   returns: of "promise", the number drawn, and then what is kept;
--            of "kept", what is kept: {} if nothing, {ballot, value, ms left, 1 if this run wrote it};
--            of "accept", 1, or 0 if another number was promised since, or none
--
-- Fields: "promised", "ballot" and "value" (what was accepted last), "run" (which run of the server wrote
-- it: one that forgot may have old things on its disk).
-- Atomic because nobody may come between the look at the promise and the value that it allows.

local register = KEYS[1]
-- A promise is of one run of the server: one that comes from an old copy on its disk was given before what the
-- server has forgotten, and is void.
local run = call('GET', KEYS[3]) or ''
-- A promise is worth nothing without its value soon; until then it is all there is.
local PROMISE_MS = 60000

local function kept(answer)
  local seen = call('HMGET', register, 'ballot', 'value', 'run')
  if seen[1] then
    local left = call('PTTL', register)
    local this = seen[3] == run and 1 or 0
    answer[#answer + 1] = tonumber(seen[1])
    answer[#answer + 1] = seen[2]
    answer[#answer + 1] = left
    answer[#answer + 1] = this
  end
  return answer
end

if ARGV[1] == 'kept' then
  return kept({})
end

if ARGV[1] == 'promise' then
  proposal = tonumber(ARGV[2])
  local number = draw()
  call('HSET', register, 'promised', digits(number) .. ' ' .. run)
  if call('PTTL', register) < 0 then
    call('PEXPIRE', register, PROMISE_MS)
  end
  return kept({number})
end

if call('HGET', register, 'promised') ~= ARGV[2] .. ' ' .. run then
  return 0
end
call('HSET', register, 'ballot', ARGV[2], 'value', ARGV[3], 'run', run)
call('PEXPIRE', register, ARGV[4])
if ARGV[5] ~= '' then
  redis.pcall('PUBLISH', ARGV[5], '')
end
return 1
