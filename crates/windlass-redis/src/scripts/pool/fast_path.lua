-- Decides what most batches consist of: a share of weight one with an empty queue, and its release.
-- One flat pass without functions, because each function that a script defines costs as much as a
-- command. All decisions of a batch were under way at once, so deciding the common ones first is
-- one of the orders in which they may have arrived.

local replies, undecided = {}, {}
do
  local pcall_redis = redis.pcall
  local arguments = {acquire = 5, renew = 5, release = 1, shrink = 2, resize = 1, confirm = 5, requeue = 5}
  local key, arg, n, last = 2, 2, 0, #ARGV
  while arg < last do
    local verb, kind, owner = ARGV[arg], ARGV[arg + 1], ARGV[arg + 2]
    local pool, held = KEYS[key], KEYS[key + 1]
    local reply
    if kind == 'sem' or kind == 'rw' then
      if verb == 'acquire' then
        -- weight, size, ttl, flags, tail
        local flags = ARGV[arg + 6]
        if ARGV[arg + 3] == '1' and (flags == 'q' or flags == '') then
          local seen = pcall_redis('HMGET', pool, ' size', ' extra', ' line', ' overtook', ' open',
            ' until', owner)
          local keep = ARGV[arg + 5] + (kind == 'sem' and 43200000 or 30000)
          local count
          if seen[1] == ARGV[arg + 4] and now + keep <= tonumber(seen[6]) then
            count = pcall_redis('ZCARD', held)
            if seen[3] == '0' and type(count) == 'number' and count > 0
              and count + seen[2] <= tonumber(seen[1]) then
              if not last_fence then
                last_fence = pcall_redis('INCRBY', fence_key, ARGV[1])
                -- Otherwise a new counter, or a server that takes no writes: "take_fence" deals
                -- with it.
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
          if #KEYS == 4 and type(count) == 'number' then
            known_fields, known_count = seen, count
          end
        end
      elseif verb == 'release' and ARGV[arg + 3] == '' then
        local score = pcall_redis('ZSCORE', held, owner)
        if type(score) == 'string' and tonumber(score) > now then
          local seen = pcall_redis('HMGET', pool, ' line', owner, ' extra', ' size', ' overtook')
          local light = seen[1] and (not seen[2] or string.find(seen[2], '^%d+ 1 '))
          if light and seen[1] == '0' then
            call('ZREM', held, owner)
            if seen[2] then
              call('HDEL', pool, owner)
            end
            reply = 1
          elseif light and seen[3] == '0' and call('ZCARD', held) - 1 == tonumber(seen[4])
            and tonumber(call('ZRANGE', held, 0, 0, 'WITHSCORES')[2]) > now then
            -- Living holders of weight one take all of it: what is released goes to the first
            -- waiter, if it is alive and wants one, and to no other.
            local queue = KEYS[key + 2]
            local head = pcall_redis('ZRANGE', queue, 0, 0)[1]
            local record = head and call('HGET', pool, head)
            local fence, ttl, ends, tail
            if record then
              fence, ttl, ends, tail = string.match(record, '^(%d+) 1 (%d+) (%d+) %d+ (.*)$')
            end
            if fence and tonumber(ends) > now and tonumber(fence) > tonumber(seen[5] or 0) then
              call('ZREM', held, owner)
              if seen[2] then
                call('HDEL', pool, owner)
              end
              call('ZREM', queue, head)
              call('ZADD', held, ends, head)
              call('HSET', pool, ' line', seen[1] - 1, head, fence .. ' 1 ' .. ttl .. ' 0 '
                .. string.format('%.0f', now) .. ' ' .. tail)
              local channel, id = string.match(tail, '^(%S+) (%d+)')
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
    arg = arg + 3 + arguments[verb]
  end
end
if #undecided == 0 then
  return replies
end
