//! Barriers over a quorum: one value, and how time passes in it.

use super::Mutant;

const FAULTS: &str = "redlock_barrier";
const RULES: &str = "a_barrier_over_a_quorum_decides_as_the_rules_do";
const NODE: &str = "a_value_takes_its_numbers_and_its_time_from_the_promise";

pub(super) const MUTANTS: &[Mutant] = &[
    Mutant {
        breaks: "a node whose clock jumps ends nobody's place at a barrier by itself",
        file: "backend/quorum/register.rs",
        from: "let left = same.map(|(_, same)| same.left).max();",
        to: "let left = same.map(|(_, same)| same.left).min();",
        caught_by: &["--test", FAULTS, "a_clock_that_jumps_ends_nobody"],
    },
    Mutant {
        breaks: "what was given up is not taken up again by whoever hears of it later",
        file: "backend/quorum/barrier/mod.rs",
        from: "                changed = true;",
        to: "                changed |= decided.news;",
        caught_by: &["--test", FAULTS, "what_was_given_up_stays_away"],
    },
    Mutant {
        breaks: "those in line for a barrier are told of their turn (quorum)",
        file: "backend/quorum/barrier/turns.rs",
        from: "Some(fence) => keeper.granted(wake.claim, Some(fence)),",
        to: "Some(_) => {}",
        caught_by: &["--test", FAULTS, "those_in_line_are_told_of_their_turn"],
    },
    Mutant {
        breaks: "a party of a quorum's barrier that died is taken off after its ttl",
        file: "backend/quorum/barrier/value.rs",
        from: "now: WRITTEN + Duration::from_millis(self.keep).saturating_sub(left),",
        to: "now: WRITTEN + 0 * left,",
        caught_by: &["--test", FAULTS, "a_party_that_dies_is_taken_off"],
    },
    Mutant {
        breaks: "a party of a quorum's barrier does not end before its ttl",
        file: "backend/quorum/barrier/value.rs",
        from: "expires: WRITTEN + Duration::from_micros(self.left),",
        to: "expires: WRITTEN + Duration::from_micros(self.left / 2),",
        caught_by: &["--test", FAULTS, "a_party_that_dies_is_taken_off"],
    },
    Mutant {
        breaks: "a release that came through unheard is told as what it was (quorum's barrier)",
        file: "backend/quorum/barrier/mod.rs",
        from: "(Released::WasGone, Some(earlier)) => earlier,",
        to: "(Released::WasGone, Some(_)) => Released::WasGone,",
        caught_by: &["--lib", RULES],
    },
    Mutant {
        breaks: "a quorum's barrier keeps which round has begun",
        file: "backend/quorum/barrier/value.rs",
        from: "open: self.open.map(Fence::new),",
        to: "open: None,",
        caught_by: &["--lib", RULES],
    },
    Mutant {
        breaks: "numbers that a value of a quorum uses are given to nobody else",
        file: "backend/redis/scripts/vote/register.lua",
        from: "if floor > tonumber(call('GET', fence_key) or 0) then",
        to: "if false then",
        caught_by: &["--lib", NODE],
    },
    Mutant {
        breaks: "how old a value of a quorum is counts from when its number was promised",
        file: "backend/redis/scripts/vote/register.lua",
        from: "math.max(1, tonumber(ARGV[4]) - ago)",
        to: "math.max(1, tonumber(ARGV[4]))",
        caught_by: &["--lib", NODE],
    },
    Mutant {
        breaks: "a node accepts no value whose number it promised long ago",
        file: "backend/redis/scripts/vote/register.lua",
        from: "if ago >= PROMISE_MS then",
        to: "if false then",
        caught_by: &["--lib", NODE],
    },
    Mutant {
        breaks: "whoever was promised a number of a quorum is let write for a moment",
        file: "backend/redis/scripts/vote/register.lua",
        from: "if ago >= 0 and ago < math.min(tonumber(before[3] or 0), PROMISE_MS) then",
        to: "if false then",
        caught_by: &["--lib", "others_do_not_get_in_the_way_for_a_moment"],
    },
    Mutant {
        breaks: "a node that may have forgotten a party of a barrier is not asked",
        file: "backend/quorum/barrier/mod.rs",
        from: "(shared.max_ttl + LATE).min(LONGEST_KEEP)",
        to: "Duration::from_secs(shared.max_ttl.as_secs() / 2)",
        caught_by: &[
            "--test",
            FAULTS,
            "a_node_that_forgot_is_not_asked_until_all_it_may_have_known_is_over",
        ],
    },
    Mutant {
        breaks: "whoever is at a quorum's barrier already has room there",
        file: "backend/quorum/barrier/value.rs",
        from: "known || !dead.is_empty()",
        to: "!dead.is_empty()",
        caught_by: &["--lib", "the_dead_in_line_give_way_when_there_are_too_many"],
    },
    Mutant {
        breaks: "a turn at a barrier that comes before its claim is known to wait is told (quorum)",
        file: "backend/quorum/barrier/turns.rs",
        from: "if is_new && is_heard {",
        to: "if is_new && is_heard && is_new != is_heard {",
        caught_by: &[
            "--lib",
            "a_turn_that_comes_before_the_claim_is_known_to_wait_is_told",
        ],
    },
    Mutant {
        breaks: "who has given up waiting for a barrier is told of no turn (quorum)",
        file: "backend/quorum/barrier/mod.rs",
        from: "        self.waits_no_more(&name, &owner, claim);\n",
        to: "",
        caught_by: &["--lib", "who_has_given_up_is_told_of_no_turn"],
    },
    Mutant {
        breaks: "who has given up waiting for a barrier is forgotten (quorum)",
        file: "backend/quorum/barrier/turns.rs",
        from: "                    self.waits_no_more(name, &owner, Some(wake));\n",
        to: "",
        caught_by: &[
            "--lib",
            "who_has_given_up_is_forgotten_though_its_renewal_comes_late",
        ],
    },
    Mutant {
        breaks: "an earlier claim that is given up leaves its turn at a barrier to a later one (quorum)",
        file: "backend/quorum/barrier/turns.rs",
        from: "wake.is_none_or(|wake| wake == *which)",
        to: "wake.is_none_or(|wake| wake == *which || wake != *which)",
        caught_by: &[
            "--lib",
            "an_earlier_claim_that_is_given_up_leaves_the_turn_to_the_later_one",
        ],
    },
    Mutant {
        breaks: "a barrier that was half written keeps its numbers (quorum)",
        file: "backend/quorum/register.rs",
        from: "becomes(value, left.max(Duration::from_millis(1)), true, highest)",
        to: "becomes(value, left.max(Duration::from_millis(1)), true, 0 * highest)",
        caught_by: &[
            "--lib",
            "what_was_half_written_keeps_its_numbers_when_it_is_settled",
        ],
    },
    Mutant {
        breaks: "a slow barrier holds up no renewal of a lock",
        file: "lease/rounds.rs",
        from: ".partition(|(claim, _)| claim.terms.kind == Kind::Barrier);",
        to: ".partition(|(claim, _)| claim.terms.kind == Kind::Barrier && false);",
        caught_by: &["--lib", "a_slow_barrier_holds_up_no_renewal_of_a_lock"],
    },
    Mutant {
        breaks: "a turn to write ends, whatever its writer says (quorum)",
        file: "backend/redis/scripts/vote/register.lua",
        from: "math.min(tonumber(before[3] or 0), PROMISE_MS)",
        to: "tonumber(before[3])",
        caught_by: &["--lib", "others_do_not_get_in_the_way_for_a_moment"],
    },
    Mutant {
        breaks: "writers that are far away do not throw each other back for ever (quorum)",
        file: "backend/quorum/turnout.rs",
        from: "(longest * TURN).min(limit + limit / 4).max(SHORTEST_TURN)",
        to: "(longest * 0).min(limit + limit / 4).max(SHORTEST_TURN)",
        caught_by: &[
            "--lib",
            "writers_that_are_far_away_do_not_throw_each_other_back_for_ever",
        ],
    },
];
