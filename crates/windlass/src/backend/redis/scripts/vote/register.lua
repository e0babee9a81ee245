-- What one node of a quorum keeps of a value that a majority agrees on: see rules/register.rs.
--
--   KEYS: the register (hash), the fence counter, the mark of the run that has joined
--   ARGV: "kept"; or
--         "promise", the number proposed, who asks (a number of this change alone), for how long it is let write in
--         ms; or
--         "let_go", who asked and has no need of the promise any more; or
--         "accept", the number promised, the value, how long to keep it in ms, a channel for news or '',
--         a number up to which none is given any more
--   returns: of "promise", the number drawn, and then what is kept; {} if somebody else is about to write;
--            of "kept", what is kept: {} if nothing, {ballot, value, ms left, 1 if this run wrote it};
--            of "let_go", 1;
--            of "accept", 1, or 0 if another number was promised since, or none, or too long ago
--
-- Fields: "promised", "asked" (when that was), "who" (to whom, as long as that one is about to write) and "turn" (for how
-- long that one is let write), "ballot" and "value" (what was accepted last), "run" (which
-- run of the server wrote it: one that forgot may have old things on its disk).
--
-- A value is kept from when its number was promised. Whoever reads it hears how much longer, and so how long ago
-- that was; and as it hears that with the next promise, no moment is lost from one value to the next, and
-- none counted twice, however long a request travels.
-- Atomic because nobody may come between the look at the promise and the value that it allows.

local register = KEYS[1]
-- A promise is of one run of the server: one that comes from an old copy on its disk was given before what the
-- server has forgotten, and is void.
local run = call('GET', KEYS[3]) or ''
-- A promise is worth nothing without its value soon; until then it is all there is. A value that comes later
-- is refused: what it says of time was true when it was asked for.
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
  -- Whoever was promised a number is let write for as long as it says that takes: those who come meanwhile would only
  -- throw it back, and each other. It is a courtesy, and nothing depends on it: nobody is heard less who could
  -- not be reached.
  local before = call('HMGET', register, 'who', 'asked', 'turn')
  if before[1] and before[1] ~= '' and before[1] ~= ARGV[3] then
    local ago = server_ms() - tonumber(before[2])
    if ago >= 0 and ago < math.min(tonumber(before[3] or 0), PROMISE_MS) then
      return {}
    end
  end
  proposal = tonumber(ARGV[2])
  local number = draw()
  call('HSET', register, 'promised', digits(number) .. ' ' .. run, 'asked', digits(server_ms()), 'who', ARGV[3],
    'turn', ARGV[4])
  if call('PTTL', register) < 0 then
    call('PEXPIRE', register, PROMISE_MS)
  end
  return kept({number})
end

if ARGV[1] == 'let_go' then
  if call('HGET', register, 'who') == ARGV[2] then
    call('HSET', register, 'who', '')
  end
  return 1
end

if call('HGET', register, 'promised') ~= ARGV[2] .. ' ' .. run then
  return 0
end
local asked = tonumber(call('HGET', register, 'asked') or server_ms())
local ago = math.max(0, server_ms() - asked)
if ago >= PROMISE_MS then
  return 0
end
call('HSET', register, 'ballot', ARGV[2], 'value', ARGV[3], 'run', run, 'who', '')
call('PEXPIRE', register, digits(math.max(1, tonumber(ARGV[4]) - ago)))
local floor = tonumber(ARGV[6])
if floor > tonumber(call('GET', fence_key) or 0) then
  call('SET', fence_key, digits(floor))
end
if ARGV[5] ~= '' then
  redis.pcall('PUBLISH', ARGV[5], '')
end
return 1
