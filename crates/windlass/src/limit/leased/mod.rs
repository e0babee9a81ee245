//! Decisions without a round trip: units lent by the store.

mod refill;
mod token_cache;

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::Duration;

use self::token_cache::{Here, TokenCache};
use super::limiter::{Limiter, check_units};
use crate::lease::Moment;
use windlass_core::decision::{Basis, Decision};
use windlass_core::error::Result;
use windlass_core::rules::limit::{LimitStatus, Rule};

/// A bucket that lends for less than this lends nothing that would still be good when it arrives: the
/// store decides each call then.
const SHORTEST_LOAN: Duration = Duration::from_millis(10);

/// A [`Limiter`] that decides in this process, from units that the store has lent it.
///
/// Units are borrowed in chunks sized by demand, for about a tenth of a second each: some ten calls of
/// the store a second serve millions of decisions. What is not used goes back.
///
/// # Guarantees
///
/// **All processes together never use more than the quota**, whatever happens to any of them: units
/// are charged when they are lent, and a process that crashes has used too few, not too many. Units
/// are lent for a short while, and charged as if all were used at the end of it; so they cannot pile up
/// on those of others that came in later. Strict callers of the same limiter, and leased ones, may be
/// mixed.
///
/// What it costs:
///
/// - In a token bucket, three quarters of the burst can be lent at once. A call for more, and every call
///   to a bucket that fills in less than 40 ms, is decided by the store.
/// - A denial is this process's own view: [`retry_after`](Decision::retry_after) is when it will ask
///   again, and another process may still have units.
/// - When a quota changes, loans that are out were made by the old one.
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
#[must_use = "a limiter does nothing until it is asked"]
pub struct Leased {
    inner: Arc<Inner>,
}

/// One key of a [`Leased`] limiter, without the look-up.
#[derive(Clone)]
#[must_use = "a limiter does nothing until it is asked"]
pub struct LeasedKey {
    leased: Leased,
    purse: Arc<TokenCache>,
}

struct Inner {
    limiter: Limiter,
    purses: RwLock<HashMap<Box<str>, Arc<TokenCache>>>,
    /// Loans that are out, by when what is left of them should go back.
    out: Mutex<BTreeMap<(Moment, u64), Out>>,
    calls: AtomicU64,
    sweeper: Mutex<Option<tokio::task::AbortHandle>>,
    sooner: Arc<tokio::sync::Notify>,
}

/// A loan that is out.
struct Out {
    purse: Arc<TokenCache>,
    lent: LeasedUnits,
}

/// The store's time when a loan was made, and the mark of the state that it was made by.
type LeasedUnits = (u64, u64);

impl Limiter {
    /// The same limiter, deciding in this process from units that the store lends it.
    pub fn leased(&self) -> Leased {
        Leased {
            inner: Arc::new(Inner {
                limiter: self.clone(),
                purses: RwLock::default(),
                out: Mutex::default(),
                calls: AtomicU64::new(0),
                sweeper: Mutex::new(None),
                sooner: Arc::default(),
            }),
        }
    }
}

impl Leased {
    /// Takes one unit for `key`, mostly without asking the store.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the unit may or may not have been taken.
    pub async fn check(&self, key: &str) -> Result<Decision> {
        self.check_n(key, 1).await
    }

    /// Takes so many units for `key`, all or nothing.
    pub async fn check_n(&self, key: &str, units: u64) -> Result<Decision> {
        if let Some(purse) = self.known(key) {
            return self.take(&purse, key, units).await;
        }
        let purse = self.purse(key)?;
        self.take(&purse, key, units).await
    }

    /// One key, for those who ask for it over and over.
    pub fn key(&self, key: &str) -> Result<LeasedKey> {
        Ok(LeasedKey {
            purse: self.purse(key)?,
            leased: self.clone(),
        })
    }

    /// Gives back all that was lent and not used. Says how many units went back.
    ///
    /// When the last clone is dropped, the same happens in the background.
    pub async fn give_back(&self) -> Result<u64> {
        let loans = std::mem::take(&mut *self.inner.out());
        let mut back = 0;
        for out in loans.into_values() {
            back += refill::give_back(&self.inner.limiter, &self.inner.calls, &out).await?;
        }
        Ok(back)
    }

    /// How often the store has been called so far.
    pub fn store_calls(&self) -> u64 {
        self.inner.calls.load(Ordering::Relaxed)
    }

    fn known(&self, key: &str) -> Option<Arc<TokenCache>> {
        let purses = self.inner.purses.read();
        let purses = purses.unwrap_or_else(PoisonError::into_inner);
        purses.get(key).cloned()
    }

    fn purse(&self, key: &str) -> Result<Arc<TokenCache>> {
        let name = self.inner.limiter.name_of("check", key)?;
        let mut purses = self
            .inner
            .purses
            .write()
            .unwrap_or_else(PoisonError::into_inner);
        if purses.len() >= refill::SWEEP_AT && purses.len().is_power_of_two() {
            let now = self.inner.limiter.clock().now();
            purses.retain(|_, purse| Arc::strong_count(purse) > 1 || purse.is_in_use(now));
        }
        let fresh = || Arc::new(TokenCache::new(name));
        Ok(Arc::clone(purses.entry(key.into()).or_insert_with(fresh)))
    }

    async fn take(&self, purse: &Arc<TokenCache>, key: &str, units: u64) -> Result<Decision> {
        let limiter = &self.inner.limiter;
        let now = limiter.clock().now();
        match purse.take(units, now) {
            Here::Taken(left) => Ok(self.decision(purse, now, true, left, None)),
            Here::Closed(until) if units <= limiter_limit(limiter.rules()?) => {
                Ok(self.decision(purse, now, false, 0, Some(until)))
            }
            _ => self.take_there(purse, key, units).await,
        }
    }

    #[cold]
    async fn take_there(&self, purse: &Arc<TokenCache>, key: &str, units: u64) -> Result<Decision> {
        check_units(units)?;
        let limiter = &self.inner.limiter;
        let rules = limiter.rules()?;
        if units == 0 || !refill::can_lend(rules, units) {
            self.inner.calls.fetch_add(1, Ordering::Relaxed);
            return limiter.check_n(key, units).await;
        }
        refill::borrow(self, purse, units).await
    }

    fn decision(
        &self,
        purse: &TokenCache,
        now: Moment,
        allowed: bool,
        left: u64,
        closed_until: Option<Moment>,
    ) -> Decision {
        let micros = |until: Moment| until.since(now).as_nanos().div_ceil(1_000) as u64;
        let rules = self.inner.limiter.rules();
        let seen = LimitStatus {
            limit: rules.map_or(0, |rules| limiter_limit(rules)),
            remaining: left,
            retry_after: Some(closed_until.map_or(0, micros)),
            reset_after: Some(micros(purse.reset_at())),
        };
        Decision::new(allowed, seen, Basis::Leased)
    }
}

impl LeasedKey {
    /// Takes one unit, mostly without asking the store.
    pub async fn check(&self) -> Result<Decision> {
        self.check_n(1).await
    }

    /// Takes so many units, all or nothing.
    pub async fn check_n(&self, units: u64) -> Result<Decision> {
        self.leased.take(&self.purse, self.key(), units).await
    }

    /// Takes one unit if it is here: nobody waits, and the store is not asked. `None` if only the
    /// store could tell.
    pub fn check_now(&self) -> Option<Decision> {
        let now = self.leased.inner.limiter.clock().now();
        match self.purse.take(1, now) {
            Here::Taken(left) => Some(self.leased.decision(&self.purse, now, true, left, None)),
            Here::Closed(until) => {
                let decision = self
                    .leased
                    .decision(&self.purse, now, false, 0, Some(until));
                Some(decision)
            }
            Here::AcquireRequest => None,
        }
    }

    fn key(&self) -> &str {
        self.leased.inner.limiter.key_of(&self.purse.name)
    }
}

/// The most that one call can ever have.
fn limiter_limit(rules: &[Rule]) -> u64 {
    rules.iter().map(Rule::limit).min().unwrap_or(0)
}

impl Inner {
    fn out(&self) -> MutexGuard<'_, BTreeMap<(Moment, u64), Out>> {
        self.out.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        let sweeper = self
            .sweeper
            .get_mut()
            .unwrap_or_else(PoisonError::into_inner);
        if let Some(sweeper) = sweeper.take() {
            sweeper.abort();
        }
        let loans = std::mem::take(&mut *self.out());
        // Without a runtime nothing can be sent; what was lent is charged, and comes in again.
        let Ok(runtime) = tokio::runtime::Handle::try_current() else {
            return;
        };
        let limiter = self.limiter.clone();
        runtime.spawn(async move {
            let calls = AtomicU64::new(0);
            for out in loans.into_values() {
                if let Err(error) = refill::give_back(&limiter, &calls, &out).await {
                    tracing::debug!(%error, "lent units could not be given back");
                }
            }
        });
    }
}

impl fmt::Debug for Leased {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Leased").field(&self.inner.limiter).finish()
    }
}

impl fmt::Debug for LeasedKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("LeasedKey").field(&self.purse.name).finish()
    }
}
