//! Tests that cannot fail prove nothing: here each safety promise is broken on purpose, in a copy of
//! the sources, and the test that guards it must notice.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// One broken variant.
struct Mutant {
    /// Which promise it breaks.
    breaks: &'static str,
    file: &'static str,
    from: &'static str,
    to: &'static str,
    /// Arguments of `cargo test` that must fail.
    caught_by: &'static [&'static str],
}

const LIB: &str = "crates/windlass/src";

const MUTANTS: &[Mutant] = &[
    Mutant {
        breaks: "a renewal is confirmed by a majority (ZooKeeper)",
        file: "backend/zookeeper/session.rs",
        from: "match check.commit().await.map_err(ZkError::from) {\n            Ok(_) => Ok(true),",
        to: "drop(check);\n        match self.client.check_stat(path).await {\n            Ok(there) => Ok(there.is_some()),",
        caught_by: &["--test", "zookeeper_faults", "a_server_that_is_cut_off"],
    },
    Mutant {
        breaks: "a session outlives its claims (ZooKeeper)",
        file: "backend/zookeeper/session.rs",
        from: "((ttl + HALF_TICK) * 100 / (100 - PING_GAP)).min(LONGEST)",
        to: "(ttl / 2).min(LONGEST)",
        caught_by: &["--lib", "a_session_outlives_what_it_keeps"],
    },
    Mutant {
        breaks: "the order survives the end of all numbers (ZooKeeper)",
        file: "backend/zookeeper/line.rs",
        from: "node.sequence.0 == i32::MAX || node.sequence.0 < 0;",
        to: "node.sequence.0 == i32::MAX && node.sequence.0 < 0;",
        caught_by: &["--test", "zookeeper_faults", "turns_go_on_when_the_numbers"],
    },
    Mutant {
        breaks: "other layouts are refused (ZooKeeper)",
        file: "backend/zookeeper/acquire.rs",
        from: "if let Some(foreign) = &view.foreign {",
        to: "if let Some(foreign) = view.foreign.as_ref().filter(|_| false) {",
        caught_by: &["--test", "zookeeper_access", "another_layout_is_refused"],
    },
    Mutant {
        breaks: "one who waits watches one claim (ZooKeeper)",
        file: "backend/zookeeper/wait.rs",
        from: "let path = format!(\"{parent}/{}\", blocker.name);",
        to: "let path = format!(\"{parent}/{}\", view.nodes.first().unwrap_or(blocker).name);",
        caught_by: &["--test", "zookeeper_faults", "two_hundred_who_wait"],
    },
    Mutant {
        breaks: "a renewal that a deposed leader granted does not count (etcd)",
        file: "backend/etcd/leases.rs",
        from: "if renewing.alive && term != renewing.term {",
        to: "if renewing.alive && term < renewing.term {",
        caught_by: &["--lib", "a_renewal_counts_only_in_the_term"],
    },
    Mutant {
        breaks: "a waiter whose key is gone is not granted (etcd)",
        file: "backend/etcd/line.rs",
        from: "if ours.is_none_or(|kv| kv.create_revision != created) {",
        to: "if ours.is_some_and(|kv| kv.create_revision != created) {",
        caught_by: &["--test", "etcd_faults", "a_dead_waiter_is_never_granted"],
    },
    Mutant {
        breaks: "whoever barges in has seen who was let in (etcd)",
        file: "backend/etcd/rooms.rs",
        from: ".filter(|seat| seat.kv.key != chair.key.as_bytes())\n        .fold(",
        to: ".filter(|seat| seat.kv.key.is_empty())\n        .fold(",
        caught_by: &["--test", "etcd_faults", "one_who_barges_in"],
    },
    Mutant {
        breaks: "a watch that was compacted away is set again (etcd)",
        file: "backend/etcd/line.rs",
        from: "                if lost {\n",
        to: "                if lost && wake.claim == 0 {\n",
        caught_by: &["--test", "etcd_faults", "compaction_leaves_the_one_ahead"],
    },
    Mutant {
        breaks: "a key that was made anew is not what was held (etcd)",
        file: "backend/etcd/store.rs",
        from: "self.held.is_some() && kv.create_revision != self.created",
        to: "self.held.is_some() && kv.create_revision < self.created",
        caught_by: &["--test", "etcd_faults", "a_key_that_was_made_anew"],
    },
    Mutant {
        breaks: "a move that went unanswered is found again (ZooKeeper)",
        file: "backend/zookeeper/release.rs",
        from: "            && delete(&entry.session, &node.path).await?\n        {\n            return Ok(true);",
        to: "        {\n            return delete(&entry.session, &node.path).await;",
        caught_by: &["--test", "zookeeper_faults", "a_move_whose_answer_was_lost"],
    },
    Mutant {
        breaks: "a release checks the owner (Redis)",
        file: "backend/redis/scripts/lock/common.lua",
        from: "pcall_redis('GET', lock) == owner then",
        to: "pcall_redis('GET', lock) then",
        caught_by: &["--test", "conformance_redis", "a_stranger_cannot_release"],
    },
    Mutant {
        breaks: "a release checks the owner (rules: memory and file)",
        file: "backend/rules/claims.rs",
        from: "let holder = sitting.line.holder(owner)?.filter(|h| h.expires > now);",
        to: "let holder = sitting.line.first_to_expire()?.filter(|h| h.expires > now);",
        caught_by: &["--test", "conformance_file", "a_stranger_cannot_release"],
    },
    Mutant {
        breaks: "fences never go back, even if the counter is lost (Redis)",
        file: "backend/redis/scripts/fences.lua",
        from: "if last_fence <= 2 * count then",
        to: "if false then",
        caught_by: &["--test", "redis_faults", "comes_back_empty"],
    },
    Mutant {
        breaks: "fences grow over a failover that lost grants (sentinels)",
        file: "backend/redis/scripts/reign.lua",
        from: "call('INCRBY', KEYS[1], ARGV[2])",
        to: "call('INCRBY', KEYS[1], 0)",
        caught_by: &["--test", "redis_failover", "fences_grow_over_a_failover"],
    },
    Mutant {
        breaks: "fences grow over a failover that lost grants (cluster)",
        file: "backend/redis/scripts/reign.lua",
        from: "call('GET', KEYS[2]) == ARGV[1]",
        to: "call('GET', KEYS[2])",
        caught_by: &["--test", "redis_cluster", "fences_grow_over_a_failover"],
    },
    Mutant {
        breaks: "a master that was replaced and still answers is left",
        file: "backend/redis/link.rs",
        from: "    pub(super) fn leave(&self) {\n        self.drop_connection();\n",
        to: "    pub(super) fn leave(&self) {\n",
        caught_by: &["--test", "redis_failover", "still_answers_is_left"],
    },
    Mutant {
        breaks: "one sentinel that has heard of a failover is enough",
        file: "backend/redis/sentinel.rs",
        from: "now.epoch > ours.epoch && now.address",
        to: "now.epoch > ours.epoch + 9 && now.address",
        caught_by: &["--test", "redis_sentinels", "one_sentinel_that_knows"],
    },
    Mutant {
        breaks: "fences grow for those who were connected to the replica before",
        file: "backend/redis/link.rs",
        from: "was_replica: greeting.is_replica(),",
        to: "was_replica: greeting.is_replica() && false,",
        caught_by: &["--test", "redis_sentinels", "before_it_was_promoted"],
    },
    Mutant {
        breaks: "a grant that no replica has is given up",
        file: "backend/replicas.rs",
        from: "self.replicas >= wanted.count",
        to: "(self.replicas >= wanted.count || true)",
        caught_by: &[
            "--test",
            "redis_failover",
            "a_grant_counts_when_replicas_have_it",
        ],
    },
    Mutant {
        breaks: "calls follow a slot that moves",
        file: "backend/redis/topology.rs",
        from: "Some(\"TRYAGAIN\") => Redirection::TryAgain,",
        to: "Some(\"TRYAGAIN\") => Redirection::None,",
        caught_by: &["--test", "redis_cluster", "a_slot_moves"],
    },
    Mutant {
        breaks: "somebody looks after the connection that wake-ups come over (cluster)",
        file: "backend/redis/cluster.rs",
        from: "        tokio::spawn(look_after(Arc::downgrade(&cluster)));\n",
        to: "        let _ = look_after;\n",
        caught_by: &["--test", "redis_cluster", "the_node_that_we_listen_at_dies"],
    },
    Mutant {
        breaks: "fences never go back, even after a power cut (file)",
        file: "backend/file/open.rs",
        from: "SET last = ceiling, ceiling = ceiling + ?1, boot = ?2",
        to: "SET ceiling = ceiling + ?1, boot = ?2",
        caught_by: &["--test", "file_store", "fences_survive_a_power_cut"],
    },
    Mutant {
        breaks: "fences grow in the order of grants",
        file: "backend/redis/scripts/lock/acquire.lua",
        from: "      place = draw()\n",
        to: "      place = 1e15 - draw() + 1e15\n",
        caught_by: &["--lib", "the_scripts_decide_as_the_rules_do"],
    },
    Mutant {
        breaks: "a release by another library is noticed (Redis)",
        file: "backend/redis/scripts/lock/shared.lua",
        from: "if left < 0 or left > pause then",
        to: "if false then",
        caught_by: &["--test", "redis_access", "a_release_by_another_library"],
    },
    Mutant {
        breaks: "a quorum's fence is one that a majority gave",
        file: "backend/rules/vote.rs",
        from: "count() >= majority)",
        to: "count() >= 1)",
        caught_by: &["--lib", "only_a_majority_agrees"],
    },
    Mutant {
        breaks: "a node that forgot has no vote",
        file: "backend/rules/vote.rs",
        from: "durable || up_ms > longest_ttl_ms",
        to: "durable || up_ms < u64::MAX || longest_ttl_ms == 0",
        caught_by: &[
            "--test",
            "redlock_faults",
            "a_node_that_forgot_lets_nobody_in",
        ],
    },
    Mutant {
        breaks: "a node that forgot hears the others' counters",
        file: "backend/quorum/node.rs",
        from: "_ => shared.highest_elsewhere(self).await?,",
        to: "_ => 0,",
        caught_by: &[
            "--test",
            "redlock_faults",
            "fences_grow_over_a_lost_counter",
        ],
    },
    Mutant {
        breaks: "whoever counts on a node is not undone by an earlier giving way",
        file: "backend/redis/scripts/vote/lock_more.lua",
        from: "string.match(call('GET', claim) or '', '^%d+') ~= number then",
        to: "number == '' then",
        caught_by: &["--lib", "a_node_of_a_quorum_decides_as_the_rules_do"],
    },
    Mutant {
        breaks: "a node of a quorum gives no number twice",
        file: "backend/redis/scripts/vote/fences.lua",
        from: "proposal and proposal > counter and proposal or counter + 1",
        to: "proposal and proposal >= counter and proposal or counter + 1",
        caught_by: &["--lib", "a_node_of_a_quorum_decides_as_the_rules_do"],
    },
    Mutant {
        breaks: "a place in line is no fence, though the answer got lost (quorum)",
        file: "backend/quorum/ballots.rs",
        from: "if !ballot.fences.contains(&known) {",
        to: "if ballot.fences.is_empty() {",
        caught_by: &["--lib", "a_place_in_line_never_becomes_a_fence"],
    },
    Mutant {
        breaks: "whoever comes again out of line draws a fence (quorum)",
        file: "backend/redis/scripts/vote/room_more.lua",
        from: "    set(at, 'overtook', claim.fence)\n",
        to: "",
        caught_by: &["--lib", "a_node_of_a_quorum_decides_as_the_rules_do"],
    },
    Mutant {
        breaks: "claims that are each ahead on a few nodes give way",
        file: "backend/quorum/renew.rs",
        from: "if heard.should_give_way(claim.owner.as_str(), self.majority) {",
        to: "if false && heard.should_give_way(claim.owner.as_str(), self.majority) {",
        caught_by: &[
            "--test",
            "redlock_faults",
            "many_who_want_the_same_all_get_it",
        ],
    },
    Mutant {
        breaks: "of those who try at once, the one with most votes asks again",
        file: "backend/quorum/acquire.rs",
        from: "const REVOTES: u32 = 5;",
        to: "const REVOTES: u32 = 0;",
        caught_by: &["--test", "redlock_faults", "one_of_those_who_try_gets_it"],
    },
    Mutant {
        breaks: "a waiter is woken, and does not poll (Redis)",
        file: "backend/redis/scripts/lock/prelude.lua",
        from: "      redis.pcall('PUBLISH', channel, id .. ' ' .. fence)\n",
        to: "",
        caught_by: &[
            "--test",
            "conformance_redis",
            "a_waiter_elsewhere_is_woken_at_once",
        ],
    },
    Mutant {
        breaks: "a waiter is woken, and does not poll (file, between processes)",
        file: "backend/file/wake.rs",
        from: "match socket.send_to_addr(bytes, &address) {",
        to: "match io::Result::Ok(bytes.len()) {",
        caught_by: &[
            "--test",
            "conformance_file",
            "a_waiter_elsewhere_is_woken_at_once",
        ],
    },
    Mutant {
        breaks: "a lost wake-up is repaired by a timer",
        file: "lease/keeper.rs",
        from: "let beat = round_down(state.confirmed + third, batching_grid(third));",
        to: "let beat = round_down(state.confirmed + third * 1000, batching_grid(third));",
        caught_by: &[
            "--test",
            "redis_line",
            "a_lost_wakeup_is_repaired_by_a_timer",
        ],
    },
    Mutant {
        breaks: "validity runs from before the request was sent",
        file: "lease/acquire.rs",
        from: "keeper.hold(&claim, sent, fence, recorded)",
        to: "keeper.hold(&claim, clock.now(), fence, recorded)",
        caught_by: &["--test", "redis_faults", "held_back_beyond_the_ttl"],
    },
    Mutant {
        breaks: "loss is told before the store lets go",
        file: "lease/validity.rs",
        from: "sent + ttl.saturating_sub(drift(ttl))",
        to: "sent + ttl + drift(ttl)",
        caught_by: &["--test", "redis_faults", "told_before_the_server_lets_go"],
    },
    Mutant {
        breaks: "nobody believes to hold what another was granted (as all clients saw it, under faults)",
        file: "lease/validity.rs",
        from: "sent + ttl.saturating_sub(drift(ttl))",
        to: "sent + ttl * 3",
        caught_by: &["--test", "histories", "single_redis"],
    },
    Mutant {
        breaks: "every grant has a fence of its own (as all clients saw it, under faults)",
        file: "backend/redis/scripts/fences.lua",
        from: "  return next_fence\nend",
        to: "  return 1000000 + math.floor(next_fence / 2)\nend",
        caught_by: &["--test", "histories", "single_redis"],
    },
    Mutant {
        breaks: "\"not yours any more\" is loss at once",
        file: "lease/keeper.rs",
        from: "                claim.now_lost(&mut state);\n                return;",
        to: "                return;",
        caught_by: &["--test", "conformance_memory", "a_broken_lock_is_lost"],
    },
    Mutant {
        breaks: "cancelling leaves nothing behind",
        file: "lease/undo.rs",
        from: "if self.armed {",
        to: "if false {",
        caught_by: &["--test", "conformance_memory", "cancel::"],
    },
    Mutant {
        breaks: "a dead waiter is skipped (Redis)",
        file: "backend/redis/scripts/lock/prelude.lua",
        from: "local record = call('GET', prefix .. head)",
        to: "local record = call('GET', prefix .. head) or '1 30000 0 x 1 '",
        caught_by: &["--test", "conformance_redis", "a_dead_waiter_is_skipped"],
    },
    Mutant {
        breaks: "a dead waiter is skipped (rules: memory and file)",
        file: "backend/rules/claims.rs",
        from: "} else if waiter.expires <= self.now {",
        to: "} else if waiter.expires == self.now {",
        caught_by: &[
            "--lib",
            "a_dead_waiter_is_skipped_and_only_the_next_is_woken",
        ],
    },
    Mutant {
        breaks: "nobody overtakes the line",
        file: "backend/redis/scripts/lock/common.lua",
        from: "if call('EXISTS', lock, line) == 0 then",
        to: "if call('EXISTS', lock) == 0 then",
        caught_by: &["--lib", "the_scripts_decide_as_the_rules_do"],
    },
    Mutant {
        breaks: "every key has an end",
        file: "backend/redis/scripts/lock/shared.lua",
        from: "    call('PEXPIRE', line, ttl)\n",
        to: "",
        caught_by: &["--test", "redis_faults", "every_key_has_an_end"],
    },
    Mutant {
        breaks: "a gate refuses a stale fence",
        file: "backend/redis/scripts/gate_admit.lua",
        from: "(#seen > #fence or (#seen == #fence and seen > fence))",
        to: "(seen > fence)",
        caught_by: &["--test", "conformance_redis", "refuses_what_is_stale"],
    },
    Mutant {
        breaks: "a limiter compares numbers, not text (Redis)",
        file: "backend/redis/scripts/limit/rest.lua",
        from: "    if state[4] + cost <= rule.full then\n      return {'f'",
        to: "    if digits(state[4] + cost) <= digits(rule.full) then\n      return {'f'",
        caught_by: &["--lib", "the_limit_script_decides_as_the_rules_do"],
    },
    Mutant {
        breaks: "a counter compares numbers, not text (Redis)",
        file: "backend/redis/scripts/counter_add.lua",
        from: "    return (#a > #b) ~= a_minus\n",
        to: "    return a > b\n",
        caught_by: &["--test", "conformance_redis", "counter::bounds_refuse"],
    },
    Mutant {
        breaks: "a limiter goes by the server's clock, not the client's",
        file: "backend/redis/scripts/limit/common.lua",
        from: "local now = time[1] * 1000000 + time[2]",
        to: "local now = (time[1] - #KEYS[1] % 7) * 1000000 + time[2]",
        caught_by: &["--lib", "the_limit_script"],
    },
    Mutant {
        breaks: "a denied call is not charged (Redis)",
        file: "backend/redis/scripts/limit/common.lua",
        from: "        replies[n] = denied .. state\n",
        to: "        pcall_redis('SET', key, front .. format('%.0f 0', tat), 'PX', 60000)\n        \
             replies[n] = denied .. state\n",
        caught_by: &["--test", "conformance_redis", "denied_is_not_charged"],
    },
    Mutant {
        breaks: "a denied call is not charged (rules: memory and file)",
        file: "backend/rules/limit/window.rs",
        from: "(count <= *limit).then_some(State::Fixed {\n                period,\n                start,\n                count,",
        to: "(count <= *limit || cost > 3).then_some(State::Fixed {\n                period,\n                start,\n                count: count.min(*limit),",
        caught_by: &["--lib", "retry_after_is_exact"],
    },
    Mutant {
        breaks: "several quotas are one decision",
        file: "backend/rules/limit/mod.rs",
        from: "        if let Some(mut states) = states.try_map(rules.len(), charge) {",
        to: "        if let Some(mut states) = states.try_map(1, charge) {",
        caught_by: &[
            "--test",
            "conformance_memory",
            "several_quotas_are_one_decision",
        ],
    },
    Mutant {
        breaks: "a check is one step: nobody comes between looking and charging (Redis)",
        file: "backend/redis/scripts/limit/common.lua",
        from: "    local state = latest[key] or stored[n]\n",
        to: "    local state = stored[n]\n",
        caught_by: &["--lib", "the_limit_script_decides_a_batch_as_the_rules_do"],
    },
    Mutant {
        breaks: "retry-after is exact",
        file: "backend/rules/limit/bucket.rs",
        from: "                next.minus(latest, amount).ceil()\n",
        to: "                next.minus(latest, amount).us\n",
        caught_by: &["--lib", "retry_after_is_exact"],
    },
    Mutant {
        breaks: "a year of calls does not drift",
        file: "backend/rules/limit/span.rs",
        from: "                part: whole % self.amount,\n            },\n            None",
        to: "                part: 0,\n            },\n            None",
        caught_by: &["--lib", "a_year_of_traffic_does_not_drift"],
    },
    Mutant {
        breaks: "lent units are charged as if used at the end of their time",
        file: "backend/rules/limit/lend.rs",
        from: "let start = tat.max(Span::whole(now + b.lend_time()));",
        to: "let start = tat.max(Span::whole(now));",
        caught_by: &["--lib", "lending_never_exceeds_the_quota"],
    },
    Mutant {
        breaks: "giving back takes nothing from other loans",
        file: "backend/rules/limit/lend.rs",
        from: "let lower = tat.minus(time, b.amount).max(needed);",
        to: "let lower = tat.minus(time, b.amount).max(Span::whole(needed.us.min(now)));",
        caught_by: &["--lib", "giving_back_leaves_what_others_were_lent"],
    },
    Mutant {
        breaks: "lent units are not used after their time",
        file: "limit/leased/loan.rs",
        from: "Duration::from_micros(micros - micros / 100)",
        to: "Duration::from_micros(micros * 20)",
        caught_by: &[
            "--test",
            "conformance_memory",
            "all_together_never_use_more",
        ],
    },
    Mutant {
        breaks: "a limiter's key ends by itself",
        file: "backend/redis/scripts/limit/common.lua",
        from: "pcall_redis('SET', key, state, 'PX', ceil((tat - now) / 1000) + 2, 'NX')",
        to: "pcall_redis('SET', key, state, 'NX')",
        caught_by: &["--test", "limit_faults", "every_limiter_ends_by_itself"],
    },
    Mutant {
        breaks: "a limiter's quotas go by what they are, not by their place (rules: memory and file)",
        file: "backend/rules/limit/matching.rs",
        from: "            Some(state) => state.take(),",
        to: "            Some(_) => None,",
        caught_by: &["--test", "conformance_memory", "the_order_does_not_matter"],
    },
    Mutant {
        breaks: "a limiter's quotas go by what they are, not by their place (Redis)",
        file: "backend/redis/scripts/limit/states.lua",
        from: "    if which then\n",
        to: "    if false then\n",
        caught_by: &["--lib", "by_several_quotas_as_the_rules_do"],
    },
    Mutant {
        breaks: "a limiter's quota of the same rate has used what the other has",
        file: "backend/rules/limit/matching.rs",
        from: "            None => stored.iter().filter(|state| rule.is_of(state)).last(),",
        to: "            None => None,",
        caught_by: &["--test", "conformance_memory", "the_order_does_not_matter"],
    },
    Mutant {
        breaks: "a limiter's window of another length has used what it has used",
        file: "backend/rules/limit/window.rs",
        from: "                _ => end.min(now + another),",
        to: "                _ => now,",
        caught_by: &["--test", "conformance_memory", "a_window_of_another_length"],
    },
    Mutant {
        breaks: "a limiter that was reset takes back nothing from before (rules: memory and file)",
        file: "backend/rules/limit/mod.rs",
        from: "let known = mark != 0 && mark == states.mark();",
        to: "let known = mark != 0;",
        caught_by: &["--test", "conformance_memory", "a_reset_forgets"],
    },
    Mutant {
        breaks: "a limiter that was reset takes back nothing from before (Redis)",
        file: "backend/redis/scripts/limit/rest.lua",
        from: "(given > 0 and given == mark) and q or 0",
        to: "q",
        caught_by: &["--test", "conformance_redis", "a_reset_forgets"],
    },
    Mutant {
        breaks: "a limiter leaves alone what others wrote at its key (Redis)",
        file: "backend/redis/scripts/limit/common.lua",
        from: ", 'NX') or {err = FOREIGN}",
        to: ")",
        caught_by: &["--test", "limit_faults", "what_others_wrote_is_left_alone"],
    },
    Mutant {
        breaks: "all who wait for a leased limiter's store share one failure",
        file: "limit/leased/loan.rs",
        from: "        && purse.failures() != failures\n",
        to: "        && purse.failures() < failures\n",
        caught_by: &["--test", "leased_faults", "all_who_wait_share_one_failure"],
    },
    Mutant {
        breaks: "a leased limiter's store is found dead even if nobody waited to hear of it",
        file: "limit/leased/loan.rs",
        from: "    match tokio::spawn(call).await {",
        to: "    match Ok::<_, tokio::task::JoinError>(call.await) {",
        caught_by: &[
            "--test",
            "leased_faults",
            "a_dead_store_costs_a_leased_limiter_microseconds",
        ],
    },
    Mutant {
        breaks: "a limiter's time limit is for so many keys, not for all of them",
        file: "limit/ask.rs",
        from: "const TOGETHER: usize = 4_000;",
        to: "const TOGETHER: usize = 4_000_000;",
        caught_by: &[
            "--test",
            "limit_many",
            "many_keys_may_take_longer_than_one_call",
        ],
    },
    Mutant {
        breaks: "a limiter waits for a dead store once, however many keys there are",
        file: "limit/ask.rs",
        from: "            if let Some(problem) = problem {\n",
        to: "            if let (true, Some(problem)) = (asks.is_empty(), problem) {\n",
        caught_by: &[
            "--test",
            "limit_many",
            "many_keys_wait_for_a_dead_store_once",
        ],
    },
    Mutant {
        breaks: "a buffered counter that is dropped tries again",
        file: "counter/buffered.rs",
        from: "const TRIES: usize = 60;",
        to: "const TRIES: usize = 1;",
        caught_by: &["--test", "counter_buffer", "a_dropped_buffer_tries_again"],
    },
    Mutant {
        breaks: "a buffered counter is remembered for a day",
        file: "counter/buffered.rs",
        from: "counter.remember.max(super::DEFAULT_REMEMBER_OPERATION)",
        to: "counter.remember.min(super::DEFAULT_REMEMBER_OPERATION)",
        caught_by: &["--test", "counter_buffer", "a_buffer_leaves_one_record"],
    },
    Mutant {
        breaks: "a buffered counter's sums are counted once, by number (Redis)",
        file: "backend/redis/scripts/counter_add.lua",
        from: "elseif tonumber(number) <= tonumber(last) then",
        to: "elseif tonumber(number) == tonumber(last) then",
        caught_by: &["--lib", "the_counter_script_decides_as_the_rules_do"],
    },
    Mutant {
        breaks: "a buffered counter's refused sum is told when it is dropped",
        file: "counter/buffered.rs",
        from: "        if self.pending.is_empty() {\n            return;",
        to: "        if !self.pending.is_empty() {\n            return;",
        caught_by: &["--test", "counter_buffer", "what_is_lost_is_told"],
    },
    Mutant {
        breaks: "a dead store is not asked again and again",
        file: "limit/breaker.rs",
        from: "        if !self.open.load(Ordering::Relaxed) {\n            return Advice::Ask;",
        to: "        if true {\n            return Advice::Ask;",
        caught_by: &["--test", "limit_faults", "a_dead_store_costs_microseconds"],
    },
    Mutant {
        breaks: "an operation is counted once",
        file: "backend/redis/scripts/counter_add.lua",
        from: "if remember ~= '' and (added == 1 or number ~= '0') then",
        to: "if false then",
        caught_by: &["--test", "conformance_redis", "counter::adding_once"],
    },
    Mutant {
        breaks: "an unknown script is loaded, unseen",
        file: "backend/redis/wire.rs",
        from: "Err(failure) if failure.is_unknown_script() => {",
        to: "Err(failure) if failure.is_unknown_script() && false => {",
        caught_by: &["--test", "redis_faults", "a_flushed_script_cache"],
    },
    Mutant {
        breaks: "a new counter starts high for a whole batch (Redis)",
        file: "backend/redis/scripts/lock/common.lua",
        from: "          if not last_fence then\n",
        to: "          if not next_fence then\n",
        caught_by: &[
            "--test",
            "redis_rooms",
            "a_new_counter_starts_high_for_all_of_a_batch",
        ],
    },
    Mutant {
        breaks: "permits have owners: not a bare counter (rules: memory and file)",
        file: "backend/rules/claims.rs",
        from: "let holder = sitting.line.holder(owner)?.filter(|h| h.expires > now);",
        to: "let holder = sitting.line.first_to_expire()?.filter(|h| h.expires > now);",
        caught_by: &["--test", "conformance_file", "only_the_owner_releases"],
    },
    Mutant {
        breaks: "permits have owners: not a bare counter (Redis)",
        file: "backend/redis/scripts/room/common.lua",
        from: "local score = pcall_redis('ZSCORE', held, owner)",
        to: "local score = '9e15'",
        caught_by: &["--lib", "the_scripts_decide_as_the_rules_do"],
    },
    Mutant {
        breaks: "each claim ends by itself: no ttl that all share (rules)",
        file: "backend/rules/claims.rs",
        from: "            if holder.expires > self.now {\n                break;",
        to: "            if !self.line.holders(self.now, 1)?.is_empty() {\n                break;",
        caught_by: &["--test", "conformance_file", "the_dead_make_room"],
    },
    Mutant {
        breaks: "each claim ends by itself: no ttl that all share (Redis)",
        file: "backend/redis/scripts/room/sitting.lua",
        from: "local dead = call(",
        to: "local dead = call('ZCOUNT', at.held, digits(now), '9e15') > 0 and {} or call(",
        caught_by: &["--test", "conformance_redis", "the_dead_make_room"],
    },
    Mutant {
        breaks: "no client's clock counts (file)",
        file: "backend/file/worker.rs",
        from: "            now: clock.now(),\n",
        to: "            now: Moment::from_nanos(\n                std::time::UNIX_EPOCH.elapsed().unwrap().as_nanos() as u64,\n            ),\n",
        caught_by: &["--test", "crowds", "wrong_clocks_change_nothing_on_file"],
    },
    Mutant {
        breaks: "no client's clock counts (Redis)",
        file: "backend/redis/room.rs",
        from: "        let ttl = millis(ask.ttl);\n",
        to: "        // As if the client sent the moment at which its claim ends.\n        \
             let off = std::time::UNIX_EPOCH.elapsed().unwrap().as_secs() as i64\n            \
             - std::env::var(\"WINDLASS_TEST_NOW\").map_or(0, |now| now.parse::<i64>().unwrap());\n        \
             let ttl = (millis(ask.ttl) as i64 + off * 1000).max(1) as u64;\n",
        caught_by: &["--test", "crowds", "wrong_clocks_change_nothing_on_redis"],
    },
    Mutant {
        breaks: "who wants much is not starved",
        file: "backend/rules/claims.rs",
        from: "(!waits || ask.share.order == Order::Barging)",
        to: "(waits || !waits)",
        caught_by: &["--test", "conformance_memory", "the_heavy_are_not_starved"],
    },
    Mutant {
        breaks: "fences grow even where somebody barges in",
        file: "backend/rules/claims.rs",
        from: "match waiter.fence > self.room.overtook {",
        to: "match waiter.fence.get() > 0 {",
        caught_by: &["--test", "conformance_memory", "barging_overtakes"],
    },
    Mutant {
        breaks: "a round of a barrier is over before the next begins",
        file: "backend/rules/claims.rs",
        from: "self.room.open.is_none() && self.room.used",
        to: "self.room.used",
        caught_by: &["--test", "conformance_memory", "rounds_follow_each_other"],
    },
    Mutant {
        breaks: "those who watch are told, and do not poll (Redis)",
        file: "backend/redis/scripts/room/sitting.lua",
        from: "    redis.pcall('PUBLISH', 'windlass:news:' .. at.room, '')\n",
        to: "",
        caught_by: &["--test", "conformance_redis", "observers_follow"],
    },
    Mutant {
        breaks: "those who watch are told, and do not poll (file, between processes)",
        file: "backend/file/worker.rs",
        from: "} else if !wake::announce(client, channel) {",
        to: "} else if channel.is_empty() {",
        caught_by: &["--test", "conformance_file", "observers_follow"],
    },
    Mutant {
        breaks: "a count is counted once",
        file: "backend/redis/scripts/latch.lua",
        from: "if call('SISMEMBER', counted, operation) == 1 then",
        to: "if false then",
        caught_by: &[
            "--test",
            "redis_rooms",
            "a_count_whose_answer_was_lost_counts_once",
        ],
    },
    Mutant {
        breaks: "a room whose keys are lost is void (Redis)",
        file: "backend/redis/scripts/room/sitting.lua",
        from: "    call('DEL', held, line)\n",
        to: "",
        caught_by: &["--test", "redis_rooms", "a_room_that_loses_a_key_is_void"],
    },
    Mutant {
        breaks: "a dead head of the line is looked after (Redis)",
        file: "backend/redis/scripts/room/sitting.lua",
        from: "  if fits(at, weight) then\n    local head",
        to: "  if false then\n    local head",
        caught_by: &[
            "--test",
            "conformance_redis",
            "a_dead_head_blocks_nobody_for_long",
        ],
    },
    Mutant {
        breaks: "what was granted but not answered is undone, whatever the next answer is",
        file: "lease/undo.rs",
        from: "if !self.claim.was_unanswered() {",
        to: "if self.armed {",
        caught_by: &[
            "--test",
            "redis_rooms",
            "a_refusal_after_a_lost_answer_leaves_nothing",
        ],
    },
    Mutant {
        breaks: "a latch only goes forward",
        file: "backend/rules/latch.rs",
        from: "if now.ended(&terms.generation).is_some() {",
        to: "if now.generation.is_empty() {",
        caught_by: &[
            "--test",
            "conformance_memory",
            "generations_follow_each_other",
        ],
    },
    Mutant {
        breaks: "several locks are granted all or none (Redis)",
        file: "backend/redis/scripts/lock_all.lua",
        from: "  if call('EXISTS', lock, line) > 0 then",
        to: "  if i == 1 and call('EXISTS', lock, line) > 0 then",
        caught_by: &["--test", "conformance_redis", "all_or_none"],
    },
    Mutant {
        breaks: "a Bloom filter decides in one step (Redis): reading, then writing, is not",
        file: "backend/redis/bloom.rs",
        from: "            Ask::Insert => (\"BITFIELD\", \"SET\"),",
        to: "            Ask::Insert => (\"BITFIELD\", \"GET\"),",
        caught_by: &["--test", "conformance_redis", "bloom::knows_what"],
    },
    Mutant {
        breaks: "a Bloom filter's batch counts its own items (Redis)",
        file: "backend/redis/bloom_whole.rs",
        from: "            if ask == Ask::Insert {\n                // The same",
        to: "            if false {\n                // The same",
        caught_by: &["--lib", "bloom_filters_decide_as_the_rules_do"],
    },
    Mutant {
        breaks: "a Bloom filter that is gone is not taken for an empty one (Redis)",
        file: "backend/redis/bloom.rs",
        from: "has_header &= bits[0] == Value::Int(keys.fingerprint as i64);",
        to: "has_header &= bits[0] != Value::Nil;",
        caught_by: &["--test", "redis_bloom", "comes_back_empty"],
    },
    Mutant {
        breaks: "a Bloom filter that has lost its bits is not taken for an empty one (Redis: asking)",
        file: "backend/redis/bloom.rs",
        from: "found(if complete { LOST } else { 1 })",
        to: "found(if complete { 1 } else { LOST })",
        caught_by: &["--test", "redis_bloom", "lost_its_bits"],
    },
    Mutant {
        breaks: "a Bloom filter that has lost its bits is not taken for an empty one (Redis: inserting)",
        file: "backend/redis/scripts/bloom_mend.lua",
        from: "    return 2\n",
        to: "",
        caught_by: &["--test", "redis_bloom", "lost_its_bits"],
    },
    Mutant {
        breaks: "a Bloom filter that has lost its bits is not taken for an empty one (Redis: merging)",
        file: "backend/redis/scripts/bloom_merge.lua",
        from: "  return 2\n",
        to: "",
        caught_by: &["--test", "redis_bloom", "lost_its_bits"],
    },
    Mutant {
        breaks: "a Bloom filter that has lost its plan leaves nothing behind (Redis)",
        file: "backend/redis/scripts/bloom_create.lua",
        from: "if made and string.sub(made, 3) ~= ARGV[1] then",
        to: "if false then",
        caught_by: &["--test", "redis_bloom", "lost_its_plan"],
    },
    Mutant {
        breaks: "a Bloom filter's parameters are compared",
        file: "bloom/mod.rs",
        from: "if wanted == found {",
        to: "if wanted.kind == found.kind {",
        caught_by: &[
            "--test",
            "conformance_memory",
            "other_parameters_are_refused",
        ],
    },
    Mutant {
        breaks: "a Bloom filter's probes are as good as independent",
        file: "bloom/digest.rs",
        from: "        x ^ (x >> 32)\n    }",
        to: "        x >> 48\n    }",
        caught_by: &["--lib", "errors_are_as_rare_as_asked_at_capacity"],
    },
    Mutant {
        breaks: "a rotating Bloom filter remembers for the whole window (Redis)",
        file: "backend/redis/scripts/bloom_generations.lua",
        from: "oldest = newest - slices + 1",
        to: "oldest = newest",
        caught_by: &["--lib", "bloom_filters_decide_as_the_rules_do"],
    },
    Mutant {
        breaks: "a growing Bloom filter grows when it is full (Redis)",
        file: "backend/redis/scripts/bloom_generations.lua",
        from: "if counted >= capacity[newest + 1]",
        to: "if tostring(counted) >= tostring(capacity[newest + 1] + 1)",
        caught_by: &["--lib", "bloom_filters_decide_as_the_rules_do"],
    },
    Mutant {
        breaks: "permissions are not written by another schema (Redis)",
        file: "backend/redis/scripts/perm_write.lua",
        from: "~= ARGV[1] then",
        to: "== '' then",
        caught_by: &["--test", "conformance_redis", "removed_is_gone"],
    },
    Mutant {
        breaks: "permissions: all that one subject is given is one step (Redis)",
        file: "backend/redis/scripts/perm_write.lua",
        from: "for first = 2, #ARGV, MOST do",
        to: "for first = 2, math.min(#ARGV, MOST), MOST do",
        caught_by: &["--test", "conformance_redis", "all_of_a_subject"],
    },
    Mutant {
        breaks: "permissions: an interrupted removal denies at once (Redis: short strings)",
        file: "backend/redis/permissions.rs",
        from: "        if !self.is_open(head) {",
        to: "        if false && !self.is_open(head) {",
        caught_by: &["--test", "redis_permissions", "a_removal_that_loses"],
    },
    Mutant {
        breaks: "permissions: an interrupted removal denies at once (Redis: long strings)",
        file: "backend/redis/scripts/perm_read.lua",
        from: "~= ARGV[1] then",
        to: "== '' then",
        caught_by: &["--lib", "permissions_are_kept_as_the_rules_have_it"],
    },
    Mutant {
        breaks: "permissions: an interrupted removal denies at once (rules: memory and file)",
        file: "backend/rules/permissions.rs",
        from: "    stored.is_some_and(|schema| schema.id == id)",
        to: "    stored.is_none_or(|schema| schema.id == id)",
        caught_by: &["--test", "conformance_file", "an_interrupted_removal"],
    },
    Mutant {
        breaks: "permissions: what is left of a removed space is cleared away",
        file: "backend/redis/scripts/perm_remove.lua",
        from: "redis.call('SADD', KEYS[3], ARGV[2])",
        to: "",
        caught_by: &["--test", "redis_permissions", "a_removal_that_loses"],
    },
    Mutant {
        breaks: "permissions: what is left of a removed space becomes nobody's (Redis)",
        file: "backend/redis/scripts/perm_define.lua",
        from: " or redis.call('SISMEMBER', KEYS[3], ARGV[4]) == 1",
        to: "",
        caught_by: &["--lib", "permissions_are_kept_as_the_rules_have_it"],
    },
    Mutant {
        breaks: "permissions: answers belong to the subjects that were asked about",
        file: "permissions/space.rs",
        from: "for (found, places) in found.into_iter().zip(places.by_ref()) {",
        to: "for (places, found) in places.by_ref().zip(found) {",
        caught_by: &["--test", "conformance_memory", "all_of_a_subject"],
    },
    Mutant {
        breaks: "permissions: names that were added meanwhile are known to who looks for holders",
        file: "permissions/scan.rs",
        from: "self.space.schema_for(\"look for holders\", &names).await?;",
        to: "{ let _ = names; self.space.schema() };",
        caught_by: &["--test", "conformance_memory", "holders_of_what_was_added"],
    },
    Mutant {
        breaks: "permissions: a schema's names are never moved",
        file: "permissions/schema.rs",
        from: "true => a.starts_with(b).then_some(a),",
        to: "true => Some(a),",
        caught_by: &["--test", "conformance_memory", "the_schema_only_grows"],
    },
    Mutant {
        breaks: "permissions: a schema is not changed behind another's back (non-atomic check)",
        file: "backend/redis/scripts/perm_define.lua",
        from: "if (redis.call('GET', KEYS[1]) or '') ~= ARGV[1] or",
        to: "if",
        caught_by: &["--lib", "permissions_are_kept_as_the_rules_have_it"],
    },
    Mutant {
        breaks: "permissions: flags given at once do not undo each other",
        file: "permissions/space.rs",
        from: "(subject, Field { offset, width: 1 }, to)",
        to: "(subject, Field { offset: offset - u64::from(offset > 0), width: 2 }, to)",
        caught_by: &["--test", "conformance_memory", "flags_combine"],
    },
    Mutant {
        breaks: "seen: what is remembered is not new (Redis)",
        file: "backend/redis/seen.rs",
        from: "command.arg(\"\").arg(\"NX\").arg(\"PX\")",
        to: "command.arg(\"\").arg(\"PX\")",
        caught_by: &["--test", "conformance_redis", "seen::one_of_many"],
    },
    Mutant {
        breaks: "seen: the window runs from when an item was new",
        file: "backend/rules/seen.rs",
        from: "Some(until) if until > now => (false, until),",
        to: "Some(until) if until > now => (false, now + window),",
        caught_by: &["--test", "conformance_memory", "seen::new_once"],
    },
    Mutant {
        breaks: "once: a sleeper's result does not count (Redis: fences compared as text)",
        file: "backend/redis/scripts/once.lua",
        from: "elseif #last > #fence or (#last == #fence and last > fence) then",
        to: "elseif last > fence then",
        caught_by: &["--lib", "once_and_seen_decide_as_the_rules_do"],
    },
    Mutant {
        breaks: "once: a sleeper's result does not count (rules: memory and file)",
        file: "backend/rules/once.rs",
        from: "None if known.fence != fence => (Kept::Stale, Some(known)),",
        to: "None if known.fence < fence => (Kept::Stale, Some(known)),",
        caught_by: &["--test", "conformance_file", "a_sleeper_does_not_count"],
    },
    Mutant {
        breaks: "once: another payload is refused",
        file: "backend/rules/once.rs",
        from: "Some(known) if known.payload != payload => (Started::OtherPayload, Some(known)),",
        to: "Some(known) if known.payload > payload && known.payload < payload => (Started::OtherPayload, Some(known)),",
        caught_by: &["--lib", "the_late_result_of_a_sleeper_does_not_count"],
    },
    Mutant {
        breaks: "once: nobody else does it while it is being done (non-atomic check)",
        file: "once.rs",
        from: "            kind: Kind::Once,\n            name: &self.key,",
        to: "            kind: Kind::Once,\n            name: &format!(\"{}{}\", self.key, rand::random::<u64>()),",
        caught_by: &["--test", "conformance_memory", "many_at_once_do_it_once"],
    },
    Mutant {
        breaks: "once: what cannot be kept is not done again at once",
        file: "once.rs",
        from: "        let held = self.lock.abandon();",
        to: "        let held = self.lock.remaining(); drop(self.lock);",
        caught_by: &[
            "--test",
            "conformance_memory",
            "what_cannot_be_kept_is_not_done_again_at_once",
        ],
    },
    Mutant {
        breaks: "once: keeping the result is tried again while the lease is held",
        file: "once.rs",
        from: "Err(e) if may_pass(&e, failures) && self.lock.is_held() => {",
        to: "Err(e) if may_pass(&e, failures) && !self.lock.is_held() => {",
        caught_by: &["--test", "redis_once", "is_asked_again"],
    },
    Mutant {
        breaks: "once: work may outlast its result",
        file: "once.rs",
        from: "            self.keep.max(BEGUN),",
        to: "            self.keep.min(BEGUN),",
        caught_by: &["--test", "conformance_memory", "work_may_outlast"],
    },
    Mutant {
        breaks: "once: what was begun can be finished on a full server",
        file: "backend/redis/scripts/once.lua",
        from: "  redis.call('PEXPIRE', record, ARGV[4])\n  redis.call('HSET', record, 'result', ARGV[3])\n",
        to: "  redis.call('HSET', record, 'result', ARGV[3])\n  redis.call('PEXPIRE', record, ARGV[4])\n",
        caught_by: &["--test", "redis_once", "a_full_server"],
    },
    Mutant {
        breaks: "once: the lease lives on a full server",
        file: "backend/redis/scripts/room/decisions.lua",
        from: "    call('ZREM', at.held, '')\n",
        to: "",
        caught_by: &["--test", "redis_once", "a_full_server"],
    },
    Mutant {
        breaks: "topics: a subscription comes back by itself",
        file: "topic/subscription.rs",
        from: "            let answer = store.refresh(name.clone());",
        to: "            let _ = &store; let answer = std::future::ready(Ok(()));",
        caught_by: &["--test", "redis_topic", "a_lost_connection"],
    },
    Mutant {
        breaks: "topics: whoever does not read costs no more than its buffer",
        file: "topic/inbox.rs",
        from: "            self.items.pop_front();\n        }\n        self.items.push_front(Item::Gap(missing));",
        to: "        }\n        self.items.push_front(Item::Gap(missing));",
        caught_by: &["--lib", "whoever_does_not_read"],
    },
    Mutant {
        breaks: "topics: a gap is told",
        file: "topic/inbox.rs",
        from: "        self.queue().gap_at_the_end(None);\n        self.filled",
        to: "        self.filled",
        caught_by: &["--test", "redis_topic", "a_server_that_restarts"],
    },
];

/// Runs each broken variant against its test, and reports those that went unnoticed.
pub(crate) fn hunt(variables: &[(String, String)], only: Option<&str>) -> Result<(), String> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let tree = crate::servers::target().join("mutants/tree");
    let text = |e: std::io::Error| e.to_string();
    copy_sources(&root, &tree).map_err(text)?;
    let mut survivors = Vec::new();
    let chosen: Vec<_> = MUTANTS
        .iter()
        .filter(|m| only.is_none_or(|word| m.breaks.contains(word)))
        .collect();
    for mutant in &chosen {
        let path = tree.join(LIB).join(mutant.file);
        let original = fs::read_to_string(&path).map_err(text)?;
        if original.matches(mutant.from).count() != 1 {
            return Err(format!(
                "the mutant against {:?} no longer fits {}",
                mutant.breaks, mutant.file
            ));
        }
        fs::write(&path, original.replace(mutant.from, mutant.to)).map_err(text)?;
        let caught = !tests_pass(&tree, mutant.caught_by, variables)?;
        fs::write(&path, original).map_err(text)?;
        println!(
            "{}  {}",
            if caught { "caught  " } else { "SURVIVED" },
            mutant.breaks
        );
        if !caught {
            survivors.push(mutant.breaks);
        }
    }
    println!(
        "{} passed, {} failed",
        chosen.len() - survivors.len(),
        survivors.len()
    );
    match survivors.is_empty() {
        true => Ok(()),
        false => Err(format!("not noticed by any test: {}", survivors.join("; "))),
    }
}

/// Whether the tests pass. A variant that does not compile, or that no test is meant for, is a mistake
/// in the list above.
fn tests_pass(tree: &Path, args: &[&str], variables: &[(String, String)]) -> Result<bool, String> {
    let cargo = |more: &[&str]| {
        Command::new("cargo")
            .args(["test", "--quiet", "-p", "windlass"])
            .args(args)
            .args(more)
            .current_dir(tree)
            .env("CARGO_TARGET_DIR", tree.join("../target"))
            .envs(variables.iter().map(|(key, value)| (key, value)))
            .stderr(Stdio::null())
            .output()
            .map_err(|e| e.to_string())
    };
    let shown = args.join(" ");
    if !cargo(&["--no-run"])?.status.success() {
        return Err(format!("a mutant does not compile: cargo test {shown}"));
    }
    let run = cargo(&[])?;
    if String::from_utf8_lossy(&run.stdout).contains(" 0 passed; 0 failed;") {
        return Err(format!("no test matches: cargo test {shown}"));
    }
    Ok(run.status.success())
}

/// Copies what git tracks, touching only what has changed, so that little is compiled again.
fn copy_sources(root: &Path, tree: &Path) -> std::io::Result<()> {
    let listing = Command::new("git")
        .args(["ls-files", "-z"])
        .current_dir(root)
        .output()?;
    let files: Vec<PathBuf> = String::from_utf8_lossy(&listing.stdout)
        .split_terminator('\0')
        .map(PathBuf::from)
        .collect();
    remove_others(tree, tree, &files)?;
    for file in files {
        let (from, to) = (root.join(&file), tree.join(&file));
        let Ok(bytes) = fs::read(&from) else {
            continue; // removed, but not committed yet
        };
        if fs::read(&to).is_ok_and(|known| known == bytes) {
            continue;
        }
        if let Some(folder) = to.parent() {
            fs::create_dir_all(folder)?;
        }
        fs::write(to, bytes)?;
    }
    Ok(())
}

/// Removes what an earlier copy has left and the sources do not have any more.
fn remove_others(tree: &Path, folder: &Path, files: &[PathBuf]) -> std::io::Result<()> {
    let Ok(entries) = fs::read_dir(folder) else {
        return Ok(()); // nothing was copied yet
    };
    for entry in entries {
        let path = entry?.path();
        let known = path.strip_prefix(tree).unwrap_or(&path);
        if path.is_dir() {
            remove_others(tree, &path, files)?;
        } else if !files.iter().any(|file| file == known) {
            fs::remove_file(&path)?;
        }
    }
    Ok(())
}
