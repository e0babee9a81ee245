//! [`LeasedLimiter`]: decisions without a round trip, from tokens that the store has leased to this process.

mod demand;
mod forecast;
mod grant;
mod refill;
#[cfg(test)]
mod slow_store_tests;
mod token_cache;
mod unused;

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};

use self::token_cache::{CacheTake, TokenCache};
use self::unused::UnusedTokens;
use super::limiter::{Limiter, check_units};
use crate::lease::{Clock, Moment};
use windlass_core::decision::{Basis, Decision};
use windlass_core::error::Result;
use windlass_core::rules::limit::{LimitStatus, Rule};

/// From this many keys on, unused ones are removed.
const PRUNE_FROM: usize = 1024;

/// A [`Limiter`] that decides in this process, from tokens that it prefetches from the store.
///
/// Tokens are leased in chunks sized by demand, for about 100 ms each, and the next chunk is requested before the last
/// token is used: some ten store calls per second serve millions of decisions. Unused tokens are returned.
///
/// # Guarantees
///
/// **All processes together never use more than the quota**, whatever happens to any of them. Tokens are charged when
/// they are leased: a process that crashes has used too few, not too many. A lease is short and charged
/// as if all its tokens were used at its end, so tokens of several processes cannot accumulate. Leased and direct
/// clients of the same limiter can be mixed.
///
/// **A slow store does not make it worse than a plain limiter.** Callers that find no token share one call, and each gets
/// what the store granted to it, however late.
///
/// The costs:
///
/// - A token bucket leases for a quarter of the time in which it fills. If that is less than 10 ms, or less than about
///   two round trips, nothing is prefetched, and every caller waits for the store. So for a store that is a round trip of
///   100 ms away, choose a burst of at least one second's rate.
/// - A sliding log is exact, so none of its units can be used later than the store decided: nothing is prefetched, and
///   every caller waits for the store. Callers that wait at the same time share a call.
/// - A denial is this process's own view: another process may still have tokens. It asks the store again after at
///   most a second.
/// - When a quota changes, tokens that are already leased were charged under the old one.
///
/// # Example
///
/// ```
/// use windlass::Quota;
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> windlass::Result<()> {
/// let w = windlass::connect("memory:").await?;
/// let events = w.limiter("events", Quota::per_second(1_000_000)).leased();
/// for _ in 0..1_000 {
///     assert!(events.check("ingest").await?.is_allowed());
/// }
/// assert!(events.store_calls() < 20);
/// events.give_back().await?;
/// # Ok(()) }
/// ```
#[derive(Clone)]
#[must_use = "a limiter does nothing until it is checked"]
pub struct LeasedLimiter {
    inner: Arc<LeasedLimiterInner>,
}

/// One key of a [`LeasedLimiter`], without the map look-up.
#[derive(Clone)]
#[must_use = "a limiter does nothing until it is checked"]
pub struct LeasedKey {
    limiter: LeasedLimiter,
    cache: Arc<TokenCache>,
}

struct LeasedLimiterInner {
    limiter: Limiter,
    caches: RwLock<HashMap<Box<str>, Arc<TokenCache>>>,
    /// Leases whose unused tokens can still be returned, by when to return them.
    unused: Mutex<BTreeMap<(Moment, u64), UnusedTokens>>,
    store_calls: AtomicU64,
    return_loop: Mutex<Option<tokio::task::AbortHandle>>,
    lease_added: Arc<tokio::sync::Notify>,
}

impl Limiter {
    /// The same limiter, deciding in this process from tokens that it prefetches from the store.
    pub fn leased(&self) -> LeasedLimiter {
        LeasedLimiter {
            inner: Arc::new(LeasedLimiterInner {
                limiter: self.clone(),
                caches: RwLock::default(),
                unused: Mutex::default(),
                store_calls: AtomicU64::new(0),
                return_loop: Mutex::new(None),
                lease_added: Arc::default(),
            }),
        }
    }
}

impl LeasedLimiter {
    /// Takes one unit for `key`, mostly without a store call.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the unit may or may not have been taken.
    pub async fn check(&self, key: &str) -> Result<Decision> {
        self.check_n(key, 1).await
    }

    /// Takes `units` units for `key`, all or nothing.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the units may or may not have been taken.
    pub async fn check_n(&self, key: &str, units: u64) -> Result<Decision> {
        let cache = match self.take_known(key, units) {
            Ok(decision) => return Ok(decision),
            Err(Some(cache)) => cache,
            Err(None) => {
                let cache = self.cache(key)?;
                if let Some(decision) = self.take_cached(&cache, units) {
                    return Ok(decision);
                }
                cache
            }
        };
        self.take_from_store(&cache, key, units).await
    }

    /// Takes `units` units from the prefetched tokens, without waiting and without a store call. `None` if only the
    /// store can decide.
    pub fn check_now(&self, key: &str, units: u64) -> Option<Decision> {
        // Under the lock, which costs less than a clone of the cache.
        let caches = self.inner.caches.read();
        let caches = caches.unwrap_or_else(PoisonError::into_inner);
        self.take_now(caches.get(key)?, units)
    }

    /// A handle to one key, for hot paths.
    pub fn key(&self, key: &str) -> Result<LeasedKey> {
        Ok(LeasedKey {
            cache: self.cache(key)?,
            limiter: self.clone(),
        })
    }

    /// Returns all unused tokens to the store. Returns how many units that were.
    ///
    /// When the last clone is dropped, the same happens in the background.
    pub async fn give_back(&self) -> Result<u64> {
        let unused = std::mem::take(&mut *self.inner.unused());
        let mut returned = 0;
        for tokens in unused.into_values() {
            let (limiter, calls) = (&self.inner.limiter, &self.inner.store_calls);
            returned += tokens.give_back(limiter, calls).await?;
        }
        Ok(returned)
    }

    /// How often the store has been called so far.
    pub fn store_calls(&self) -> u64 {
        self.inner.store_calls.load(Ordering::Relaxed)
    }

    /// Takes units from the cache of a key. If only the store can decide, the cache; `None` if there is none yet.
    fn take_known(&self, key: &str, units: u64) -> Result<Decision, Option<Arc<TokenCache>>> {
        // Under the lock, which costs less than a clone of the cache.
        let caches = self.inner.caches.read();
        let caches = caches.unwrap_or_else(PoisonError::into_inner);
        let cache = caches.get(key).ok_or(None)?;
        let decision = self.take_cached(cache, units);
        decision.ok_or_else(|| Some(Arc::clone(cache)))
    }

    fn cache(&self, key: &str) -> Result<Arc<TokenCache>> {
        let name = self.inner.limiter.name_of("check", key)?;
        let mut caches = self
            .inner
            .caches
            .write()
            .unwrap_or_else(PoisonError::into_inner);
        if caches.len() >= PRUNE_FROM && caches.len().is_power_of_two() {
            let now = self.inner.limiter.clock().now();
            caches.retain(|_, cache| Arc::strong_count(cache) > 1 || cache.is_in_use(now));
        }
        let new = || Arc::new(TokenCache::new(name));
        Ok(Arc::clone(caches.entry(key.into()).or_insert_with(new)))
    }

    /// Takes units from a cache; `None` if only the store can decide.
    #[inline]
    fn take_cached(&self, cache: &Arc<TokenCache>, units: u64) -> Option<Decision> {
        let now = self.now();
        match cache.take(units, now) {
            CacheTake::Taken(left) => {
                if cache.refill_is_due(left, now) {
                    refill::prefetch(self, cache);
                }
                Some(self.decided(cache, now, true, left, None))
            }
            CacheTake::Denied(until) => {
                let rules = self.inner.limiter.rules().ok()?;
                let is_denied = units <= lowest_limit(rules);
                is_denied.then(|| self.decided(cache, now, false, 0, Some(until)))
            }
            CacheTake::Miss => None,
        }
    }

    /// Not earlier than the present moment: tokens are never used after the end of their lease.
    #[inline]
    fn now(&self) -> Moment {
        self.inner.limiter.clock().quick_now() + Clock::QUICK_ERROR
    }

    fn take_now(&self, cache: &Arc<TokenCache>, units: u64) -> Option<Decision> {
        let now = self.now();
        let taken = match cache.take(units, now) {
            CacheTake::Taken(left) => CacheTake::Taken(left),
            _ => {
                let rules = self.inner.limiter.rules().ok()?;
                if units == 0 || units > lowest_limit(rules) {
                    return None;
                }
                cache.refills().take(cache, rules, units, now)
            }
        };
        match taken {
            CacheTake::Taken(left) => {
                if cache.refill_is_due(left, now) {
                    refill::prefetch(self, cache);
                }
                Some(self.decided(cache, now, true, left, None))
            }
            CacheTake::Denied(until) => Some(self.decided(cache, now, false, 0, Some(until))),
            CacheTake::Miss => None,
        }
    }

    #[cold]
    async fn take_from_store(
        &self,
        cache: &Arc<TokenCache>,
        key: &str,
        units: u64,
    ) -> Result<Decision> {
        check_units(units)?;
        let limiter = &self.inner.limiter;
        let direct = units == 0 || units > lowest_limit(limiter.rules()?);
        // While the store is skipped, the fallback decides at once.
        if direct || limiter.caller.breaker_is_open().is_some() {
            self.inner.store_calls.fetch_add(1, Ordering::Relaxed);
            return limiter.check_n(key, units).await;
        }
        let decision = refill::take_or_wait(self, cache, units).await;
        limiter.metrics.ended(&decision);
        decision
    }

    /// The decision, recorded.
    #[inline]
    fn decided(
        &self,
        cache: &TokenCache,
        now: Moment,
        allowed: bool,
        left: u64,
        denied_until: Option<Moment>,
    ) -> Decision {
        let decision = self.decision(cache, now, allowed, left, denied_until);
        self.inner.limiter.metrics.decided(&decision);
        decision
    }

    fn decision(
        &self,
        cache: &TokenCache,
        now: Moment,
        allowed: bool,
        left: u64,
        denied_until: Option<Moment>,
    ) -> Decision {
        // In 64 bits: a division of 128 is a measurable part of a check.
        let nanos = |until: Moment| until.as_nanos().saturating_sub(now.as_nanos());
        let micros = |until: Moment| nanos(until).div_ceil(1_000);
        let rules = self.inner.limiter.rules();
        let lowest = rules.map_or((0, 0), |rules| lowest(rules));
        let status = LimitStatus {
            limit: lowest.1,
            quota: lowest.0,
            remaining: left,
            retry_after: Some(denied_until.map_or(0, |until| micros(until.max(cache.retry_at())))),
            reset_after: Some(micros(cache.reset_at())),
        };
        Decision::new(allowed, status, Basis::Leased)
    }
}

impl LeasedKey {
    /// Takes one unit, mostly without a store call.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the unit may or may not have been taken.
    pub async fn check(&self) -> Result<Decision> {
        self.check_n(1).await
    }

    /// Takes `units` units, all or nothing.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the units may or may not have been taken.
    pub async fn check_n(&self, units: u64) -> Result<Decision> {
        let limiter = &self.limiter;
        match limiter.take_cached(&self.cache, units) {
            Some(decision) => Ok(decision),
            None => {
                limiter
                    .take_from_store(&self.cache, self.key(), units)
                    .await
            }
        }
    }

    /// Takes one unit from the prefetched tokens, without waiting and without a store call. `None` if only the store can
    /// decide.
    pub fn check_now(&self) -> Option<Decision> {
        self.limiter.take_now(&self.cache, 1)
    }

    fn key(&self) -> &str {
        self.limiter.inner.limiter.key_of(&self.cache.name)
    }
}

/// The most that one call can ever take.
fn lowest_limit(rules: &[Rule]) -> u64 {
    lowest(rules).1
}

/// The rule with the lowest limit: its position and limit.
fn lowest(rules: &[Rule]) -> (u16, u64) {
    let all = (0_u16..).zip(rules.iter().map(Rule::limit));
    all.min_by_key(|&(_, limit)| limit).unwrap_or((0, 0))
}

impl LeasedLimiterInner {
    fn unused(&self) -> MutexGuard<'_, BTreeMap<(Moment, u64), UnusedTokens>> {
        self.unused.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for LeasedLimiterInner {
    fn drop(&mut self) {
        let return_loop = self
            .return_loop
            .get_mut()
            .unwrap_or_else(PoisonError::into_inner);
        if let Some(return_loop) = return_loop.take() {
            return_loop.abort();
        }
        let unused = std::mem::take(&mut *self.unused());
        // Without a runtime nothing can be sent; the charged tokens are refilled.
        let Ok(runtime) = tokio::runtime::Handle::try_current() else {
            return;
        };
        let limiter = self.limiter.clone();
        runtime.spawn(async move {
            let calls = AtomicU64::new(0);
            for tokens in unused.into_values() {
                if let Err(error) = tokens.give_back(&limiter, &calls).await {
                    tracing::debug!(%error, "unused tokens could not be returned");
                }
            }
        });
    }
}

impl fmt::Debug for LeasedLimiter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("LeasedLimiter")
            .field(&self.inner.limiter)
            .finish()
    }
}

impl fmt::Debug for LeasedKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("LeasedKey").field(&self.cache.name).finish()
    }
}
