-- Removes a filter.
--
--   KEYS: the plan, the progress of a growing filter, the record of creation
--   ARGV: the plan; the prefix of the keys of shards; the period of a slice in ms, or 0; the number of slices;
--         for each possible generation: the number of its shards
--   returns: 1 if it existed, else 0
--
-- Also removes a filter that has lost its plan, by the record of creation. Atomic because a filter
-- that is created again at the same moment must keep its bits.

local plan = redis.call('GET', KEYS[1])
if not plan then
  plan = string.sub(redis.call('GET', KEYS[3]) or '', 3)
end
if plan ~= ARGV[1] then
  return 0
end
local oldest, newest, period = 0, 0, tonumber(ARGV[3])
if period > 0 then
  local time = redis.call('TIME')
  newest = math.floor((time[1] * 1000 + math.floor(time[2] / 1000)) / period)
  oldest = newest - tonumber(ARGV[4]) + 1
else
  local grown = redis.call('GET', KEYS[2])
  newest = grown and tonumber(string.match(grown, '^%d+')) or 0
end
for generation = oldest, newest do
  local shards = ARGV[5 + (period > 0 and 0 or generation)]
  for shard = 0, tonumber(shards) - 1 do
    redis.call('UNLINK', ARGV[2] .. string.format('%.0f:%.0f', generation, shard))
  end
end
redis.call('DEL', KEYS[1], KEYS[2], KEYS[3])
return 1
