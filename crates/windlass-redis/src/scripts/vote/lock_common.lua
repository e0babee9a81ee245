-- Locks on one node of a quorum. The decisions are those of lock/, in the same batches, with these
-- differences: a request for a lock, and a confirmation, propose the number that they would like to
-- draw, so that all nodes of a quorum can give the same one; and there are two more decisions (see
-- lock_more.lua).
--
-- Behind lock/prelude.lua and lock/hand_over.lua, in the place of lock/common.lua: what most decisions are, in one flat pass,
-- for the reasons given there.
--
--   ARGV[2 ..]  A (acquire): owner, ttl ms, flags, rest of the record, proposal
--               N (renew), R (release), B (break): as in lock/
--               D (confirm): owner, ttl ms, flags, rest of the record, proposal
--               Y (line up again): owner, ttl ms, number, rest of the record, proposal
--
-- The rule of drawing, which rules/vote.rs has too: the number proposed if it is higher than all that
-- this node has given, and one more than the highest otherwise. So no number is given twice.

local drawn
-- Of a lock with something undecided nothing more is taken here: a release must not overtake a request of the
-- same owner.
local replies, undecided, left = {}, {}, {}
do
  local pcall_redis = redis.pcall
  local arity = {A = 4, N = 3, R = 1, B = 0, D = 4, Y = 4}
  local key, arg, n, last, counter = 2, 2, 0, #ARGV, nil
  while arg < last do
    local letter, owner = ARGV[arg], ARGV[arg + 1]
    local lock, line, claim = KEYS[key], KEYS[key + 1], KEYS[key + 2]
    local reply
    if letter == 'A' then
      if ARGV[arg + 3] == 'q' or ARGV[arg + 3] == '' then
        if call('EXISTS', lock, line) == 0 then
          if not counter then
            -- A counter that is missing, or is not a number, is left to "draw".
            counter = tonumber(pcall_redis('GET', fence_key) or nil)
          end
          if counter then
            local proposal = tonumber(ARGV[arg + 5])
            counter = proposal > counter and proposal or counter + 1
            call('SET', lock, owner, 'PX', ARGV[arg + 2])
            reply, drawn = counter, true
          end
        end
      end
    elseif letter == 'R' and ARGV[arg + 2] == '' and not left[lock]
      and pcall_redis('GET', lock) == owner then
      if hand_over(lock, line, claim, owner) then
        call('DEL', claim)
      else
        call('DEL', lock, claim)
      end
      reply = 1
    end
    n = n + 1
    if reply then
      replies[n] = reply
    else
      undecided[#undecided + 1] = {n = n, key = key, arg = arg}
      left[lock] = true
    end
    key = key + 3
    arg = arg + 2 + arity[letter]
  end
  if drawn then
    call('SET', fence_key, string.format('%.0f', counter))
  end
end
if #undecided == 0 then
  return replies
end
