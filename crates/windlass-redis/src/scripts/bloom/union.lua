-- Adds the bits of one shard to another.
--
--   KEYS: the plans of both filters, then both shards: into, from; then both records of creation
--   ARGV: the plan that both must have, the header (8 bytes)
--   returns: 1, 0 if one of the filters does not exist, 2 if `into` has lost the shard, 3 if
--     `from` has
--
-- Both headers are equal, because they come from the plan, so OR leaves them unchanged. Atomic
-- because either filter may be removed or created again with another plan meanwhile.

for i = 1, 2 do
  if redis.call('GET', KEYS[i]) ~= ARGV[1] then
    return 0
  end
  if redis.call('GETRANGE', KEYS[2 + i], 0, 7) ~= ARGV[2]
    and redis.call('GET', KEYS[4 + i]) == '1 ' .. ARGV[1]
  then
    return 1 + i
  end
end
if KEYS[3] ~= KEYS[4] and redis.call('EXISTS', KEYS[4]) == 1 then
  redis.call('BITOP', 'OR', KEYS[3], KEYS[3], KEYS[4])
end
return 1
