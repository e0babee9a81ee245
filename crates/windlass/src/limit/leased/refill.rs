//! Refilling a token cache from the store, and returning unused tokens in time.
//!
//! One refill per key at a time. Callers that wait for the same key share its outcome: if it brings enough tokens they
//! are served from the cache, and if it fails they all get the failure.
//!
//! A refill leases what the key needs for [`LEASE_TIME`] at the current demand, at most [`GROWTH`] times the
//! last refill and at most what the quota refills in that time. Tokens are used only until the lease
//! ends, counted from before the request was sent. At three quarters of the lease, what is left is returned.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, Weak};
use std::time::Duration;

use tokio::sync::OwnedMutexGuard;

use super::token_cache::{CacheTake, LastRefill, TokenCache};
use super::{Inner, LeasedLimiter, TokenLease};
use crate::lease::{Clock, Moment};
use crate::limit::Limiter;
use crate::limit::store_call::StoreReply;
use windlass_core::decision::{Basis, Decision};
use windlass_core::error::{Error, ErrorKind, Result};
use windlass_core::rules::limit::{LimitOp, Rule, Span, status};
use windlass_core::store::limit::LimitOutcome;

/// How long a refill should last: ten store calls per second.
const LEASE_TIME: Duration = Duration::from_millis(100);
/// A shorter lease would be over when it arrives: the store decides each call instead.
const SHORTEST_LEASE: Duration = Duration::from_millis(10);
/// How many times larger a refill may be than the previous one: a short burst is not a trend.
const GROWTH: u64 = 8;
/// How many smaller amounts a refill offers the store, each half of the one before.
const HALVINGS: usize = 8;

/// Whether `units` units can be leased, for long enough to be useful.
pub(super) fn can_lease(rules: &[Rule], units: u64) -> bool {
    rules.iter().all(|rule| {
        let long_enough = match rule {
            Rule::Bucket(b) => Duration::from_micros(b.lease_time()) >= SHORTEST_LEASE,
            Rule::Fixed { period, .. } | Rule::Sliding { period, .. } => {
                Duration::from_micros(*period) >= SHORTEST_LEASE
            }
            Rule::Allowance { .. } => true,
        };
        long_enough && units <= rule.max_leased()
    })
}

/// Refills the cache, unless another caller has, and takes `units` of it.
pub(super) async fn refill_and_take(
    limiter: &LeasedLimiter,
    cache: &Arc<TokenCache>,
    units: u64,
) -> Result<Decision> {
    let failures = cache.failures();
    let last = Arc::clone(&cache.last_refill).lock_owned().await;
    // Another caller may have refilled it in the meantime.
    let now = limiter.inner.limiter.clock().now();
    match cache.take_again(units, now) {
        CacheTake::Taken(left) => return Ok(limiter.decision(cache, now, true, left, None)),
        CacheTake::Denied(until) => {
            return Ok(limiter.decision(cache, now, false, 0, Some(until)));
        }
        CacheTake::Miss => {}
    }
    if let Some(failure) = &last.failure
        && cache.failures() != failures
    {
        return Err(failure.duplicate());
    }
    // In a task of its own: a cancelled caller must not take the outcome from the others, nor leave tokens that
    // no cache holds.
    let call = refill_and_note_failure(limiter.clone(), Arc::clone(cache), last, units);
    match tokio::spawn(call).await {
        Ok(decision) => decision,
        Err(e) => match e.try_into_panic() {
            Ok(panic) => std::panic::resume_unwind(panic),
            Err(_) => Err(Error::new(
                ErrorKind::OutcomeUnknown,
                "check",
                "the runtime was shut down; it may have happened",
            )
            .with_name(cache.name.as_str())),
        },
    }
}

async fn refill_and_note_failure(
    limiter: LeasedLimiter,
    cache: Arc<TokenCache>,
    mut last: OwnedMutexGuard<LastRefill>,
    units: u64,
) -> Result<Decision> {
    let decision = refill(&limiter, &cache, &mut last, units).await;
    last.failure = decision.as_ref().err().map(Error::duplicate);
    if last.failure.is_some() {
        cache.count_failure();
    }
    decision
}

async fn refill(
    leased: &LeasedLimiter,
    cache: &Arc<TokenCache>,
    last: &mut LastRefill,
    units: u64,
) -> Result<Decision> {
    let limiter = &leased.inner.limiter;
    let clock = limiter.clock();
    let now = clock.now();
    let rules = limiter.rules()?;
    return_remainder(leased, cache, now);
    let wanted = refill_size(
        rules,
        units,
        cache.take_demand(),
        last.at.map(|at| now.since(at)),
        last.units,
    );
    let sent = clock.now();
    leased.inner.store_calls.fetch_add(1, Ordering::Relaxed);
    let op = LimitOp::Lease(amounts(wanted, units));
    let reply = limiter.decide_named("check", cache.name.clone(), op);
    let (outcome, basis) = match reply.await? {
        StoreReply::Decided(outcome, basis) => (outcome, basis),
        assumed => return Ok(assumed.decision(rules, units)),
    };
    last.at = Some(sent);
    last.units = outcome.granted.unwrap_or(units);
    let received = clock.now();
    let after = |micros: u64| received + Duration::from_micros(micros);
    let status = status(rules, &outcome.states, outcome.now, units);
    cache.set_reset_at(after(status.reset_after.unwrap_or(0)));
    // No further refill before a whole one is available: otherwise each would bring less than the one before.
    let wait = lease_after(rules, &outcome, wanted);
    cache.deny_until(match wait {
        Some(0) | None => Moment::from_nanos(0),
        Some(wait) => after(wait),
    });
    let Some(granted) = outcome.granted else {
        let until = after(wait.unwrap_or(0));
        return Ok(leased.decision(cache, received, false, 0, Some(until)));
    };
    let valid_until = sent + valid_for(rules, &outcome);
    if received >= valid_until {
        // The reply came after the lease ended: none of its tokens may be used.
        leased.inner.store_calls.fetch_add(1, Ordering::Relaxed);
        return limiter.check_n(limiter.key_of(&cache.name), units).await;
    }
    let left = granted - units;
    cache.fill(left, valid_until);
    // Tokens of the local fallback are not returned: the store did not charge them.
    if basis == Basis::Store {
        let lease = TokenLease {
            cache: Arc::clone(cache),
            leased_at: outcome.now,
            mark: outcome.states.mark(),
        };
        schedule_return(leased, lease, sent, valid_until);
    }
    Ok(leased.decision(cache, received, true, left, None))
}

/// How many units to lease: the recent demand for the length of a lease, at most what is refilled in that time.
fn refill_size(rules: &[Rule], units: u64, taken: u64, since: Option<Duration>, last: u64) -> u64 {
    let lease_time = rules
        .iter()
        .map(|rule| match rule {
            Rule::Bucket(b) => Duration::from_micros(b.lease_time() / 2),
            _ => LEASE_TIME,
        })
        .fold(LEASE_TIME, Duration::min);
    let refilled = |rule: &Rule| match rule {
        Rule::Bucket(b) => b.units_in(Span::whole(lease_time.as_micros() as u64)),
        Rule::Allowance { burst } => burst / 16,
        Rule::Fixed { limit, period } | Rule::Sliding { limit, period } => {
            let part = lease_time.as_micros().min(u128::from(*period));
            (u128::from(*limit) * part / u128::from(*period)) as u64
        }
    };
    let most = rules.iter().map(refilled).min().unwrap_or(0);
    let demand = match since {
        None => units,
        Some(since) => {
            let nanos = since.as_nanos().max(1);
            u64::try_from(u128::from(taken) * lease_time.as_nanos() / nanos).unwrap_or(u64::MAX)
        }
    };
    let wanted = demand.min(last.saturating_mul(GROWTH)).min(most).max(units);
    let leasable = rules.iter().map(Rule::max_leased).min().unwrap_or(0);
    // A multiple of the call's units, so that calls of this size leave no remainder.
    (wanted.min(leasable) / units).max(1) * units
}

/// The amounts that the store may grant, the largest first.
fn amounts(wanted: u64, units: u64) -> Vec<u64> {
    let mut amounts: Vec<u64> = (0..HALVINGS)
        .map(|i| ((wanted >> i) / units).max(1) * units)
        .collect();
    amounts.push(units);
    amounts.dedup();
    amounts
}

/// When `units` units can be leased, in microseconds from now; `None` if never, which the store will say.
fn lease_after(rules: &[Rule], outcome: &LimitOutcome, units: u64) -> Option<u64> {
    let each = |(i, rule): (usize, &Rule)| {
        let units = units.min(rule.max_leased());
        rule.lease_available_after(outcome.states.get(i)?, outcome.now, units)
    };
    rules.iter().enumerate().filter_map(each).max()
}

/// How long the tokens may be used, from before the request was sent; shortened by 1 %, because this clock may run
/// slower than the store's.
fn valid_for(rules: &[Rule], outcome: &LimitOutcome) -> Duration {
    let each = |(i, rule): (usize, &Rule)| match outcome.states.get(i) {
        Some(state) => rule.lease_validity(state, outcome.now),
        None => 0,
    };
    let micros = rules.iter().enumerate().map(each).min().unwrap_or(0);
    Duration::from_micros(micros - micros / 100)
}

/// Returns what is left of the last lease because it is too little for a call.
fn return_remainder(leased: &LeasedLimiter, cache: &Arc<TokenCache>, now: Moment) {
    let in_time = cache.is_valid(now);
    let left = cache.empty();
    let mut leases = leased.inner.leases();
    let key = leases
        .iter()
        .find(|(_, lease)| Arc::ptr_eq(&lease.cache, cache))
        .map(|(key, _)| *key);
    let Some(lease) = key.and_then(|key| leases.remove(&key)) else {
        return;
    };
    drop(leases);
    if left == 0 || !in_time {
        return;
    }
    let limiter = leased.inner.limiter.clone();
    leased.inner.store_calls.fetch_add(1, Ordering::Relaxed);
    tokio::spawn(async move {
        let _ = return_units(&limiter, &lease, left).await;
    });
}

/// Schedules the return of what will be left of a lease.
fn schedule_return(leased: &LeasedLimiter, lease: TokenLease, sent: Moment, valid_until: Moment) {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    // Late enough that most tokens are used, early enough that the store still accepts the rest.
    let at = sent + valid_until.since(sent) * 3 / 4;
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    let inner = &leased.inner;
    inner.leases().insert((at, number), lease);
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

/// Returns unused tokens before their leases end.
async fn return_loop(inner: Weak<Inner>, clock: Clock, lease_added: Arc<tokio::sync::Notify>) {
    loop {
        let first = match inner.upgrade() {
            None => return,
            Some(inner) => inner.leases().first_key_value().map(|(key, _)| *key),
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
        let lease = inner.leases().remove(&first);
        if let Some(lease) = lease
            && let Err(error) = return_unused(&inner.limiter, &inner.store_calls, &lease).await
        {
            tracing::debug!(%error, "unused tokens could not be returned");
        }
    }
}

/// Empties a cache and returns its tokens to the store. Returns how many units the store accepted.
pub(super) async fn return_unused(
    limiter: &Limiter,
    store_calls: &AtomicU64,
    lease: &TokenLease,
) -> Result<u64> {
    let left = lease.cache.empty();
    if left == 0 {
        return Ok(0);
    }
    store_calls.fetch_add(1, Ordering::Relaxed);
    return_units(limiter, lease, left).await
}

async fn return_units(limiter: &Limiter, lease: &TokenLease, units: u64) -> Result<u64> {
    let op = LimitOp::ReturnLeased(units, lease.leased_at, lease.mark);
    let name = lease.cache.name.clone();
    match limiter.decide_named("give back", name, op).await? {
        StoreReply::Decided(outcome, _) if outcome.granted.is_some() => Ok(units),
        _ => Ok(0),
    }
}
