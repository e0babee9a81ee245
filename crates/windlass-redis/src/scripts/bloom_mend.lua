-- Makes sure that a shard of a filter has its header and its whole length.
--
--   KEYS: the plan, the shard's bits, what was made
--   ARGV: the plan, the header (8 bytes), the number of the last byte, '1' if all other shards are made
--   returns: 1 if the filter is there, 0 if not, 2 if it is and has lost this shard
--
-- The bits may have been written before the header was: they count, while the filter is being made. Once all of
-- it was made, a shard without a header is one that was lost, with all that was in it. If the filter is gone, what
-- was written is nobody's, and goes. Atomic because the filter may be created or removed meanwhile.

if redis.call('GET', KEYS[1]) ~= ARGV[1] then
  redis.call('UNLINK', KEYS[2])
  return 0
end
if redis.call('GETRANGE', KEYS[2], 0, 7) ~= ARGV[2] then
  if redis.call('GET', KEYS[3]) == '1 ' .. ARGV[1] then
    return 2
  end
  -- The last byte first: a string that is made at its full length takes no more than it needs.
  if redis.call('STRLEN', KEYS[2]) <= tonumber(ARGV[3]) then
    redis.call('SETRANGE', KEYS[2], ARGV[3], '\0')
  end
  redis.call('SETRANGE', KEYS[2], 0, ARGV[2])
end
if ARGV[4] == '1' and redis.call('GET', KEYS[3]) ~= '1 ' .. ARGV[1] then
  redis.call('SET', KEYS[3], '1 ' .. ARGV[1])
end
return 1
