-- First of all, what most decisions are: a lock that is free, with nobody in line; and a release by a
-- holder whose owner is random. They are taken here, in one flat pass, because each function that a
-- script defines costs Redis as much as a command does. Whatever is not decided is left to the
-- decisions below, and what could fail is left to them too, so that it is answered one by one.
--
-- Decisions of one batch were all under way at once, so taking the common ones first is one of the
-- orders in which they may have come.

-- Of a lock with something undecided nothing more is taken here: a release must not overtake a request of the
-- same owner.
local replies, undecided, left = {}, {}, {}
do
  local pcall_redis = redis.pcall
  local arity = {A = 3, N = 3, R = 1, B = 0}
  local key, arg, n, last = 2, 2, 0, #ARGV
  while arg < last do
    local letter, owner = ARGV[arg], ARGV[arg + 1]
    local lock, line, claim = KEYS[key], KEYS[key + 1], KEYS[key + 2]
    local reply
    if letter == 'A' then
      if ARGV[arg + 3] == 'q' or ARGV[arg + 3] == '' then
        if call('EXISTS', lock, line) == 0 then
          if not last_fence then
            last_fence = pcall_redis('INCRBY', fence_key, ARGV[1])
            -- A new counter, or a server that takes no writes: see "draw".
            if type(last_fence) == 'number' and last_fence > tonumber(ARGV[1]) then
              next_fence = last_fence - ARGV[1]
            end
          end
          if next_fence then
            call('SET', lock, owner, 'PX', ARGV[arg + 2])
            next_fence = next_fence + 1
            reply = next_fence
          end
        end
      end
    elseif letter == 'R' and ARGV[arg + 2] == '' and not left[lock]
      and pcall_redis('GET', lock) == owner then
      local decided, next_holder = pcall(hand_over, lock, line, claim, owner)
      if decided then
        if next_holder then
          call('DEL', claim)
        else
          call('DEL', lock, claim)
        end
        reply = 1
      end
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
end
if #undecided == 0 then
  return replies
end
