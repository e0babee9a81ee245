//! Borrowing units, and giving them back in time.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, Weak};
use std::time::Duration;

use tokio::sync::OwnedMutexGuard;

use super::token_cache::{Here, Last, TokenCache};
use super::{Inner, Leased, LeasedUnits, Out, SHORTEST_LOAN};
use crate::lease::{Clock, Moment};
use crate::limit::Limiter;
use crate::limit::store_call::Answer;
use windlass_core::decision::{Basis, Decision};
use windlass_core::error::{Error, ErrorKind, Result};
use windlass_core::rules::limit::{LimitOp, Rule};
use windlass_core::store::limit::LimitOutcome;

/// For how long a loan should last: ten calls of the store a second.
const HORIZON: Duration = Duration::from_millis(100);
/// How much larger a loan may be than the last one: a short rush is not a trend.
const GROWTH: u64 = 8;
/// How often a smaller amount is tried, half as large each time.
const TRIES: usize = 8;
/// From so many keys on, those that nobody uses are forgotten.
pub(super) const SWEEP_AT: usize = 1024;

impl TokenCache {
    pub(super) fn is_in_use(&self, now: Moment) -> bool {
        !matches!(self.take_again(0, now), Here::AcquireRequest)
    }
}

/// Whether so many units can be lent at all, for long enough to be of use.
pub(super) fn can_lend(rules: &[Rule], units: u64) -> bool {
    rules.iter().all(|rule| {
        let for_long = match rule {
            Rule::Bucket(b) => Duration::from_micros(b.lend_time()) >= SHORTEST_LOAN,
            Rule::Fixed { period, .. } | Rule::Sliding { period, .. } => {
                Duration::from_micros(*period) >= SHORTEST_LOAN
            }
            Rule::Allowance { .. } => true,
        };
        for_long && units <= rule.most_lent()
    })
}

/// Asks the store for units, and takes some of them. All who wait for the same purse wait for the same
/// call: if it brings enough they are served from it, and if it fails they have all been told.
pub(super) async fn borrow(
    leased: &Leased,
    purse: &Arc<TokenCache>,
    units: u64,
) -> Result<Decision> {
    let failures = purse.failures();
    let last = Arc::clone(&purse.refill).lock_owned().await;
    // Somebody else may have asked in the meantime.
    let now = leased.inner.limiter.clock().now();
    match purse.take_again(units, now) {
        Here::Taken(left) => return Ok(leased.decision(purse, now, true, left, None)),
        Here::Closed(until) => return Ok(leased.decision(purse, now, false, 0, Some(until))),
        Here::AcquireRequest => {}
    }
    if let Some(failure) = &last.failure
        && purse.failures() != failures
    {
        return Err(failure.again());
    }
    // In a task of its own: whoever gives up waiting must not keep the others from an answer, nor leave a
    // loan to nobody.
    let call = ask(leased.clone(), Arc::clone(purse), last, units);
    match tokio::spawn(call).await {
        Ok(decision) => decision,
        Err(e) => match e.try_into_panic() {
            Ok(panic) => std::panic::resume_unwind(panic),
            Err(_) => Err(Error::new(
                ErrorKind::OutcomeUnknown,
                "check",
                "the runtime was shut down; it may have happened",
            )
            .with_name(purse.name.as_str())),
        },
    }
}

async fn ask(
    leased: Leased,
    purse: Arc<TokenCache>,
    mut last: OwnedMutexGuard<Last>,
    units: u64,
) -> Result<Decision> {
    let decision = refill(&leased, &purse, &mut last, units).await;
    last.failure = decision.as_ref().err().map(Error::again);
    if last.failure.is_some() {
        purse.has_failed();
    }
    decision
}

async fn refill(
    leased: &Leased,
    purse: &Arc<TokenCache>,
    last: &mut Last,
    units: u64,
) -> Result<Decision> {
    let limiter = &leased.inner.limiter;
    let clock = limiter.clock();
    let now = clock.now();
    let rules = limiter.rules()?;
    return_leftovers(leased, purse, now);
    let wanted = size(
        rules,
        units,
        purse.demand(),
        last.at.map(|at| now.since(at)),
        last.units,
    );
    let sent = clock.now();
    leased.inner.calls.fetch_add(1, Ordering::Relaxed);
    let name = purse.name.clone();
    let answer = limiter.ask("check", name, LimitOp::Lend(amounts(wanted, units)));
    let (verdict, basis) = match answer.await? {
        Answer::Decided(verdict, basis) => (verdict, basis),
        assumed => return Ok(assumed.decision(rules, units)),
    };
    last.at = Some(sent);
    last.units = verdict.granted.unwrap_or(units);
    let received = clock.now();
    let after = |micros: u64| received + Duration::from_micros(micros);
    let seen = windlass_core::rules::limit::standing(rules, &verdict.states, verdict.now, units);
    purse.resets_at(after(seen.reset_after.unwrap_or(0)));
    // Not again before a whole loan is there: or else each call would bring less than the last one.
    let wait = lend_after(rules, &verdict, wanted);
    purse.close_until(match wait {
        Some(0) | None => Moment::from_nanos(0),
        Some(wait) => after(wait),
    });
    let Some(granted) = verdict.granted else {
        let until = after(wait.unwrap_or(0));
        return Ok(leased.decision(purse, received, false, 0, Some(until)));
    };
    let good_until = sent + good_for(rules, &verdict);
    if received >= good_until {
        // It took so long that nothing of it may be used any more.
        leased.inner.calls.fetch_add(1, Ordering::Relaxed);
        return limiter.check_n(limiter.key_of(&purse.name), units).await;
    }
    let left = granted - units;
    purse.fill(left, good_until);
    // What this process decides alone when there is no store, no store can take back.
    if basis == Basis::Store {
        let (lent_at, mark) = (verdict.now, verdict.states.mark());
        remember(leased, purse, good_until, sent, (lent_at, mark));
    }
    Ok(leased.decision(purse, received, true, left, None))
}

/// How much to ask for: what was asked for lately, for a while; no more than comes in in that time.
fn size(rules: &[Rule], units: u64, asked: u64, since: Option<Duration>, last: u64) -> u64 {
    let horizon = rules
        .iter()
        .map(|rule| match rule {
            Rule::Bucket(b) => Duration::from_micros(b.lend_time() / 2),
            _ => HORIZON,
        })
        .fold(HORIZON, Duration::min);
    let comes_in = |rule: &Rule| match rule {
        Rule::Bucket(b) => {
            let time = windlass_core::rules::limit::Span::whole(horizon.as_micros() as u64);
            b.units_in(time)
        }
        Rule::Allowance { burst } => burst / 16,
        Rule::Fixed { limit, period } | Rule::Sliding { limit, period } => {
            let part = horizon.as_micros().min(u128::from(*period));
            (u128::from(*limit) * part / u128::from(*period)) as u64
        }
    };
    let most = rules.iter().map(comes_in).min().unwrap_or(0);
    let demand = match since {
        None => units,
        Some(since) => {
            let nanos = since.as_nanos().max(1);
            u64::try_from(u128::from(asked) * horizon.as_nanos() / nanos).unwrap_or(u64::MAX)
        }
    };
    let wanted = demand.min(last.saturating_mul(GROWTH)).min(most).max(units);
    let lendable = rules.iter().map(Rule::most_lent).min().unwrap_or(0);
    // A whole number of such calls, so that nothing is left over at the end.
    (wanted.min(lendable) / units).max(1) * units
}

/// The amounts to try, the largest first.
fn amounts(wanted: u64, units: u64) -> Vec<u64> {
    let mut amounts: Vec<u64> = (0..TRIES)
        .map(|i| ((wanted >> i) / units).max(1) * units)
        .collect();
    amounts.push(units);
    amounts.dedup();
    amounts
}

fn lend_after(rules: &[Rule], verdict: &LimitOutcome, units: u64) -> Option<u64> {
    let each = |(i, rule): (usize, &Rule)| {
        let units = units.min(rule.most_lent());
        rule.lend_after(verdict.states.get(i)?, verdict.now, units)
    };
    // Never is not a time to wait for: the store will say so.
    rules.iter().enumerate().filter_map(each).max()
}

/// How long the units may be used, from before they were asked for. A clock may go a little faster
/// than the store's.
fn good_for(rules: &[Rule], verdict: &LimitOutcome) -> Duration {
    let each = |(i, rule): (usize, &Rule)| match verdict.states.get(i) {
        Some(state) => rule.good_for(state, verdict.now),
        None => 0,
    };
    let micros = rules.iter().enumerate().map(each).min().unwrap_or(0);
    Duration::from_micros(micros - micros / 100)
}

/// Gives back what was left of the last loan because it was too little for a call.
fn return_leftovers(leased: &Leased, purse: &Arc<TokenCache>, now: Moment) {
    let in_time = purse.is_good(now);
    let left = purse.empty();
    let mut out = leased.inner.out();
    let known = out
        .iter()
        .find(|(_, out)| Arc::ptr_eq(&out.purse, purse))
        .map(|(key, _)| *key);
    let Some(known) = known.and_then(|key| out.remove(&key)) else {
        return;
    };
    drop(out);
    if left == 0 || !in_time {
        return;
    }
    let (limiter, purse) = (leased.inner.limiter.clone(), Arc::clone(purse));
    leased.inner.calls.fetch_add(1, Ordering::Relaxed);
    tokio::spawn(async move {
        let _ = send_back(&limiter, &purse, left, known.lent).await;
    });
}

/// Notes when to give back what will be left.
fn remember(
    leased: &Leased,
    purse: &Arc<TokenCache>,
    good_until: Moment,
    sent: Moment,
    lent: LeasedUnits,
) {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    // Late enough that it is mostly used up, early enough that the store still takes it.
    let at = sent + good_until.since(sent) * 3 / 4;
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    let purse = Arc::clone(purse);
    let inner = &leased.inner;
    inner.out().insert((at, number), Out { purse, lent });
    let mut sweeper = inner.sweeper.lock().unwrap_or_else(PoisonError::into_inner);
    if sweeper
        .as_ref()
        .is_none_or(tokio::task::AbortHandle::is_finished)
    {
        let task = sweep(
            Arc::downgrade(inner),
            inner.limiter.clock().clone(),
            Arc::clone(&inner.sooner),
        );
        *sweeper = Some(tokio::spawn(task).abort_handle());
    } else {
        inner.sooner.notify_one();
    }
}

/// Gives back what is left of loans before their time is over.
async fn sweep(inner: Weak<Inner>, clock: Clock, sooner: Arc<tokio::sync::Notify>) {
    loop {
        let first = match inner.upgrade() {
            None => return,
            Some(inner) => inner.out().first_key_value().map(|(key, _)| *key),
        };
        let Some(first) = first else {
            sooner.notified().await;
            continue;
        };
        tokio::select! {
            () = clock.sleep_until(first.0) => {}
            () = sooner.notified() => continue,
        }
        let Some(inner) = inner.upgrade() else {
            return;
        };
        let out = inner.out().remove(&first);
        if let Some(out) = out
            && let Err(error) = give_back(&inner.limiter, &inner.calls, &out).await
        {
            tracing::debug!(%error, "lent units could not be given back");
        }
    }
}

/// Empties a purse into the store. Says how many units went back.
pub(super) async fn give_back(limiter: &Limiter, calls: &AtomicU64, out: &Out) -> Result<u64> {
    let left = out.purse.empty();
    if left == 0 {
        return Ok(0);
    }
    calls.fetch_add(1, Ordering::Relaxed);
    send_back(limiter, &out.purse, left, out.lent).await
}

async fn send_back(
    limiter: &Limiter,
    purse: &TokenCache,
    units: u64,
    lent: LeasedUnits,
) -> Result<u64> {
    let want = LimitOp::Return(units, lent.0, lent.1);
    match limiter.ask("give back", purse.name.clone(), want).await? {
        Answer::Decided(verdict, _) if verdict.granted.is_some() => Ok(units),
        _ => Ok(0),
    }
}
