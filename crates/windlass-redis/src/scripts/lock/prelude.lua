-- Decisions on locks: the files of this folder are joined into one script.
--
--   KEYS[1]     the fence counter
--   KEYS[2 ..]  for each decision: the lock (the bare name; its value is the owner), its queue
--               (sorted set of waiting owners by ticket), the claim record of the owner
--   ARGV[1]     how many fences the batch may need
--   ARGV[2 ..]  for each decision: verb, owner, then the arguments that the verb's function has
--               behind "owner"
--   returns     one reply for each decision: what the verb's function returns, or {'error', text}
--               if it failed (say, on a key of another type), which does not affect the others
--
-- A claim record is "<fence> <ttl ms> <since> <tail>", where the tail is "<channel> <claim>
-- <note>". It lives as long as the claim: a waiter without a record is dead. "Since" is when the
-- claim was made, by the server's clock in ms, for people to see; clients send how long ago that
-- was. "<channel> <claim>" is the claim's address, which tells it from other claims of the same
-- owner. Another owner's record has the same key but for the owner at its end: same hash tag, same
-- slot.

local call = redis.call
local fence_key = KEYS[1]
-- quorum_node/prelude.lua sets it, and says what is different then.
local is_quorum_node = false
local next_fence, last_fence
-- In a cluster each slot has a counter of its own, and may be migrating to another node.
local may_migrate = string.find(fence_key, '{', 1, true)
-- The first waiter in the queue of the only decision, if single.lua has read it.
local first_waiter
