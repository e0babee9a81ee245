//! etcd.

use super::Mutant;

pub(super) const MUTANTS: &[Mutant] = &[
    Mutant {
        breaks: "a renewal that a deposed leader granted does not count (etcd)",
        file: "backend/etcd/leases.rs",
        from: "if renewing.alive && term != renewing.term {",
        to: "if renewing.alive && term < renewing.term {",
        caught_by: &["--lib", "a_renewal_counts_only_in_the_term"],
    },
    Mutant {
        breaks: "a waiter whose key is gone is not granted (etcd)",
        file: "backend/etcd/line/wait.rs",
        from: "if ours.is_none_or(|kv| kv.create_revision != created) {",
        to: "if ours.is_some_and(|kv| kv.create_revision != created) {",
        caught_by: &["--test", "etcd_faults", "a_dead_waiter_is_never_granted"],
    },
    Mutant {
        breaks: "whoever barges in has seen who was let in (etcd)",
        file: "backend/etcd/rooms/sit.rs",
        from: ".filter(|seat| seat.kv.key != chair.key.as_bytes())\n        .fold(",
        to: ".filter(|seat| seat.kv.key.is_empty())\n        .fold(",
        caught_by: &["--test", "etcd_faults", "one_who_barges_in"],
    },
    Mutant {
        breaks: "a watch that was compacted away is set again (etcd)",
        file: "backend/etcd/line/wait.rs",
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
        breaks: "into a large semaphore, whoever waited is let in by writing it down (etcd)",
        file: "backend/etcd/rooms/view.rs",
        from: "(self.is_large(kind) && waited && !is_certain)",
        to: "(self.is_large(kind) && waited && is_certain)",
        caught_by: &[
            "--test",
            "etcd_faults",
            "rooms::a_large_semaphore_is_made_smaller",
        ],
    },
    Mutant {
        breaks: "one barges in only where nobody was let in, however many hold (etcd)",
        file: "backend/etcd/rooms/view.rs",
        from: "(self.is_large(kind) && waited && !is_certain)",
        to: "(self.is_large(kind) && waited && is_certain)",
        caught_by: &["--test", "etcd_faults", "rooms::one_barges_into_a_large"],
    },
    Mutant {
        breaks: "a server with too much to do is asked again (etcd)",
        file: "backend/etcd/translate.rs",
        from: "told.contains(\"too many requests\")",
        to: "told.contains(\"too many demands\")",
        caught_by: &["--lib", "what_etcd_says_is_asked_again"],
    },
    Mutant {
        breaks: "a token that has ended is replaced (etcd)",
        file: "backend/etcd/translate.rs",
        from: "told.contains(\"invalid auth token\")",
        to: "told.contains(\"invalid auth tokens\")",
        caught_by: &["--test", "etcd_faults", "told::tokens_that_have_ended"],
    },
    Mutant {
        breaks: "several locks can be had while names within theirs come and go (etcd)",
        file: "backend/etcd/several.rs",
        from: "        for _ in 0..TRIES {",
        to: "        while asks.len() < usize::MAX {",
        caught_by: &["--test", "etcd_access", "a_slow_client_gets_several"],
    },
    Mutant {
        breaks: "whoever lines up for several locks leaves if somebody is ahead (etcd)",
        file: "backend/etcd/several.rs",
        from: "!lined_up || kv.create_revision < revision",
        to: "!lined_up || kv.create_revision > revision",
        caught_by: &["--test", "etcd_access", "several_who_want_several"],
    },
    Mutant {
        breaks: "no more of a lease is claimed than a deposed leader could give (etcd)",
        file: "backend/etcd/leases.rs",
        from: "if renewing.alive && term != renewing.term {",
        to: "if renewing.alive && term < renewing.term {",
        caught_by: &["--test", "etcd_faults", "what_a_deposed_leader_renews"],
    },
    Mutant {
        breaks: "a waiter that was overtaken has a higher fence in the end (etcd)",
        file: "backend/etcd/rooms/view.rs",
        from: "overtook.is_some_and(|at| seat.created() <= at)",
        to: "overtook.is_some_and(|at| seat.created() > at)",
        caught_by: &["--test", "conformance_etcd", "barging_overtakes"],
    },
];
