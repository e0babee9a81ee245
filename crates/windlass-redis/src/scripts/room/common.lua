-- Decisions about everything that has room for more than one (semaphores, read-write locks) or
-- that others watch (elections, barriers). The files of this folder are joined into one script,
-- which takes a batch of decisions in order:
--
--   KEYS[1]            the fence counter
--   KEYS[2 ..]         for each decision: the room (hash), those who hold (sorted set of owners, by
--                      the end of their claims in the server's ms), the line (sorted set of
--                      waiting owners, by place)
--   ARGV[1]            how many fences the batch may need
--   ARGV[2 ..]         for each decision: its letter, the kind, the owner, then its own arguments
--
-- Returns one reply for each decision. One script is one atomic step for Redis; a decision that
-- fails (a key of another type) is answered with an error and does not touch the others.
--
-- In the room, fields that begin with a space are the room's own, and no owner has spaces:
--   " size"; " extra" = what holders weigh beyond one each; " line" = how many wait; " overtook" = the
--   highest fence granted ahead of somebody who waited; " open" = for a barrier, that all parties
--   have come; " until" = when these keys expire.
-- Every other field is the claim of that owner:
--   "<fence> <weight> <ttl ms> <end, if waiting> <since> <channel> <claim> <note>".
-- A holder of weight one may have none, until its first renewal. So that the set of holders keeps
-- its expiry when nobody holds, it has a member " " that never ends.
--
-- First of all, what most decisions are: one of several, with nobody in line; and its release. They
-- are taken here, in one flat pass, because each function that a script defines costs Redis as much
-- as a command does. Decisions of one batch were all under way at once, so taking the common ones
-- first is one of the orders in which they may have come.

local call = redis.call
local fence_key = KEYS[1]
local next_fence, last_fence
local time = call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)

local replies, undecided = {}, {}
do
  local pcall_redis = redis.pcall
  -- D and Y are for a node of a quorum: see vote/room_more.lua.
  local arity = {A = 5, N = 5, R = 1, S = 2, Z = 1, D = 5, Y = 4}
  local key, arg, n, last = 2, 2, 0, #ARGV
  while arg < last do
    local letter, kind, owner = ARGV[arg], ARGV[arg + 1], ARGV[arg + 2]
    local room, held = KEYS[key], KEYS[key + 1]
    local reply
    if kind == 'sem' or kind == 'rw' then
      if letter == 'A' then
        -- weight, size, ttl, flags
        local flags = ARGV[arg + 6]
        if ARGV[arg + 3] == '1' and (flags == 'q' or flags == '') then
          local seen = pcall_redis('HMGET', room, ' size', ' line', ' extra', ' until')
          local keep = ARGV[arg + 5] + (kind == 'sem' and 43200000 or 30000)
          if seen[1] == ARGV[arg + 4] and seen[2] == '0' and now + keep <= tonumber(seen[4]) then
            local count = pcall_redis('ZCARD', held)
            if type(count) == 'number' and count > 0 and count + seen[3] <= tonumber(seen[1]) then
              if not last_fence then
                last_fence = pcall_redis('INCRBY', fence_key, ARGV[1])
                -- A new counter, or a server that takes no writes: see "draw".
                if type(last_fence) == 'number' and last_fence > tonumber(ARGV[1]) then
                  next_fence = last_fence - ARGV[1]
                end
              end
              if next_fence
                and call('ZADD', held, 'NX', string.format('%.0f', now + ARGV[arg + 5]), owner) == 1
              then
                next_fence = next_fence + 1
                reply = next_fence
              end
            end
          end
        end
      elseif letter == 'R' and ARGV[arg + 3] == '' then
        local score = pcall_redis('ZSCORE', held, owner)
        if type(score) == 'string' and tonumber(score) > now then
          local seen = pcall_redis('HMGET', room, ' line', owner, ' extra', ' size', ' overtook')
          local light = seen[1] and (not seen[2] or string.find(seen[2], '^%d+ 1 '))
          if light and seen[1] == '0' then
            call('ZREM', held, owner)
            if seen[2] then
              call('HDEL', room, owner)
            end
            reply = 1
          elseif light and seen[3] == '0' and call('ZCARD', held) - 1 == tonumber(seen[4])
            and tonumber(call('ZRANGE', held, 0, 0, 'WITHSCORES')[2]) > now then
            -- All is taken, by living holders of weight one: what comes free is for the first in line,
            -- if it is alive and wants one, and for nobody else.
            local line = KEYS[key + 2]
            local head = pcall_redis('ZRANGE', line, 0, 0)[1]
            local record = head and call('HGET', room, head)
            local fence, ttl, ends, rest
            if record then
              fence, ttl, ends, rest = string.match(record, '^(%d+) 1 (%d+) (%d+) %d+ (.*)$')
            end
            if fence and tonumber(ends) > now and tonumber(fence) > tonumber(seen[5] or 0) then
              call('ZREM', held, owner)
              if seen[2] then
                call('HDEL', room, owner)
              end
              call('ZREM', line, head)
              call('ZADD', held, ends, head)
              call('HSET', room, ' line', seen[1] - 1, head, fence .. ' 1 ' .. ttl .. ' 0 '
                .. string.format('%.0f', now) .. ' ' .. rest)
              local channel, id = string.match(rest, '^(%S+) (%d+)')
              pcall_redis('PUBLISH', channel, id .. ' ' .. fence)
              reply = 1
            end
          end
        end
      end
    end
    n = n + 1
    if reply then
      replies[n] = reply
    else
      undecided[#undecided + 1] = {n = n, key = key, arg = arg}
    end
    key = key + 3
    arg = arg + 3 + arity[letter]
  end
end
if #undecided == 0 then
  return replies
end
