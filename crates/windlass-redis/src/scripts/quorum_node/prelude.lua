-- Behind the prelude of a script that runs on one node of a quorum. The decisions are those of a
-- single server, with three differences:
--
-- * a request for a lock proposes the number that it would like, so that all nodes can give the
--   same one (fence.lua has the rule, as does `rules/quorum.rs`);
-- * a ticket is not the number of the later grant: others take higher numbers while the owner
--   waits, so it takes one of its own when it holds;
-- * there are two more decisions, confirm and requeue (quorum_node/lock.lua and
--   quorum_node/pool.lua).
is_quorum_node = true
