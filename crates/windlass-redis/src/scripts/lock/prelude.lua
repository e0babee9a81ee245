-- Decisions on locks: the files of this folder are joined into one script.
--
--   KEYS     the fence counter; then the lock of each decision (the bare name; its value is the
--            owner), the queue of each (sorted set of waiting owners by ticket), and in a cluster
--            the claim record of each
--   ARGV[1]  how many fences the batch may need
--   ARGV[2]  one letter for each decision:
--              a  acquire with the flag q    t  acquire without flags    A  acquire
--              r  release of a claim that has no record, and the only one of its owner
--              R  release    N  renew    B  break_lock    C  confirm    Q  requeue
--   ARGV[3]  the ttl of "a" and "t" in ms
--   ARGV[4]  the client's channel
--   ARGV[5]  the claim of each "a" and "t", in decimal, with spaces in between
--   ARGV[6 ..]  the owner of each decision; then what else each has: for A, R, N, B, C and Q the
--            arguments of the verb's function behind "owner"; for "a" and "t" on a node of a
--            quorum, the proposal
--   returns  one reply for each decision: what the verb's function returns, or {'error', text} if
--            it failed (say, on a key of another type), which does not affect the others. The reply
--            to the only decision may come without a list, if it is a number.
--
-- A claim record is "<fence> <ttl ms> <since> <tail>", where the tail is "<channel> <claim>
-- <note>". It lives as long as the claim: a waiter without a record is dead. "Since" is when the
-- claim was made, by the server's clock in ms, for people to see; clients send how long ago that
-- was. "<channel> <claim>" is the claim's address, which tells it from other claims of the same
-- owner. The record's key is a prefix and the owner: same hash tag, same slot as the lock.
--
-- Keys and arguments are few, because each costs a tenth of a command.

local call = redis.call
local fence_key, verbs = KEYS[1], ARGV[2]
local count = #verbs
-- quorum_node/prelude.lua sets it, and says what is different then.
local is_quorum_node = false
local next_fence, last_fence
-- In a cluster each slot has a counter of its own, and may be migrating to another node. Records are
-- declared there: a key that is not may have moved already.
local may_migrate = #KEYS > 3 * count
-- What single.lua has found out about the only decision: how many of lock and queue exist; that its
-- owner gives up the lock, and the first waiter, or false.
local existing, first_waiter
