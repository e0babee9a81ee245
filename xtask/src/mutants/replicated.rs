//! Sentinels, clusters and replicas.

use super::Mutant;

pub(super) const MUTANTS: &[Mutant] = &[
    Mutant {
        breaks: "fences grow over a failover that lost grants (sentinels)",
        file: "backend/redis/scripts/reign.lua",
        from: "call('INCRBY', KEYS[1], string.format('%.0f', raise))",
        to: "call('INCRBY', KEYS[1], 0)",
        caught_by: &["--test", "redis_failover", "that_lost_grants"],
    },
    Mutant {
        breaks: "fences grow over a failover that lost grants (cluster)",
        file: "backend/redis/cluster.rs",
        from: "(false, Draws::Surely | Draws::Perhaps) => {",
        to: "(false, Draws::Surely | Draws::Perhaps) if slot > 20000 => {",
        caught_by: &["--test", "redis_cluster", "fences_grow_over_a_failover"],
    },
    Mutant {
        breaks: "fences grow when a replica is promoted by hand",
        file: "backend/redis/scripts/reign.lua",
        from: "local is_same = reign == ARGV[1]",
        to: "local is_same = reign ~= nil",
        caught_by: &["--test", "redis_sentinels", "before_it_was_promoted"],
    },
    Mutant {
        breaks: "fences grow over a failover that lost the raise of the one before",
        file: "backend/redis/scripts/reign.lua",
        from: "newer > 0 and math.min(newer, 65536) * ARGV[4] or ARGV[2]",
        to: "ARGV[2]",
        caught_by: &["--test", "redis_failover", "lost_the_raise"],
    },
    Mutant {
        breaks: "sentinels number their masters, and each number counts",
        file: "backend/redis/dialler.rs",
        from: "reign.epoch = Some(appointed.epoch());",
        to: "reign.epoch = None;",
        caught_by: &["--test", "redis_failover", "lost_the_raise"],
    },
    Mutant {
        breaks: "a cluster numbers its masters, and each number counts",
        file: "backend/redis/dialler.rs",
        from: "field(2, \"cluster_my_epoch:\")",
        to: "field(2, \"cluster_no_epoch:\")",
        caught_by: &["--test", "redis_cluster", "fences_grow_over_a_failover"],
    },
    Mutant {
        breaks: "numbers are compared with the highest that a counter was raised for",
        file: "backend/redis/scripts/reign.lua",
        from: "math.max(epoch or -1, noted or -1)",
        to: "epoch or noted or -1",
        caught_by: &["--lib", "reign"],
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
