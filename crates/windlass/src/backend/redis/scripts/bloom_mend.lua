-- Makes sure that a shard of a filter has its header and its whole length.
--
--   KEYS: the plan, the shard's bits
--   ARGV: the plan, the header (8 bytes), the number of the last byte
--   returns: 1 if the filter is there, 0 if not
--
-- The bits may have been written before the header was: they count. If the filter is gone, what was
-- written is nobody's, and goes. Atomic because the filter may be created or removed meanwhile.

if redis.call('GET', KEYS[1]) ~= ARGV[1] then
  redis.call('UNLINK', KEYS[2])
  return 0
end
-- The last byte first: a string that is made at its full length takes no more than it needs.
if redis.call('STRLEN', KEYS[2]) <= tonumber(ARGV[3]) then
  redis.call('SETRANGE', KEYS[2], ARGV[3], '\0')
end
redis.call('SETRANGE', KEYS[2], 0, ARGV[2])
return 1
