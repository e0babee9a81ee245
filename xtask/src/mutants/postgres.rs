//! The PostgreSQL store.

use super::Mutant;

pub(super) const MUTANTS: &[Mutant] = &[
    Mutant {
        breaks: "an expired lock is granted to nobody while a transaction relies on it (PostgreSQL)",
        file: "windlass-postgres/src/sql/lock.sql",
        from: "    IF NOT FOUND THEN\n        RETURN;\n    END IF;\n    l := @schema@.lock_hand_over",
        to: "    l := @schema@.lock_hand_over",
        caught_by: &[
            "-p",
            "windlass",
            "--test",
            "postgres",
            "hold::expired_claim_does_not_pass",
        ],
    },
    Mutant {
        breaks: "a released lock is granted to nobody while a transaction relies on it (PostgreSQL)",
        file: "windlass-postgres/src/sql/lock.sql",
        from: "    IF FOUND THEN\n        PERFORM @schema@.lock_hand_over(l, _now);\n    ELSE",
        to: "    IF FOUND OR true THEN\n        PERFORM @schema@.lock_hand_over(l, _now);\n    ELSE",
        caught_by: &[
            "-p",
            "windlass",
            "--test",
            "postgres",
            "hold::release_during_the_transaction",
        ],
    },
    Mutant {
        breaks: "a transaction with a stale fence fails (PostgreSQL)",
        file: "windlass-postgres/src/sql/hold.sql",
        from: "l.fence <> _fence OR ",
        to: "",
        caught_by: &[
            "-p",
            "windlass",
            "--test",
            "postgres",
            "hold::only_the_present_fence_passes",
        ],
    },
    Mutant {
        breaks: "fences are raised when the server has restarted (PostgreSQL)",
        file: "windlass-postgres/src/sql/common.sql",
        from: "greatest(last_value, @schema@.clock_micros())",
        to: "last_value",
        caught_by: &[
            "-p",
            "windlass",
            "--test",
            "postgres",
            "faults::locks_survive_a_crash_and_fences_grow",
        ],
    },
    Mutant {
        breaks: "a lock goes to the first waiter (PostgreSQL)",
        file: "windlass-postgres/src/sql/lock.sql",
        from: "AND ticket > _after ORDER BY ticket LIMIT 1",
        to: "AND ticket > _after ORDER BY ticket DESC LIMIT 1",
        caught_by: &[
            "-p",
            "windlass",
            "--test",
            "postgres",
            "conformance::queue::first_come_first_served",
        ],
    },
];
