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
];
