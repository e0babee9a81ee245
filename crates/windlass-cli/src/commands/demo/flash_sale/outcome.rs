//! What a sale came to.

use std::time::{Duration, Instant};

use serde::Serialize;

use super::ledger::Ledger;
use crate::args::{FaultKind, word};

/// A fault that befell a shop.
#[derive(Clone, Copy, Debug)]
pub(super) struct Struck {
    pub(super) kind: FaultKind,
    pub(super) shop: usize,
    pub(super) at: Duration,
}

/// The books of a sale.
#[derive(Clone, Debug)]
pub(super) struct Outcome {
    pub(super) stock: i64,
    pub(super) sold: i64,
    /// Sales of which the stock knows nothing: another's write went over them.
    pub(super) lost: i64,
    /// Writes that came too late, and were refused for their fence.
    pub(super) refused: u64,
    /// The longest time in which nothing was sold, though there was something to sell.
    pub(super) stuck: Duration,
    /// It was still stuck when we gave up.
    pub(super) for_ever: bool,
    /// When each was sold, from the opening of the doors.
    pub(super) sales: Vec<Duration>,
    /// How long 99 of 100 buyers waited for an answer, at most.
    pub(super) p99: Option<Duration>,
    pub(super) struck: Vec<Struck>,
    pub(super) took: Duration,
}

impl Outcome {
    pub(super) fn new(
        ledger: &Ledger,
        counted: Option<i64>,
        mut served: Vec<(Duration, bool)>,
        struck: Vec<Struck>,
        (opened, closed): (Instant, Instant),
        gave_up: bool,
    ) -> Outcome {
        let since = |at: &Instant| at.saturating_duration_since(opened);
        let sales: Vec<Duration> = ledger.sales().iter().map(since).collect();
        let sold = sales.len() as i64;
        let recorded = counted.unwrap_or(ledger.stock() - ledger.left());
        let took = closed.duration_since(opened);
        let (stuck, for_ever) = gap(&sales, gave_up.then_some(took));
        served.sort_unstable();
        let rank = (served.len() * 99).div_ceil(100);
        Outcome {
            stock: ledger.stock(),
            sold,
            lost: sold - recorded,
            refused: ledger.stale(),
            stuck,
            for_ever,
            sales,
            p99: rank.checked_sub(1).map(|rank| served[rank].0),
            struck,
            took,
        }
    }

    pub(super) fn oversold(&self) -> i64 {
        (self.sold - self.stock).max(0)
    }

    /// How many were sold in a second, up to the last sale.
    pub(super) fn rate(&self) -> Option<f64> {
        let last = self.sales.last()?.as_secs_f64();
        (last > 0.0).then(|| self.sold as f64 / last)
    }

    /// Nothing sold twice, no sale forgotten, nobody left standing.
    pub(super) fn is_sound(&self) -> bool {
        self.oversold() == 0 && self.lost == 0 && !self.for_ever
    }

    pub(super) fn report(&self) -> OutcomeReport {
        OutcomeReport {
            sold: self.sold,
            oversold: self.oversold(),
            lost_updates: self.lost,
            refused: self.refused,
            stuck_ms: self.stuck.as_millis() as u64,
            stuck_for_ever: self.for_ever,
            sales_per_s: self.rate().map(|rate| (rate * 10.0).round() / 10.0),
            p99_ms: self.p99.map(|p99| p99.as_micros() as f64 / 1000.0),
            faults: self.struck.iter().map(|s| word(&s.kind)).collect(),
        }
    }
}

/// The same, for programs.
#[derive(Debug, Serialize)]
pub(super) struct OutcomeReport {
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

/// The longest time without a sale; and whether it is the one at the end, when everybody gave up.
fn gap(sales: &[Duration], gave_up: Option<Duration>) -> (Duration, bool) {
    let before = std::iter::once(Duration::ZERO).chain(sales.iter().copied());
    let between = before
        .zip(sales)
        .map(|(before, after)| after.saturating_sub(before));
    let longest = between.max().unwrap_or_default();
    match gave_up {
        Some(end) => {
            let last = sales.last().copied().unwrap_or_default();
            // A shop may sell one more while it is being ended.
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
    fn the_longest_wait_counts() {
        assert_eq!(gap(&[], None), (ms(0), false));
        assert_eq!(gap(&[ms(5), ms(7), ms(30)], None), (ms(23), false));
        assert_eq!(gap(&[ms(50), ms(51)], None), (ms(50), false));
        assert_eq!(gap(&[ms(5), ms(7)], Some(ms(100))), (ms(93), true));
        assert_eq!(gap(&[], Some(ms(100))), (ms(100), true));
        assert_eq!(gap(&[ms(5), ms(101)], Some(ms(100))), (ms(96), true));
    }

    #[test]
    fn the_books_are_balanced() {
        let opened = Instant::now();
        let mut ledger = Ledger::new(2, Vec::new());
        for left in [1, 1, 0] {
            ledger.write(left, None);
        }
        let closed = Instant::now();
        let outcome = Outcome::new(&ledger, None, vec![], vec![], (opened, closed), false);
        assert_eq!((outcome.sold, outcome.oversold(), outcome.lost), (3, 1, 1));
        assert!(!outcome.is_sound());
        let mut ledger = Ledger::new(2, Vec::new());
        ledger.ship("ann");
        let times = (opened, closed);
        let sound = Outcome::new(&ledger, Some(1), vec![], vec![], times, false);
        assert!(sound.is_sound());
        let forgotten = Outcome::new(&ledger, Some(0), vec![], vec![], times, false);
        assert_eq!(forgotten.lost, 1);
        let stuck = Outcome::new(&ledger, Some(1), vec![], vec![], times, true);
        assert!(!stuck.is_sound());
    }
}
