-- Before all else, one decision alone that meets nobody: a lock that is free, or given back with nobody in
-- line. In a cluster most calls are that. Here because whatever a script makes before it decides, a function or a table,
-- costs as much as a command; it decides as the code below would.

if ARGV[2] == 'A' and #ARGV == 6 then
  if (ARGV[5] == 'q' or ARGV[5] == '') and call('EXISTS', KEYS[2], KEYS[3]) == 0 then
    last_fence = redis.pcall('INCRBY', fence_key, 1)
    -- Else a new counter, or a server that takes no writes: see "draw".
    if type(last_fence) == 'number' and last_fence > 1 then
      call('SET', KEYS[2], ARGV[3], 'PX', ARGV[4])
      return {last_fence}
    end
  end
elseif may_move and ARGV[2] == 'R' and #ARGV == 4 and ARGV[4] == '' then
  local line = redis.pcall('ZRANGE', KEYS[3], 0, 0)
  first_in_line = line[1]
  if not first_in_line and not line.err and redis.pcall('GET', KEYS[2]) == ARGV[3] then
    call('DEL', KEYS[2], KEYS[4])
    return {1}
  end
end
