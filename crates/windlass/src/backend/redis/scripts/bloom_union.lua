-- Adds the bits of one shard to another.
--
--   KEYS: the plan of both filters, then the bits of both shards: into, from
--   ARGV: the plan that both must have
--   returns: 1, or 0 if one of the filters is not there
--
-- The headers are equal, since they come from the plan; so they stay as they are. Atomic because
-- either filter may be removed, or made anew with another plan, meanwhile.

if redis.call('GET', KEYS[1]) ~= ARGV[1] or redis.call('GET', KEYS[2]) ~= ARGV[1] then
  return 0
end
if KEYS[3] ~= KEYS[4] and redis.call('EXISTS', KEYS[4]) == 1 then
  redis.call('BITOP', 'OR', KEYS[3], KEYS[3], KEYS[4])
end
return 1
