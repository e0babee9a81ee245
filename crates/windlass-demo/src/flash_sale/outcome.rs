//! The result of a sale.

use std::time::{Duration, Instant};

use serde::Serialize;

use super::ledger::Ledger;
use crate::args::{FaultKind, value_name};

/// A fault that was injected into a shop.
#[derive(Clone, Copy, Debug)]
pub(super) struct InjectedFault {
    pub(super) kind: FaultKind,
    pub(super) shop: usize,
    pub(super) at: Duration,
}

/// The result of a sale.
#[derive(Clone, Debug)]
pub(super) struct SaleOutcome {
    pub(super) stock: i64,
    pub(super) sold: i64,
    /// Sales that the stock does not show, because another write replaced theirs.
    pub(super) lost_updates: i64,
    /// Operations that were rejected for a stale fencing token.
    pub(super) refused: u64,
    /// The longest time without a sale while items were left.
    pub(super) stuck: Duration,
    /// Still stuck when the demo gave up.
    pub(super) stuck_forever: bool,
    /// The time of each sale, from the opening.
    pub(super) sales: Vec<Duration>,
    /// 99th percentile of the time that buyers waited for an answer.
    pub(super) p99: Option<Duration>,
    pub(super) faults: Vec<InjectedFault>,
    pub(super) took: Duration,
}

impl SaleOutcome {
    pub(super) fn new(
        ledger: &Ledger,
        counted: Option<i64>,
        mut served: Vec<(Duration, bool)>,
        faults: Vec<InjectedFault>,
        (opened, closed): (Instant, Instant),
        gave_up: bool,
    ) -> SaleOutcome {
        let since = |at: &Instant| at.saturating_duration_since(opened);
        let sales: Vec<Duration> = ledger.sales().iter().map(since).collect();
        let sold = sales.len() as i64;
        let recorded = counted.unwrap_or(ledger.stock() - ledger.left());
        let took = closed.duration_since(opened);
        let (stuck, stuck_forever) = longest_gap(&sales, gave_up.then_some(took));
        served.sort_unstable();
        let rank = (served.len() * 99).div_ceil(100);
        SaleOutcome {
            stock: ledger.stock(),
            sold,
            lost_updates: sold - recorded,
            refused: ledger.stale(),
            stuck,
            stuck_forever,
            sales,
            p99: rank.checked_sub(1).map(|rank| served[rank].0),
            faults,
            took,
        }
    }

    pub(super) fn oversold(&self) -> i64 {
        (self.sold - self.stock).max(0)
    }

    /// Sales per second, up to the last sale.
    pub(super) fn rate(&self) -> Option<f64> {
        let last = self.sales.last()?.as_secs_f64();
        (last > 0.0).then(|| self.sold as f64 / last)
    }

    /// Nothing was oversold, no update was lost, and no buyer waits forever.
    pub(super) fn is_sound(&self) -> bool {
        self.oversold() == 0 && self.lost_updates == 0 && !self.stuck_forever
    }

    pub(super) fn report(&self) -> SaleOutcomeReport {
        SaleOutcomeReport {
            sold: self.sold,
            oversold: self.oversold(),
            lost_updates: self.lost_updates,
            refused: self.refused,
            stuck_ms: self.stuck.as_millis() as u64,
            stuck_for_ever: self.stuck_forever,
            sales_per_s: self.rate().map(|rate| (rate * 10.0).round() / 10.0),
            p99_ms: self.p99.map(|p99| p99.as_micros() as f64 / 1000.0),
            faults: self.faults.iter().map(|s| value_name(&s.kind)).collect(),
        }
    }
}

/// The JSON form.
#[derive(Debug, Serialize)]
pub(super) struct SaleOutcomeReport {
    sold: i64,
    oversold: i64,
    lost_updates: i64,
    refused: u64,
    stuck_ms: u64,
    stuck_for_ever: bool,
    sales_per_s: Option<f64>,
    p99_ms: Option<f64>,
    faults: Vec<String>,
}

/// The longest time without a sale, and whether the sale was stuck at the end.
fn longest_gap(sales: &[Duration], gave_up: Option<Duration>) -> (Duration, bool) {
    let before = std::iter::once(Duration::ZERO).chain(sales.iter().copied());
    let between = before
        .zip(sales)
        .map(|(before, after)| after.saturating_sub(before));
    let longest = between.max().unwrap_or_default();
    match gave_up {
        Some(end) => {
            let last = sales.last().copied().unwrap_or_default();
            // A shop may sell one more item while it is being stopped.
            (longest.max(end.saturating_sub(last)), true)
        }
        None => (longest, false),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(millis: u64) -> Duration {
        Duration::from_millis(millis)
    }

    #[test]
    fn longest_gap_is_found() {
        assert_eq!(longest_gap(&[], None), (ms(0), false));
        assert_eq!(longest_gap(&[ms(5), ms(7), ms(30)], None), (ms(23), false));
        assert_eq!(longest_gap(&[ms(50), ms(51)], None), (ms(50), false));
        assert_eq!(longest_gap(&[ms(5), ms(7)], Some(ms(100))), (ms(93), true));
        assert_eq!(longest_gap(&[], Some(ms(100))), (ms(100), true));
        assert_eq!(
            longest_gap(&[ms(5), ms(101)], Some(ms(100))),
            (ms(96), true)
        );
    }

    #[test]
    fn oversold_and_lost_updates_are_counted() {
        let opened = Instant::now();
        let mut ledger = Ledger::new(2, Vec::new());
        for left in [1, 1, 0] {
            ledger.write(left, None);
        }
        let closed = Instant::now();
        let outcome = SaleOutcome::new(&ledger, None, vec![], vec![], (opened, closed), false);
        assert_eq!(
            (outcome.sold, outcome.oversold(), outcome.lost_updates),
            (3, 1, 1)
        );
        assert!(!outcome.is_sound());
        let mut ledger = Ledger::new(2, Vec::new());
        ledger.ship("ann");
        let times = (opened, closed);
        let sound = SaleOutcome::new(&ledger, Some(1), vec![], vec![], times, false);
        assert!(sound.is_sound());
        let forgotten = SaleOutcome::new(&ledger, Some(0), vec![], vec![], times, false);
        assert_eq!(forgotten.lost_updates, 1);
        let stuck = SaleOutcome::new(&ledger, Some(1), vec![], vec![], times, true);
        assert!(!stuck.is_sound());
    }
}
