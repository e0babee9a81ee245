//! What was seen, what was done once, what is told.

use super::Mutant;

pub(super) const MUTANTS: &[Mutant] = &[
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
