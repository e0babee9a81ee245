//! Votes of a quorum.

use super::Mutant;

pub(super) const MUTANTS: &[Mutant] = &[
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
        breaks: "a node accepts a value only under the number that it promised last",
        file: "backend/redis/scripts/vote/register.lua",
        from: "call('HGET', register, 'promised') ~= ARGV[2]",
        to: "not call('HGET', register, 'promised')",
        caught_by: &["--lib", "a_node_of_a_quorum_keeps_what_the_rules_say"],
    },
    Mutant {
        breaks: "a node that forgot a latch is not asked what it knew",
        file: "backend/quorum/register.rs",
        from: "match durable || sure {",
        to: "match durable || sure || !durable {",
        caught_by: &[
            "--test",
            "redlock_latch",
            "a_node_that_forgot_is_not_asked_what_it_knew",
        ],
    },
    Mutant {
        breaks: "what was seen of a latch once is settled",
        file: "backend/rules/register.rs",
        from: "Some((value, same >= majority))",
        to: "Some((value, same >= majority || same > 0))",
        caught_by: &["--test", "redlock_latch", "what_was_seen_once_stays"],
    },
    Mutant {
        breaks: "a lost answer does not count a latch down twice (quorum)",
        file: "backend/quorum/latch.rs",
        from: "counted.extend(operation);",
        to: "let _ = operation; counted.clear();",
        caught_by: &["--lib", "a_latch_over_a_quorum_decides_as_the_rules_do"],
    },
    Mutant {
        breaks: "the drift that is allowed for shortens validity",
        file: "lease/claim.rs",
        from: "let mut until = self.drift.valid_until(state.confirmed, self.terms.ttl);",
        to: "let mut until = Drift::default().valid_until(state.confirmed, self.terms.ttl);",
        caught_by: &[
            "--test",
            "redlock_options",
            "drift_shortens_what_may_be_relied_upon",
        ],
    },
    Mutant {
        breaks: "the caller's function sets the pauses between tries",
        file: "lease/retry.rs",
        from: "Pauses::By(pause) => pause(done),",
        to: "Pauses::By(_) => Duration::from_millis(1),",
        caught_by: &[
            "--test",
            "redlock_options",
            "tries_and_their_pauses_are_the_callers",
        ],
    },
    Mutant {
        breaks: "what to do about too few nodes fits the reasons",
        file: "backend/quorum/node.rs",
        from: "        .with_hint(KEEP)",
        to: "        .with_hint(\"are the nodes running?\")",
        caught_by: &["--test", "redlock_options", "what_to_do_fits_what_is_wrong"],
    },
    Mutant {
        breaks: "a read-write lock comes back as what it is held (quorum)",
        file: "backend/quorum/come_back.rs",
        from: "if let Some(share) = shared.share_of(&claim).await {",
        to: "if let Some(share) = shared.share_of(&claim).await.filter(|s| s.weight == 1) {",
        caught_by: &[
            "--test",
            "redlock_rooms",
            "a_read_write_lock_comes_back_to_a_node_that_missed_it",
        ],
    },
];
