-- Removes a filter.
--
--   KEYS: the plan, how far the filter has grown, what was made
--   ARGV: the plan; what the keys of bits begin with; a slice's time in ms, or 0; how many slices;
--         for each generation that may be: how many shards it has
--   returns: 1 if it was there, else 0
--
-- A filter that has lost its plan, and is known by what was made, is removed as well. Atomic because a filter
-- made anew at the same moment must not lose its bits.

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
