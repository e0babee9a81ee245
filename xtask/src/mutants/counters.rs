//! Counters.

use super::Mutant;

pub(super) const MUTANTS: &[Mutant] = &[
    Mutant {
        breaks: "a counter compares numbers, not text (Redis)",
        file: "windlass-redis/src/scripts/counter/add.lua",
        from: "    return (#a > #b) ~= a_minus\n",
        to: "    return a > b\n",
        caught_by: &[
            "-p",
            "windlass",
            "--test",
            "redis",
            "conformance::counter::addition_beyond_a_bound_is_rejected",
        ],
    },
    Mutant {
        breaks: "a dropped counter buffer retries",
        file: "windlass/src/counter/buffered.rs",
        from: "const TRIES: usize = 60;",
        to: "const TRIES: usize = 1;",
        caught_by: &[
            "-p",
            "windlass",
            "--test",
            "memory",
            "dropped_buffer_retries",
        ],
    },
    Mutant {
        breaks: "the operations of a counter buffer are remembered for a day",
        file: "windlass/src/counter/buffered.rs",
        from: "counter.retention.max(Counter::DEFAULT_RETENTION)",
        to: "counter.retention.min(Counter::DEFAULT_RETENTION)",
        caught_by: &[
            "-p",
            "windlass",
            "--test",
            "memory",
            "buffer_leaves_one_record",
        ],
    },
    Mutant {
        breaks: "the sums of a counter buffer count once, by number (Redis)",
        file: "windlass-redis/src/scripts/counter/add.lua",
        from: "elseif tonumber(number) <= tonumber(last) then",
        to: "elseif tonumber(number) == tonumber(last) then",
        caught_by: &[
            "-p",
            "windlass-redis",
            "--lib",
            "the_counter_script_decides_as_the_rules_do",
        ],
    },
    Mutant {
        breaks: "a rejected sum of a dropped counter buffer is logged",
        file: "windlass/src/counter/buffered.rs",
        from: "        if self.pending.is_empty() {\n            return;",
        to: "        if !self.pending.is_empty() {\n            return;",
        caught_by: &["-p", "windlass", "--test", "memory", "lost_sums_are_logged"],
    },
    Mutant {
        breaks: "a counter operation counts once",
        file: "windlass-redis/src/scripts/counter/add.lua",
        from: "if remember ~= '' and (added == 1 or number ~= '0') then",
        to: "if false then",
        caught_by: &[
            "-p",
            "windlass",
            "--test",
            "redis",
            "conformance::counter::add_once_counts_once",
        ],
    },
];
