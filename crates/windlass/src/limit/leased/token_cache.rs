//! What one process has of one key.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::lease::Moment;
use windlass_core::error::Error;

/// Units that the store has lent, and until when they may be used.
///
/// Whoever takes units looks at the clock first, and takes them in one step. A new loan comes in only
/// when the last one is used up, given back or over, so a time that was read belongs to the units that
/// are there, or to an earlier loan, which ended sooner.
#[derive(Debug)]
pub(super) struct TokenCache {
    pub(super) name: windlass_core::name::Name,
    units: AtomicU64,
    good_until: AtomicU64,
    /// There is no use in asking the store before.
    closed_until: AtomicU64,
    /// When the store's units will all be there again, as far as was last seen.
    reset_at: AtomicU64,
    /// Units that were asked for since the last loan: what the next one is sized by.
    asked: AtomicU64,
    /// How often the store has failed.
    failures: AtomicU64,
    /// One loan at a time; and what is known of the last one.
    pub(super) refill: Arc<tokio::sync::Mutex<Last>>,
}

/// The last loan.
#[derive(Debug, Default)]
pub(super) struct Last {
    pub(super) at: Option<Moment>,
    pub(super) units: u64,
    /// Why the store failed when it was last asked, if it did.
    pub(super) failure: Option<Error>,
}

/// What can be said without asking the store.
#[derive(Debug, PartialEq)]
pub(super) enum Here {
    /// Allowed: so many units are left.
    Taken(u64),
    /// Denied, until then.
    Closed(Moment),
    /// Only the store knows.
    AcquireRequest,
}

impl TokenCache {
    pub(super) fn new(name: windlass_core::name::Name) -> TokenCache {
        TokenCache {
            name,
            units: AtomicU64::new(0),
            good_until: AtomicU64::new(0),
            closed_until: AtomicU64::new(0),
            reset_at: AtomicU64::new(0),
            asked: AtomicU64::new(0),
            failures: AtomicU64::new(0),
            refill: Arc::default(),
        }
    }

    /// Takes units, if they are here.
    pub(super) fn take(&self, units: u64, now: Moment) -> Here {
        self.asked.fetch_add(units, Ordering::Relaxed);
        self.take_again(units, now)
    }

    /// The same, for somebody who was counted before.
    pub(super) fn take_again(&self, units: u64, now: Moment) -> Here {
        let now = now.as_nanos();
        if now < self.good_until.load(Ordering::Acquire) {
            let mut there = self.units.load(Ordering::Relaxed);
            while let Some(left) = there.checked_sub(units) {
                let taken = self.units.compare_exchange_weak(
                    there,
                    left,
                    Ordering::AcqRel,
                    Ordering::Relaxed,
                );
                match taken {
                    Ok(_) => return Here::Taken(left),
                    Err(now_there) => there = now_there,
                }
            }
        }
        match self.closed_until.load(Ordering::Relaxed) {
            closed if now < closed => Here::Closed(Moment::from_nanos(closed)),
            _ => Here::AcquireRequest,
        }
    }

    /// Whether the units may still be used.
    pub(super) fn is_good(&self, now: Moment) -> bool {
        now.as_nanos() < self.good_until.load(Ordering::Acquire)
    }

    /// Takes all that is left, to give it back.
    pub(super) fn empty(&self) -> u64 {
        self.units.swap(0, Ordering::AcqRel)
    }

    /// Puts a loan in. There must be nothing in it.
    pub(super) fn fill(&self, units: u64, good_until: Moment) {
        self.good_until
            .store(good_until.as_nanos(), Ordering::Release);
        self.units.store(units, Ordering::Release);
    }

    pub(super) fn close_until(&self, moment: Moment) {
        self.closed_until
            .store(moment.as_nanos(), Ordering::Relaxed);
    }

    pub(super) fn resets_at(&self, moment: Moment) {
        self.reset_at.store(moment.as_nanos(), Ordering::Relaxed);
    }

    pub(super) fn reset_at(&self) -> Moment {
        Moment::from_nanos(self.reset_at.load(Ordering::Relaxed))
    }

    /// How often the store has failed: whoever waited while it did need not ask again.
    pub(super) fn failures(&self) -> u64 {
        self.failures.load(Ordering::Acquire)
    }

    pub(super) fn has_failed(&self) {
        self.failures.fetch_add(1, Ordering::AcqRel);
    }

    /// What was asked for since this was last called.
    pub(super) fn demand(&self) -> u64 {
        self.asked.swap(0, Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn units_are_taken_once_and_in_time() {
        let purse = TokenCache::new(windlass_core::name::Name::checked("x"));
        let at = Moment::from_nanos;
        assert_eq!(purse.take(1, at(5)), Here::AcquireRequest);
        purse.fill(3, at(10));
        assert_eq!(purse.take(2, at(9)), Here::Taken(1));
        assert_eq!(purse.take(2, at(9)), Here::AcquireRequest);
        assert_eq!(purse.take(1, at(10)), Here::AcquireRequest, "too late");
        assert_eq!(purse.empty(), 1);
        purse.close_until(at(20));
        assert_eq!(purse.take(1, at(11)), Here::Closed(at(20)));
        assert_eq!(purse.take(1, at(20)), Here::AcquireRequest);
        assert_eq!(purse.demand(), 1 + 2 + 2 + 1 + 1 + 1);
    }

    #[test]
    fn threads_never_take_more_than_there_is() {
        let purse = TokenCache::new(windlass_core::name::Name::checked("x"));
        purse.fill(100_000, at_the_end());
        let taken: u64 = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..4)
                .map(|_| {
                    scope.spawn(|| {
                        let take =
                            || matches!(purse.take(1, Moment::from_nanos(1)), Here::Taken(_));
                        (0..50_000).filter(|_| take()).count() as u64
                    })
                })
                .collect();
            threads.into_iter().map(|t| t.join().unwrap()).sum()
        });
        assert_eq!(taken, 100_000);
    }

    fn at_the_end() -> Moment {
        Moment::from_nanos(u64::MAX)
    }
}
