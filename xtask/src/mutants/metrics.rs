//! Metrics.

use super::Mutant;

pub(super) const MUTANTS: &[Mutant] = &[
    Mutant {
        breaks: "metrics: a cancelled waiter does not count as waiting",
        file: "windlass/src/telemetry/mod.rs",
        from: "self.0.waiting(-1.0);",
        to: "self.0.waiting(0.0);",
        caught_by: &[
            "-p",
            "windlass",
            "--test",
            "metrics",
            "claims::gauges_are_zero_after_thousands_of_cancelled_acquires",
        ],
    },
    Mutant {
        breaks: "metrics: a lease that a panic drops does not count as held",
        file: "windlass/src/telemetry/mod.rs",
        from: "self.claims.held(-1.0);",
        to: "self.claims.held(0.0);",
        caught_by: &[
            "-p",
            "windlass",
            "--test",
            "metrics",
            "claims::gauges_are_zero_after_panics",
        ],
    },
    Mutant {
        breaks: "metrics: names have a bounded number of labels",
        file: "windlass/src/telemetry/metrics/labels.rs",
        from: "known.len() - others >= max",
        to: "known.len() - others >= usize::MAX",
        caught_by: &[
            "-p",
            "windlass",
            "--test",
            "metrics",
            "claims::names_are_labels_only_by_a_function_and_only_so_many",
        ],
    },
    Mutant {
        breaks: "metrics: a loss that nobody noticed is counted",
        file: "windlass/src/lease/claim.rs",
        from: "None if is_lost => Some(self.expiry(state)),",
        to: "None if is_lost => None,",
        caught_by: &[
            "-p",
            "windlass",
            "--test",
            "metrics",
            "claims::losses_are_counted_by_reason",
        ],
    },
    Mutant {
        breaks: "metrics: a batch of checks that all fail is a failed call",
        file: "windlass/src/telemetry/mod.rs",
        from: "replies.as_ref().is_ok_and(any_ok)",
        to: "replies.as_ref().is_ok_and(|replies| any_ok(replies) || !replies.is_empty())",
        caught_by: &[
            "-p",
            "windlass",
            "--test",
            "metrics",
            "batch_of_checks_that_all_fail_is_a_failed_call",
        ],
    },
    Mutant {
        breaks: "metrics: a decision of a leased limiter is counted",
        file: "windlass/src/limit/leased/mod.rs",
        from: "self.inner.limiter.metrics.decided(&decision);",
        to: "",
        caught_by: &[
            "-p",
            "windlass",
            "--test",
            "metrics",
            "limits::each_decision_is_counted_once_by_limiter_and_basis",
        ],
    },
    Mutant {
        breaks: "run: the metrics file keeps the last success of a job that fails",
        file: "windlass-cli/src/commands/metrics_file.rs",
        from: "_ => self.last_success(before),",
        to: "_ => None,",
        caught_by: &[
            "-p",
            "windlass-cli",
            "--test",
            "cli",
            "metrics_file::metrics_file_has_the_outcome_of_the_last_run",
        ],
    },
];
