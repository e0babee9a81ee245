//! [`TokenCache`]: the tokens that this process has leased for one key.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::refill::Refills;
use crate::lease::Moment;
use windlass_core::name::Name;

/// The bits of [`TokenCache::current`] that count tokens: enough for the largest quota.
const TOKENS: u64 = (1 << 40) - 1;
const ONE_REPLACEMENT: u64 = TOKENS + 1;

/// The tokens of one lease, and until when they may be used. Further leases wait in [`Refills`].
///
/// A caller reads the tokens first, then their validity, and takes in one atomic step, which fails if the lease was
/// replaced since: each replacement counts in the upper bits. So tokens are never used by the validity of another
/// lease.
#[derive(Debug)]
pub(super) struct TokenCache {
    pub(super) name: Name,
    /// The tokens in the lower bits, the number of replacements in the upper ones.
    current: AtomicU64,
    valid_until: AtomicU64,
    /// Until then no call to the store is worth it.
    denied_until: AtomicU64,
    /// When a unit is available again, by the last reply.
    retry_at: AtomicU64,
    /// When all units are available again, by the last reply.
    reset_at: AtomicU64,
    /// Units that callers wanted since the last refill: the demand.
    demand: AtomicU64,
    /// A refill is due when fewer tokens are left.
    refill_below: AtomicU64,
    /// Whether further leases may have tokens.
    more: AtomicBool,
    refills: Mutex<Refills>,
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
            current: AtomicU64::new(0),
            valid_until: AtomicU64::new(0),
            denied_until: AtomicU64::new(0),
            retry_at: AtomicU64::new(0),
            reset_at: AtomicU64::new(0),
            demand: AtomicU64::new(0),
            refill_below: AtomicU64::new(0),
            more: AtomicBool::new(false),
            refills: Mutex::default(),
        }
    }

    pub(super) fn refills(&self) -> MutexGuard<'_, Refills> {
        self.refills.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes units, and counts them as demand.
    pub(super) fn take(&self, units: u64, now: Moment) -> CacheTake {
        self.demand.fetch_add(units, Ordering::Relaxed);
        self.take_again(units, now)
    }

    /// Takes units for a caller that was counted before.
    pub(super) fn take_again(&self, units: u64, now: Moment) -> CacheTake {
        let mut seen = self.current.load(Ordering::Acquire);
        while let Some(left) = (seen & TOKENS).checked_sub(units)
            && now.as_nanos() < self.valid_until.load(Ordering::Acquire)
        {
            match self.take_seen(seen, units) {
                Ok(_) => return CacheTake::Taken(left),
                Err(changed) => seen = changed,
            }
        }
        match self.denied_until.load(Ordering::Relaxed) {
            until if now.as_nanos() < until && !self.more.load(Ordering::Acquire) => {
                CacheTake::Denied(Moment::from_nanos(until))
            }
            _ => CacheTake::Miss,
        }
    }

    /// Takes units of the lease that `seen` was read from; fails with what is there now.
    fn take_seen(&self, seen: u64, units: u64) -> Result<u64, u64> {
        let (taken, failed) = (Ordering::AcqRel, Ordering::Acquire);
        self.current
            .compare_exchange_weak(seen, seen - units, taken, failed)
    }

    /// Whether to look for tokens in further leases before denying.
    pub(super) fn set_more(&self, more: bool) {
        self.more.store(more, Ordering::Release);
    }

    /// Whether a take that left this many tokens should start a refill: once for each
    /// [`refill_below`](TokenCache::refill_below).
    pub(super) fn refill_is_due(&self, left: u64, now: Moment) -> bool {
        left < self.refill_below.load(Ordering::Relaxed)
            && now.as_nanos() >= self.denied_until.load(Ordering::Relaxed)
            && self.refill_below.swap(0, Ordering::Relaxed) > 0
    }

    pub(super) fn refill_below(&self, tokens: u64) {
        self.refill_below.store(tokens, Ordering::Relaxed);
    }

    /// Whether the cache can decide anything without the store.
    pub(super) fn is_in_use(&self, now: Moment) -> bool {
        !matches!(self.take_again(0, now), CacheTake::Miss)
    }

    /// The tokens left, valid or not.
    pub(super) fn left(&self) -> u64 {
        self.current.load(Ordering::Acquire) & TOKENS
    }

    /// Takes all tokens, valid or not.
    pub(super) fn empty(&self) -> u64 {
        let replace = |seen: u64| Some((seen & !TOKENS).wrapping_add(ONE_REPLACEMENT));
        let seen = self
            .current
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, replace);
        seen.unwrap_or_else(|seen| seen) & TOKENS
    }

    /// Fills an empty cache. Callers hold the lock of [`refills`](TokenCache::refills).
    pub(super) fn fill(&self, units: u64, valid_until: Moment) {
        debug_assert_eq!(self.left(), 0, "the tokens of two leases are not mixed");
        self.valid_until
            .store(valid_until.as_nanos(), Ordering::Release);
        self.current.fetch_add(units, Ordering::AcqRel);
    }

    pub(super) fn deny_until(&self, moment: Moment) {
        self.denied_until
            .store(moment.as_nanos(), Ordering::Relaxed);
    }

    pub(super) fn set_retry_at(&self, moment: Moment) {
        self.retry_at.store(moment.as_nanos(), Ordering::Relaxed);
    }

    pub(super) fn retry_at(&self) -> Moment {
        Moment::from_nanos(self.retry_at.load(Ordering::Relaxed))
    }

    pub(super) fn set_reset_at(&self, moment: Moment) {
        self.reset_at.store(moment.as_nanos(), Ordering::Relaxed);
    }

    pub(super) fn reset_at(&self) -> Moment {
        Moment::from_nanos(self.reset_at.load(Ordering::Relaxed))
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
    fn a_refill_is_due_once_and_not_while_the_store_has_nothing() {
        let cache = TokenCache::new(Name::checked("x"));
        let at = Moment::from_nanos;
        assert!(!cache.refill_is_due(0, at(1)), "no level is set");
        cache.refill_below(5);
        cache.deny_until(at(10));
        assert!(!cache.refill_is_due(5, at(10)));
        assert!(!cache.refill_is_due(4, at(9)));
        assert!(cache.refill_is_due(4, at(10)));
        assert!(!cache.refill_is_due(3, at(10)), "it was started");
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

    #[test]
    fn tokens_are_not_used_by_the_validity_of_another_lease() {
        let cache = TokenCache::new(Name::checked("x"));
        cache.fill(7, Moment::from_nanos(20));
        let seen = cache.current.load(Ordering::Acquire);
        cache.empty();
        cache.fill(7, Moment::from_nanos(5));
        assert!(cache.take_seen(seen, 1).is_err());
        assert_eq!(cache.left(), 7);
    }

    /// No token of an expired lease is used, and none twice.
    #[test]
    fn valid_and_expired_leases_take_turns() {
        let cache = TokenCache::new(Name::checked("x"));
        let now = Moment::from_nanos(10);
        let (mut filled, mut emptied, mut used_late) = (0, 0, 0);
        let done = std::sync::atomic::AtomicBool::new(false);
        let taken: u64 = std::thread::scope(|scope| {
            let taker = || {
                let mut taken = 0;
                while !done.load(Ordering::Relaxed) {
                    taken += u64::from(matches!(cache.take(1, now), CacheTake::Taken(_)));
                }
                taken
            };
            let takers = [scope.spawn(taker), scope.spawn(taker)];
            for i in 0..20_000 {
                let valid = i % 2 == 0;
                cache.fill(7, Moment::from_nanos(if valid { 20 } else { 5 }));
                let left = cache.empty();
                if valid {
                    filled += 7;
                    emptied += left;
                } else {
                    used_late += 7 - left;
                }
            }
            done.store(true, Ordering::Relaxed);
            takers.into_iter().map(|taker| taker.join().unwrap()).sum()
        });
        assert_eq!(used_late, 0, "used after the lease");
        assert_eq!(taken + emptied, filled);
    }
}
