//! Sentinels, clusters and replicas.

use super::Mutant;

pub(super) const MUTANTS: &[Mutant] = &[
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
        breaks: "one sentinel that has heard of a failover is enough",
        file: "backend/redis/sentinel.rs",
        from: "now.age > ours.age && now.address",
        to: "now.age > ours.age && now.age < ours.age && now.address",
        caught_by: &["--test", "redis_sentinels", "one_sentinel_that_knows"],
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
        breaks: "an unknown script is loaded, unseen",
        file: "backend/redis/wire.rs",
        from: "Err(failure) if failure.is_unknown_script() => {",
        to: "Err(failure) if failure.is_unknown_script() && false => {",
        caught_by: &["--test", "redis_faults", "a_flushed_script_cache"],
    },
];
