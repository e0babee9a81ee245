//! [`Reservation`]: units taken in advance.

use std::time::Duration;

use super::limiter::{Limiter, check_units};
use super::store_call::StoreReply;
use crate::lease::Moment;
use windlass_core::decision::{Basis, Decision};
use windlass_core::error::{Error, Result};
use windlass_core::name::Name;
use windlass_core::rules::limit::{LimitOp, MAX_PERIOD_MICROS, Rule, RuleState, RuleStates};

/// The outcome of [`Limiter::reserve`].
///
/// Exhaustive on purpose: these are the only two outcomes.
#[derive(Debug)]
#[must_use = "a denied caller must not act"]
pub enum Reserve {
    /// Act after the delay, or cancel.
    Granted(Reservation),
    /// The delay would be longer than the caller's limit, or endless.
    Denied(Decision),
}

impl Reserve {
    /// The reservation, if it was granted.
    pub fn granted(self) -> Option<Reservation> {
        match self {
            Reserve::Granted(reservation) => Some(reservation),
            Reserve::Denied(_) => None,
        }
    }
}

/// Units that were taken now, to be used after a delay.
///
/// Dropping it returns nothing: the caller is expected to act. [`cancel`](Reservation::cancel) returns the units.
#[derive(Debug)]
#[must_use = "units were taken: act after the delay, or cancel"]
pub struct Reservation {
    limiter: Limiter,
    name: Name,
    units: u64,
    ready: Moment,
    decision: Decision,
    /// The state after the charge, if the store made one. Boxed, to keep [`Reserve`] small.
    after: Option<Box<RuleStates>>,
}

impl Limiter {
    /// Takes `units` units for `key` now, to be used as soon as they are refilled, if that is within
    /// `max_wait`.
    ///
    /// Only for token buckets: a window or a log has nothing to take in advance.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the units may or may not have been taken.
    pub async fn reserve(&self, key: &str, units: u64, max_wait: Duration) -> Result<Reserve> {
        reserve(self, "reserve", key, units, max_wait).await
    }
}

/// Whether units can be taken before they are available.
pub(super) fn reservable(rule: &Rule) -> bool {
    match rule {
        Rule::Bucket(_) | Rule::Allowance { .. } => true,
        Rule::Fixed { .. } | Rule::Sliding { .. } | Rule::Log { .. } => false,
    }
}

pub(super) async fn reserve(
    limiter: &Limiter,
    operation: &'static str,
    key: &str,
    units: u64,
    max_wait: Duration,
) -> Result<Reserve> {
    let reserved = reserve_unrecorded(limiter, operation, key, units, max_wait).await;
    match &reserved {
        Ok(Reserve::Granted(reservation)) => limiter.metrics.decided(&reservation.decision),
        Ok(Reserve::Denied(decision)) => limiter.metrics.decided(decision),
        Err(_) => limiter.metrics.failed(),
    }
    reserved
}

pub(super) async fn reserve_unrecorded(
    limiter: &Limiter,
    operation: &'static str,
    key: &str,
    units: u64,
    max_wait: Duration,
) -> Result<Reserve> {
    check_units(units)?;
    let rules = limiter.rules()?;
    if let Some(rule) = rules.iter().find(|rule| !reservable(rule)) {
        let message = format!("units of a {} cannot be reserved", rule.algorithm());
        return Err(Error::invalid(operation, message)
            .with_name(key)
            .with_hint("use a token bucket, or acquire, which waits"));
    }
    let name = limiter.name_of(operation, key)?;
    let max_wait = u64::try_from(max_wait.as_micros()).unwrap_or(u64::MAX);
    let op = LimitOp::Reserve(units, max_wait.min(MAX_PERIOD_MICROS));
    let reply = limiter.decide_named(operation, name.clone(), op).await?;
    let decision = limiter.decision(&reply, units)?;
    if !decision.is_allowed() {
        return Ok(Reserve::Denied(decision));
    }
    let (delay, after) = match reply {
        StoreReply::Decided(outcome, basis) => {
            let delay = delay_micros(rules, &outcome.states, outcome.now);
            (delay, (basis == Basis::Store).then_some(outcome.states))
        }
        StoreReply::Assumed { .. } => (0, None),
    };
    Ok(Reserve::Granted(Reservation {
        limiter: limiter.clone(),
        name,
        units,
        ready: limiter.clock().now() + Duration::from_micros(delay),
        decision,
        after: after.map(Box::new),
    }))
}

/// How long after a reservation its units may be used, in microseconds.
fn delay_micros(rules: &[Rule], after: &RuleStates, now: u64) -> u64 {
    let each = |(i, rule): (usize, &Rule)| match (rule, after.get(i)) {
        (Rule::Bucket(b), Some(&RuleState::Bucket { tat, .. })) => {
            tat.minus(b.full, b.amount).ceil().saturating_sub(now)
        }
        _ => 0,
    };
    rules.iter().enumerate().map(each).max().unwrap_or(0)
}

impl Reservation {
    /// How long to wait from now; zero once the units may be used.
    pub fn delay(&self) -> Duration {
        self.ready.since(self.limiter.clock().now())
    }

    /// The decision behind the reservation.
    pub fn decision(&self) -> Decision {
        self.decision
    }

    /// Waits until the units may be used.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future loses nothing.
    pub async fn ready(&self) {
        self.limiter.clock().sleep_until(self.ready).await;
    }

    /// Returns the units, as far as later reservations do not depend on them, unless they may be used
    /// already. Returns whether any were returned.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the units may or may not have been returned.
    pub async fn cancel(self) -> Result<bool> {
        let Some(after) = self.after else {
            return Ok(false);
        };
        let op = LimitOp::Cancel(self.units, *after);
        let reply = self.limiter.decide_named("cancel", self.name, op).await?;
        Ok(match reply {
            StoreReply::Decided(outcome, _) => outcome.granted.is_some(),
            StoreReply::Assumed { .. } => false,
        })
    }
}
