//! Bloom filters.

use super::Mutant;

pub(super) const MUTANTS: &[Mutant] = &[
    Mutant {
        breaks: "a Bloom filter tests and sets bits atomically (Redis)",
        file: "windlass-redis/src/bloom.rs",
        from: "            BitOp::Insert => (\"BITFIELD\", \"SET\"),",
        to: "            BitOp::Insert => (\"BITFIELD\", \"GET\"),",
        caught_by: &[
            "-p",
            "windlass",
            "--test",
            "redis",
            "conformance::bloom::inserted_items_are_found",
        ],
    },
    Mutant {
        breaks: "an item repeated in a batch is new only once (Bloom filter, Redis)",
        file: "windlass-redis/src/bloom/whole_shard.rs",
        from: "        if op == BitOp::Insert {\n            // The same",
        to: "        if false {\n            // The same",
        caught_by: &[
            "-p",
            "windlass-redis",
            "--lib",
            "bloom_filters_decide_as_the_rules_do",
        ],
    },
    Mutant {
        breaks: "a missing Bloom filter is not treated as empty (Redis)",
        file: "windlass-redis/src/bloom.rs",
        from: "has_header &= bits[0] == Value::Int(keys.fingerprint as i64);",
        to: "has_header &= bits[0] != Value::Nil;",
        caught_by: &["-p", "windlass", "--test", "redis", "comes_back_empty"],
    },
    Mutant {
        breaks: "a Bloom filter that lost its bits is not treated as empty (Redis: check)",
        file: "windlass-redis/src/bloom.rs",
        from: "filter_exists(if complete { LOST } else { 1 })",
        to: "filter_exists(if complete { 1 } else { LOST })",
        caught_by: &["-p", "windlass", "--test", "redis", "lost_its_bits"],
    },
    Mutant {
        breaks: "a Bloom filter that lost its bits is not treated as empty (Redis: insert)",
        file: "windlass-redis/src/scripts/bloom/create_shard.lua",
        from: "    return 2\n",
        to: "",
        caught_by: &["-p", "windlass", "--test", "redis", "lost_its_bits"],
    },
    Mutant {
        breaks: "a Bloom filter that lost its bits is not treated as empty (Redis: merge)",
        file: "windlass-redis/src/scripts/bloom/merge.lua",
        from: "  return 2\n",
        to: "",
        caught_by: &["-p", "windlass", "--test", "redis", "lost_its_bits"],
    },
    Mutant {
        breaks: "a Bloom filter that lost its plan leaves nothing behind (Redis)",
        file: "windlass-redis/src/scripts/bloom/create.lua",
        from: "if made and string.sub(made, 3) ~= ARGV[1] then",
        to: "if false then",
        caught_by: &["-p", "windlass", "--test", "redis", "lost_its_plan"],
    },
    Mutant {
        breaks: "a Bloom filter's parameters are compared",
        file: "windlass/src/bloom/mod.rs",
        from: "if wanted == found {",
        to: "if wanted.kind == found.kind {",
        caught_by: &[
            "-p",
            "windlass",
            "--test",
            "memory",
            "conformance::bloom::different_parameters_are_rejected",
        ],
    },
    Mutant {
        breaks: "a Bloom filter's probes behave as independent ones",
        file: "windlass-core/src/bloom/digest.rs",
        from: "        x ^ (x >> 32)\n    }",
        to: "        x >> 48\n    }",
        caught_by: &[
            "-p",
            "windlass-core",
            "--lib",
            "the_error_rate_at_capacity_is_the_one_requested",
        ],
    },
    Mutant {
        breaks: "a rotating Bloom filter keeps items for the whole window (Redis)",
        file: "windlass-redis/src/scripts/bloom/generations.lua",
        from: "oldest = newest - slices + 1",
        to: "oldest = newest",
        caught_by: &[
            "-p",
            "windlass-redis",
            "--lib",
            "bloom_filters_decide_as_the_rules_do",
        ],
    },
    Mutant {
        breaks: "a growing Bloom filter grows when it is full (Redis)",
        file: "windlass-redis/src/scripts/bloom/generations.lua",
        from: "if counted >= capacity[newest + 1]",
        to: "if tostring(counted) >= tostring(capacity[newest + 1] + 1)",
        caught_by: &[
            "-p",
            "windlass-redis",
            "--lib",
            "bloom_filters_decide_as_the_rules_do",
        ],
    },
    Mutant {
        breaks: "bloom: a union across slots reports a source that lost its bits (Cluster)",
        file: "windlass-redis/src/bloom/whole_shard.rs",
        from: "None if filters.check_missing_shard(from).await? => empty(from, shape),",
        to: "None if filters.exists(from).await? => empty(from, shape),",
        caught_by: &[
            "-p",
            "windlass",
            "--test",
            "cluster",
            "union_across_slots_reports_lost_bits",
        ],
    },
];
