//! Returning unused tokens before their leases end.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, Weak};

use super::token_cache::TokenCache;
use super::{LeasedLimiter, LeasedLimiterInner};
use crate::lease::{Clock, Moment};
use crate::limit::Limiter;
use crate::limit::store_call::StoreReply;
use windlass_core::decision::Basis;
use windlass_core::error::Result;
use windlass_core::rules::limit::LimitOp;

/// A lease whose unused tokens can still be returned.
pub(super) struct UnusedTokens {
    cache: Arc<TokenCache>,
    number: u64,
}

/// Schedules the return of what will be left of a lease.
pub(super) fn schedule_return(
    leased: &LeasedLimiter,
    cache: &Arc<TokenCache>,
    number: u64,
    sent: Moment,
    valid_until: Moment,
) {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    // Late enough that most tokens are used, early enough that the store still accepts the rest.
    let at = sent + valid_until.since(sent) * 7 / 8;
    let key = (at, NEXT.fetch_add(1, Ordering::Relaxed));
    let unused = UnusedTokens {
        cache: Arc::clone(cache),
        number,
    };
    let inner = &leased.inner;
    inner.unused().insert(key, unused);
    let mut task = inner
        .return_loop
        .lock()
        .unwrap_or_else(PoisonError::into_inner);
    if task
        .as_ref()
        .is_none_or(tokio::task::AbortHandle::is_finished)
    {
        let return_loop = return_loop(
            Arc::downgrade(inner),
            inner.limiter.clock().clone(),
            Arc::clone(&inner.lease_added),
        );
        *task = Some(tokio::spawn(return_loop).abort_handle());
    } else {
        inner.lease_added.notify_one();
    }
}

async fn return_loop(
    inner: Weak<LeasedLimiterInner>,
    clock: Clock,
    lease_added: Arc<tokio::sync::Notify>,
) {
    loop {
        let first = match inner.upgrade() {
            None => return,
            Some(inner) => inner.unused().first_key_value().map(|(key, _)| *key),
        };
        let Some(first) = first else {
            lease_added.notified().await;
            continue;
        };
        tokio::select! {
            () = clock.sleep_until(first.0) => {}
            () = lease_added.notified() => continue,
        }
        let Some(inner) = inner.upgrade() else {
            return;
        };
        let unused = inner.unused().remove(&first);
        if let Some(unused) = unused
            && let Err(error) = unused.give_back(&inner.limiter, &inner.store_calls).await
        {
            tracing::debug!(%error, "unused tokens could not be returned");
        }
    }
}

impl UnusedTokens {
    /// Removes the tokens from the cache, and returns them to the store. Returns how many units the store accepted.
    pub(super) async fn give_back(
        &self,
        limiter: &Limiter,
        store_calls: &AtomicU64,
    ) -> Result<u64> {
        let (units, lease) = {
            let mut refills = self.cache.refills();
            let lease = match &refills.current {
                Some(lease) if lease.number == self.number => {
                    let left = self.cache.empty();
                    refills.current.take().map(|lease| (left, lease))
                }
                _ => {
                    let mut queued = refills.queued.iter();
                    let at = queued.position(|lease| lease.number == self.number);
                    let lease = at.and_then(|at| refills.queued.remove(at));
                    lease.map(|lease| (lease.units, lease))
                }
            };
            match lease {
                Some((left, lease)) if left > 0 => (left, lease),
                _ => return Ok(0),
            }
        };
        store_calls.fetch_add(1, Ordering::Relaxed);
        let op = LimitOp::ReturnLeased(units, lease.leased_at, lease.life, lease.mark);
        let (name, sent) = (self.cache.name.clone(), limiter.clock().now());
        match limiter.decide_named("give back", name, op).await? {
            StoreReply::Decided(outcome, basis) => {
                if basis == Basis::Store {
                    let rules = limiter.rules()?;
                    self.cache.refills().update_forecast(rules, &outcome, sent);
                }
                Ok(outcome.granted.map_or(0, |_| units))
            }
            StoreReply::Assumed { .. } => Ok(0),
        }
    }
}
