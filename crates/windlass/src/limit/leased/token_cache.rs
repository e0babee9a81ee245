//! [`TokenCache`]: the tokens that this process has leased for one key.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::lease::Moment;
use windlass_core::error::Error;
use windlass_core::name::Name;

/// Leased tokens, and until when they may be used.
///
/// A caller reads the validity first and then takes tokens in one atomic step. The cache is filled only when the last
/// lease is used up, returned or over, so a validity that was read belongs to the tokens in the cache, or to an
/// earlier lease, which ends sooner.
#[derive(Debug)]
pub(super) struct TokenCache {
    pub(super) name: Name,
    units: AtomicU64,
    valid_until: AtomicU64,
    /// Until then a refill would bring nothing.
    denied_until: AtomicU64,
    /// When all units are available again, by the last reply.
    reset_at: AtomicU64,
    /// Units that callers wanted since the last refill: the demand.
    demand: AtomicU64,
    /// How many refills have failed.
    failures: AtomicU64,
    /// Locked during a refill: one at a time.
    pub(super) last_refill: Arc<tokio::sync::Mutex<LastRefill>>,
}

#[derive(Debug, Default)]
pub(super) struct LastRefill {
    pub(super) at: Option<Moment>,
    pub(super) units: u64,
    /// The error of the last refill, if it failed.
    pub(super) failure: Option<Error>,
}

/// The outcome of taking tokens from the cache.
#[derive(Debug, PartialEq)]
pub(super) enum CacheTake {
    /// Allowed; this many units are left.
    Taken(u64),
    /// Denied until then.
    Denied(Moment),
    /// The store has to decide.
    Miss,
}

impl TokenCache {
    pub(super) fn new(name: Name) -> TokenCache {
        TokenCache {
            name,
            units: AtomicU64::new(0),
            valid_until: AtomicU64::new(0),
            denied_until: AtomicU64::new(0),
            reset_at: AtomicU64::new(0),
            demand: AtomicU64::new(0),
            failures: AtomicU64::new(0),
            last_refill: Arc::default(),
        }
    }

    /// Takes units, and counts them as demand.
    pub(super) fn take(&self, units: u64, now: Moment) -> CacheTake {
        self.demand.fetch_add(units, Ordering::Relaxed);
        self.take_again(units, now)
    }

    /// Takes units for a caller that was counted before.
    pub(super) fn take_again(&self, units: u64, now: Moment) -> CacheTake {
        let now = now.as_nanos();
        if now < self.valid_until.load(Ordering::Acquire) {
            let mut available = self.units.load(Ordering::Relaxed);
            while let Some(left) = available.checked_sub(units) {
                let taken = self.units.compare_exchange_weak(
                    available,
                    left,
                    Ordering::AcqRel,
                    Ordering::Relaxed,
                );
                match taken {
                    Ok(_) => return CacheTake::Taken(left),
                    Err(changed) => available = changed,
                }
            }
        }
        match self.denied_until.load(Ordering::Relaxed) {
            until if now < until => CacheTake::Denied(Moment::from_nanos(until)),
            _ => CacheTake::Miss,
        }
    }

    /// Whether the cache can decide anything without the store.
    pub(super) fn is_in_use(&self, now: Moment) -> bool {
        !matches!(self.take_again(0, now), CacheTake::Miss)
    }

    /// Whether the tokens may still be used.
    pub(super) fn is_valid(&self, now: Moment) -> bool {
        now.as_nanos() < self.valid_until.load(Ordering::Acquire)
    }

    /// Takes all tokens, to return them.
    pub(super) fn empty(&self) -> u64 {
        self.units.swap(0, Ordering::AcqRel)
    }

    /// Fills an empty cache.
    pub(super) fn fill(&self, units: u64, valid_until: Moment) {
        self.valid_until
            .store(valid_until.as_nanos(), Ordering::Release);
        self.units.store(units, Ordering::Release);
    }

    pub(super) fn deny_until(&self, moment: Moment) {
        self.denied_until
            .store(moment.as_nanos(), Ordering::Relaxed);
    }

    pub(super) fn set_reset_at(&self, moment: Moment) {
        self.reset_at.store(moment.as_nanos(), Ordering::Relaxed);
    }

    pub(super) fn reset_at(&self) -> Moment {
        Moment::from_nanos(self.reset_at.load(Ordering::Relaxed))
    }

    /// How many refills have failed: a caller that waited while one failed need not refill again.
    pub(super) fn failures(&self) -> u64 {
        self.failures.load(Ordering::Acquire)
    }

    pub(super) fn count_failure(&self) {
        self.failures.fetch_add(1, Ordering::AcqRel);
    }

    /// The demand since the last call of this.
    pub(super) fn take_demand(&self) -> u64 {
        self.demand.swap(0, Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_are_taken_once_and_only_while_valid() {
        let cache = TokenCache::new(Name::checked("x"));
        let at = Moment::from_nanos;
        assert_eq!(cache.take(1, at(5)), CacheTake::Miss);
        cache.fill(3, at(10));
        assert_eq!(cache.take(2, at(9)), CacheTake::Taken(1));
        assert_eq!(cache.take(2, at(9)), CacheTake::Miss);
        assert_eq!(cache.take(1, at(10)), CacheTake::Miss, "too late");
        assert_eq!(cache.empty(), 1);
        cache.deny_until(at(20));
        assert_eq!(cache.take(1, at(11)), CacheTake::Denied(at(20)));
        assert_eq!(cache.take(1, at(20)), CacheTake::Miss);
        assert_eq!(cache.take_demand(), 1 + 2 + 2 + 1 + 1 + 1);
    }

    #[test]
    fn threads_never_take_more_than_there_is() {
        let cache = TokenCache::new(Name::checked("x"));
        cache.fill(100_000, Moment::from_nanos(u64::MAX));
        let taken: u64 = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..4)
                .map(|_| {
                    scope.spawn(|| {
                        let take =
                            || matches!(cache.take(1, Moment::from_nanos(1)), CacheTake::Taken(_));
                        (0..50_000).filter(|_| take()).count() as u64
                    })
                })
                .collect();
            threads.into_iter().map(|t| t.join().unwrap()).sum()
        });
        assert_eq!(taken, 100_000);
    }
}
