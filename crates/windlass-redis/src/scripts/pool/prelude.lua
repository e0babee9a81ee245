-- Decisions on pools: whatever has capacity for more than one holder (semaphores, read-write locks)
-- or has observers (elections, barriers). The files of this folder are joined into one script.
--
--   KEYS[1]     the fence counter
--   KEYS[2 ..]  for each decision: the pool (hash), its holders (sorted set of owners by the end of
--               their claims, in the server's ms), its queue (sorted set of waiting owners by
--               ticket)
--   ARGV[1]     how many fences the batch may need
--   ARGV[2 ..]  for each decision: verb, kind, owner, then the arguments that the verb's function
--               has behind "owner"
--   returns     one reply for each decision: what the verb's function returns, or {'error', text}
--               if it failed (say, on a key of another type), which does not affect the others
--
-- In the pool, fields that begin with a space are the pool's own, as no owner has spaces:
--   " size"; " extra" = what holders weigh beyond one each; " line" = how many wait; " overtook" =
--   the highest fence granted ahead of a waiter; " open" = for a barrier, that all parties have
--   arrived; " until" = when these keys expire.
-- Every other field is the claim record of that owner:
--   "<fence> <weight> <ttl ms> <end, if waiting> <since> <tail>", where the tail is "<channel>
--   <claim> <note>".
-- A holder of weight one may have no record until its first renewal. The set of holders has a
-- member " " that never ends, so that it keeps its expiry when nobody holds.

local call = redis.call
local fence_key = KEYS[1]
-- quorum_node/prelude.lua sets it, and says what is different then.
local is_quorum_node = false
local next_fence, last_fence
local time = call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
-- What fast_path.lua has read for the only decision of a batch: the fields that "begin" reads, and how
-- many hold.
local known_fields, known_count
