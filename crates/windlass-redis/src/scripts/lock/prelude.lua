-- What all lock decisions share. The files of this folder are joined into one script, which takes
-- a batch of decisions in order:
--
--   KEYS[1]            the fence counter
--   KEYS[2 ..]         for each decision: the lock (the bare name; value = owner), its line
--                      (sorted set of waiting owners, by place), the asker's claim record
--   ARGV[1]            how many fences the batch may need
--   ARGV[2 ..]         for each decision: its letter, the owner, then its own arguments
--
-- Returns one reply for each decision. One script is one atomic step for Redis; a decision that
-- fails (a key of another type) is answered with an error and does not touch the others.
--
-- A claim record is "<fence> <ttl ms> <since> <channel> <claim> <note>", and lives as long as the
-- claim: its expiry is how a dead waiter is known. "Since" is when it was made, in the server's
-- milliseconds, for people to see; clients send how long ago that was. <channel> and <claim> are the
-- claim's address. The key of another waiter's record is the asker's with the other owner in it: same
-- hash tag, same slot.

local call = redis.call
local fence_key = KEYS[1]
local next_fence, last_fence
-- In a cluster each slot has a counter, and may be on its way to another node.
local may_move = fence_key ~= 'windlass:fence'
-- Who that is in the line of the only decision, if it was looked up.
local first_in_line
