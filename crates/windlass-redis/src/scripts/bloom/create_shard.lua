-- Makes sure that a shard of a filter has its header and its full length.
--
--   KEYS: the plan, the shard, the record of creation
--   ARGV: the plan, the header (8 bytes), the index of the last byte, '1' if this is the last shard to create
--   returns: 1 if the filter exists, 0 if not, 2 if it exists and has lost this shard
--
-- Bits may be written before the header: they count while the filter is being created. Once all
-- shards exist, a shard without a header was lost, with everything in it. If the filter does not
-- exist, the shard is deleted. Atomic because the filter may be created or removed meanwhile.

if redis.call('GET', KEYS[1]) ~= ARGV[1] then
  redis.call('UNLINK', KEYS[2])
  return 0
end
if redis.call('GETRANGE', KEYS[2], 0, 7) ~= ARGV[2] then
  if redis.call('GET', KEYS[3]) == '1 ' .. ARGV[1] then
    return 2
  end
  -- The last byte first: a string that is created at its full length takes no more memory than
  -- needed.
  if redis.call('STRLEN', KEYS[2]) <= tonumber(ARGV[3]) then
    redis.call('SETRANGE', KEYS[2], ARGV[3], '\0')
  end
  redis.call('SETRANGE', KEYS[2], 0, ARGV[2])
end
if ARGV[4] == '1' and redis.call('GET', KEYS[3]) ~= '1 ' .. ARGV[1] then
  redis.call('SET', KEYS[3], '1 ' .. ARGV[1])
end
return 1
