//! What a run under faults came to, in one row of a table.

use std::fmt;
use std::time::Duration;

use super::stores::StoreUnderTest;
use crate::history::{Breach, HistoryEvent, Observation, Verdict};

/// The figures of one run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ChaosReport {
    /// The store.
    pub store: String,
    /// How many times the lock was granted.
    pub grants: usize,
    /// How many faults were injected.
    pub faults: usize,
    /// Two holders at one moment, or a stale write that the store's gate admitted.
    pub overlaps: usize,
    /// Overlaps that the store's documentation announces: the window of asynchronous replication.
    pub documented_overlaps: usize,
    /// Fences that repeat or go back.
    pub inversions: usize,
    /// Other violations: held after a loss, nobody served after a fault.
    pub others: usize,
    /// Claims that were left behind after their TTL; `None` if the store could not be read.
    pub leaks: Option<u64>,
    /// The longest time in which nobody held the lock.
    pub longest_gap: Duration,
}

impl ChaosReport {
    pub(super) fn new(
        name: &str,
        store: &dyn StoreUnderTest,
        verdict: &Verdict,
        events: &[HistoryEvent],
        leaks: Option<u64>,
    ) -> ChaosReport {
        let is_fault = |event: &&HistoryEvent| matches!(event.seen, Observation::Fault { .. });
        let mut report = ChaosReport {
            store: name.to_owned(),
            grants: verdict.grants(),
            faults: events.iter().filter(is_fault).count(),
            leaks,
            longest_gap: longest_gap(events),
            ..ChaosReport::default()
        };
        for breach in &verdict.breaches {
            match breach {
                Breach::TwoHolders(..) | Breach::StaleWrite(..) if store.tolerates(breach) => {
                    report.documented_overlaps += 1;
                }
                Breach::TwoHolders(..) | Breach::StaleWrite(..) => report.overlaps += 1,
                Breach::SameFence(..) | Breach::FenceWentBack(..) => report.inversions += 1,
                Breach::HeldAfterLoss(_) | Breach::NoRecovery(_) => report.others += 1,
            }
        }
        report
    }

    /// Whether every promise was kept.
    pub fn is_fine(&self) -> bool {
        self.overlaps == 0 && self.inversions == 0 && self.others == 0 && self.leaks == Some(0)
    }

    /// The first two lines of the table that rows belong to.
    pub const HEADER: &'static str = "\
| store | grants | faults | overlaps (documented) | fences that go back | other violations | leaks | longest time without a holder |
|---|---|---|---|---|---|---|---|";
}

impl fmt::Display for ChaosReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let leaks = match self.leaks {
            Some(leaks) => leaks.to_string(),
            None => "unknown: the store does not answer".to_owned(),
        };
        write!(
            f,
            "| {} | {} | {} | {} ({}) | {} | {} | {} | {:.1} s |",
            self.store,
            self.grants,
            self.faults,
            self.overlaps,
            self.documented_overlaps,
            self.inversions,
            self.others,
            leaks,
            self.longest_gap.as_secs_f64()
        )
    }
}

/// The longest time between two moments at which a client held the lock.
fn longest_gap(events: &[HistoryEvent]) -> Duration {
    let is_held = |event: &&HistoryEvent| {
        matches!(
            event.seen,
            Observation::Granted { .. } | Observation::Running { .. } | Observation::Held { .. }
        )
    };
    let mut held: Vec<u64> = events
        .iter()
        .filter(is_held)
        .map(|event| event.at)
        .collect();
    held.sort_unstable();
    let gaps = held.windows(2).map(|pair| pair[1] - pair[0]);
    Duration::from_nanos(gaps.max().unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::chaos::stores::Fault;
    use crate::history::LockAttempt;

    struct Replicated;

    impl StoreUnderTest for Replicated {
        fn url(&self) -> String {
            String::new()
        }

        fn faults(&self) -> Vec<Fault<'_>> {
            Vec::new()
        }

        fn tolerates(&self, breach: &Breach) -> bool {
            matches!(breach, Breach::TwoHolders(..))
        }
    }

    #[test]
    fn violations_are_counted_by_kind() {
        let attempt = || Box::new(LockAttempt::default());
        let verdict = Verdict {
            breaches: vec![
                Breach::TwoHolders(attempt(), attempt()),
                Breach::SameFence(attempt(), attempt()),
                Breach::FenceWentBack(attempt(), attempt()),
                Breach::HeldAfterLoss(attempt()),
            ],
            ..Verdict::default()
        };
        let report = ChaosReport::new("x", &Replicated, &verdict, &[], Some(0));
        assert_eq!((report.overlaps, report.documented_overlaps), (0, 1));
        assert_eq!((report.inversions, report.others), (2, 1));
        assert!(!report.is_fine());
        assert!(
            ChaosReport {
                inversions: 0,
                others: 0,
                ..report.clone()
            }
            .is_fine()
        );
        for leaks in [Some(1), None] {
            let leaky = ChaosReport {
                inversions: 0,
                others: 0,
                leaks,
                ..report.clone()
            };
            assert!(!leaky.is_fine());
        }
    }

    #[test]
    fn longest_gap_is_between_neighbours_in_time() {
        let held = |at| HistoryEvent {
            at,
            client: "a".to_owned(),
            what: "stock".to_owned(),
            seen: Observation::Held { attempt: 1 },
        };
        let gap = longest_gap(&[held(9), held(1), held(4)]);
        assert_eq!(gap, Duration::from_nanos(5));
    }
}
