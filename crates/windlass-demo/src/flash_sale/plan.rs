//! Which sales there are, and the faults of each.

use std::time::Duration;

use super::seller::POLL;
use super::{FAULT_LASTS, FAULTLESS_TTL, TTL};
use crate::args::{FaultKind, Guard, PlannedFault, value_name};

/// Which faults are injected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FaultSet {
    /// None: what a test on a developer's machine sees.
    None,
    /// A crash, a slow step, a suspended process.
    Common,
    /// A process that is suspended between its last check of the lock and its write.
    WorstMoment,
}

/// One sale.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct SalePlan {
    pub(super) guard: Guard,
    pub(super) faults: FaultSet,
    /// Interval to poll for a lock, in place of its wait queue.
    pub(super) poll: Option<Duration>,
}

impl SalePlan {
    /// Whether a counter takes the place of a lock.
    pub(super) fn uses_counter(&self) -> bool {
        self.guard == Guard::Counter
    }

    /// A short name, for keys.
    pub(super) fn slug(&self) -> String {
        let faults = match self.faults {
            FaultSet::None => "fair",
            FaultSet::Common => "foul",
            FaultSet::WorstMoment => "worst",
        };
        let polled = if self.poll.is_some() { "-polled" } else { "" };
        format!("{}-{faults}{polled}", value_name(&self.guard))
    }

    pub(super) fn has_faults(&self) -> bool {
        self.faults != FaultSet::None
    }

    /// TTL of the lock. Without faults it is long, so that it does not expire on a slow machine.
    pub(super) fn ttl(&self) -> Duration {
        match self.faults {
            FaultSet::None => FAULTLESS_TTL,
            FaultSet::Common | FaultSet::WorstMoment => TTL,
        }
    }

    /// How long a sale may make no progress before it counts as stuck forever. A key that never expires is certain
    /// after a moment; other sales continue when a claim expires, which takes as long as the store decides: a session
    /// of ZooKeeper may live ten times as long as requested. A busy machine must not fail the demo.
    pub(super) fn stuck_after(&self) -> Duration {
        match (self.faults, self.guard) {
            (FaultSet::Common, Guard::Setnx | Guard::SetnxExpire) => Duration::from_secs(3),
            _ => Duration::from_secs(20),
        }
    }

    /// The faults of this sale, one after the other, and early, before the stock is sold.
    pub(super) fn schedule(&self, stock: u32) -> Vec<PlannedFault> {
        let step = (stock / 16).clamp(1, 3);
        let purchases = (1..).map(|number| number * step);
        let kinds = self.kinds().iter().copied();
        let fault = |(kind, purchase)| PlannedFault {
            kind,
            purchase,
            lasts: match kind {
                FaultKind::Crash => Duration::ZERO,
                _ => FAULT_LASTS,
            },
        };
        kinds.zip(purchases).map(fault).collect()
    }

    /// The faults that the previous guard did not withstand, and those that this one does not.
    fn kinds(&self) -> &'static [FaultKind] {
        use FaultKind::{Crash, Freeze, Late, Slow};
        match (self.faults, self.guard) {
            (FaultSet::None, _) | (FaultSet::Common, Guard::None | Guard::Mutex) => &[],
            (FaultSet::WorstMoment, _) => &[Late],
            (FaultSet::Common, Guard::Setnx | Guard::SetnxExpire) => &[Crash],
            (FaultSet::Common, Guard::SetPx | Guard::Owner) => &[Crash, Slow],
            (FaultSet::Common, Guard::Lock) => &[Crash, Slow, Freeze],
            (FaultSet::Common, Guard::Fence | Guard::Counter) => &[Crash, Slow, Freeze, Late],
        }
    }
}

/// One row of the report.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ReportRow {
    Guard(Guard),
    /// The lock alone, and the one fault that it does not withstand.
    WorstMoment,
    /// The lock and its fencing token, with polling.
    Polled,
}

impl ReportRow {
    /// The rows of the report for these guards.
    pub(super) fn all(guards: &[Guard]) -> Vec<ReportRow> {
        let mut rows = Vec::new();
        for &guard in guards {
            rows.push(ReportRow::Guard(guard));
            match guard {
                Guard::Lock => rows.push(ReportRow::WorstMoment),
                Guard::Fence => rows.push(ReportRow::Polled),
                _ => {}
            }
        }
        rows
    }

    pub(super) fn guard(self) -> Guard {
        match self {
            ReportRow::Guard(guard) => guard,
            ReportRow::WorstMoment => Guard::Lock,
            ReportRow::Polled => Guard::Fence,
        }
    }

    /// The name in JSON output.
    pub(super) fn name(self) -> String {
        match self {
            ReportRow::Guard(guard) => value_name(&guard),
            ReportRow::WorstMoment => "lock-worst-moment".to_owned(),
            ReportRow::Polled => "fence-polled".to_owned(),
        }
    }

    /// The sale without faults, which is timed, if any.
    pub(super) fn faultless(self) -> Option<SalePlan> {
        match self {
            ReportRow::WorstMoment => None,
            ReportRow::Guard(guard) => Some(plan(guard, FaultSet::None, None)),
            ReportRow::Polled => Some(plan(Guard::Fence, FaultSet::None, Some(POLL))),
        }
    }

    /// The sale with faults, if any.
    pub(super) fn faulty(self) -> Option<SalePlan> {
        match self {
            // The first two fail without faults, and polling is about speed.
            ReportRow::Guard(Guard::None | Guard::Mutex) | ReportRow::Polled => None,
            ReportRow::Guard(guard) => Some(plan(guard, FaultSet::Common, None)),
            ReportRow::WorstMoment => Some(plan(Guard::Lock, FaultSet::WorstMoment, None)),
        }
    }

    pub(super) fn title(self) -> &'static str {
        match self {
            ReportRow::Guard(Guard::None) => "no guard",
            ReportRow::Guard(Guard::Mutex) => "a mutex in each shop",
            ReportRow::Guard(Guard::Setnx) => "SETNX, no expiry",
            ReportRow::Guard(Guard::SetnxExpire) => "SETNX, then EXPIRE",
            ReportRow::Guard(Guard::SetPx) => "SET NX PX, any client deletes",
            ReportRow::Guard(Guard::Owner) => "owner deletes, no renewal",
            ReportRow::Guard(Guard::Lock) => "Windlass lock",
            ReportRow::Guard(Guard::Fence) => "Windlass lock + fence",
            ReportRow::Guard(Guard::Counter) => "bounded counter, no lock",
            ReportRow::WorstMoment => "  … at the worst moment",
            ReportRow::Polled => "  … polling every 50 ms",
        }
    }

    /// What the guard does, and how it fails.
    pub(super) fn description(self) -> &'static str {
        match self {
            ReportRow::Guard(Guard::None) => {
                "Read the stock, prepare the bill, write the stock. A shop that reads before another has written \
                 sells the same item again."
            }
            ReportRow::Guard(Guard::Mutex) => {
                "Each shop serves one buyer at a time. The mutex does not cover the other shops: it holds with one \
                 shop, and fails with two."
            }
            ReportRow::Guard(Guard::Setnx) => {
                "The first to set the key has the lock, and deletes it afterwards. A shop that crashes in between \
                 leaves the key behind forever."
            }
            ReportRow::Guard(Guard::SetnxExpire) => {
                "A second command sets the expiry. A shop that crashes between the two commands never sends it."
            }
            ReportRow::Guard(Guard::SetPx) => {
                "One command sets the key and its expiry. A shop that is slower than the expiry keeps selling without \
                 the lock, and then deletes the lock of the next holder."
            }
            ReportRow::Guard(Guard::Owner) => {
                "Only the owner deletes, atomically. A shop that is slower than the expiry still keeps selling \
                 without the lock."
            }
            ReportRow::Guard(Guard::Lock) => {
                "Renewed during the work, granted in the order of arrival, and its loss is reported: a suspended \
                 shop learns that it has lost the lock before it writes."
            }
            ReportRow::WorstMoment => {
                "The one fault that no lock withstands: the process is suspended after its last check of the lock and \
                 before its write. This is what fencing tokens are for."
            }
            ReportRow::Guard(Guard::Fence) => {
                "Each grant carries a number that increases. The warehouse rejects a write with a lower number than \
                 it has seen, however late it arrives."
            }
            ReportRow::Polled => {
                "The same lock and fencing token, but waiters poll every 50 ms in place of the wait queue. Just as \
                 safe, but slower."
            }
            ReportRow::Guard(Guard::Counter) => {
                "One atomic step counts or refuses. Nothing is held, so nothing can be lost; a buyer who retries after \
                 a crash gets the same answer."
            }
        }
    }
}

fn plan(guard: Guard, faults: FaultSet, poll: Option<Duration>) -> SalePlan {
    SalePlan {
        guard,
        faults,
        poll,
    }
}

/// A fault must outlast the TTL, or it would have no effect.
const _: () = assert!(FAULT_LASTS.as_millis() > TTL.as_millis() * 3 / 2);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_faults_are_scheduled_before_the_stock_is_sold() {
        let faulty = ReportRow::Guard(Guard::Fence).faulty().unwrap();
        for stock in [5, 20, 50, 1000] {
            let faults = faulty.schedule(stock);
            assert_eq!(faults.len(), 4);
            assert!(
                faults
                    .iter()
                    .all(|fault| (1..stock).contains(&fault.purchase))
            );
            assert!(faults.is_sorted_by_key(|fault| fault.purchase));
        }
        assert!(
            ReportRow::Polled
                .faultless()
                .unwrap()
                .schedule(100)
                .is_empty()
        );
    }

    #[test]
    fn demo_does_not_give_up_on_a_claim_that_will_expire() {
        // The shortest session of ZooKeeper with ticks of 2 s.
        let longest = Duration::from_secs(4);
        for guard in [Guard::SetPx, Guard::Owner, Guard::Lock, Guard::Fence] {
            let faulty = ReportRow::Guard(guard).faulty().unwrap();
            assert!(
                faulty.stuck_after() > 2 * (longest + FAULT_LASTS),
                "{guard:?}"
            );
        }
        let stuck = ReportRow::Guard(Guard::Setnx).faulty().unwrap();
        assert!(stuck.stuck_after() > 2 * FAULT_LASTS);
    }
}
