//! Units for later.

use std::time::Duration;

use super::limiter::Limiter;
use crate::lease::Moment;
use windlass_core::decision::Decision;
use windlass_core::error::Result;
use windlass_core::name::Name;
use windlass_core::rules::limit::{LimitOp, Rule, RuleState, RuleStates};

/// What became of a wish to [reserve](Limiter::reserve).
#[derive(Debug)]
#[must_use = "whoever was denied must not act"]
pub enum Reserve {
    /// Act after the delay, or cancel.
    Granted(Reservation),
    /// It would take longer than the caller would wait, or for ever.
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
/// Dropping it gives nothing back: whoever reserved is expected to act.
/// [`cancel`](Reservation::cancel) does.
#[derive(Debug)]
#[must_use = "units were taken: act after the delay, or cancel"]
pub struct Reservation {
    limiter: Limiter,
    name: Name,
    units: u64,
    ready: Moment,
    decision: Decision,
    /// What the charge left, if the store made one; apart, since who was denied has none to carry.
    after: Option<Box<RuleStates>>,
}

impl Limiter {
    /// Takes so many units for `key` now, to be used later: as soon as they have come in, if that is
    /// within `max_wait`.
    ///
    /// This is for token buckets; a window has nothing to take in advance.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the units may or may not have been taken.
    pub async fn reserve(&self, key: &str, units: u64, max_wait: Duration) -> Result<Reserve> {
        super::acquire::reserve(self, "reserve", key, units, max_wait).await
    }
}

impl Reservation {
    pub(super) fn new(
        limiter: &Limiter,
        name: Name,
        units: u64,
        delay: Duration,
        decision: Decision,
        after: Option<RuleStates>,
    ) -> Reservation {
        Reservation {
            limiter: limiter.clone(),
            name,
            units,
            ready: limiter.clock().now() + delay,
            decision,
            after: after.map(Box::new),
        }
    }

    /// How long to wait from now. Zero once the time has come.
    pub fn delay(&self) -> Duration {
        self.ready.since(self.limiter.clock().now())
    }

    /// How things stand.
    pub fn decision(&self) -> Decision {
        self.decision
    }

    /// Waits until the units may be used. Cancel safe.
    pub async fn ready(&self) {
        self.limiter.clock().sleep_until(self.ready).await;
    }

    /// Gives the units back, as far as later reservations have not built on them, and unless the time
    /// to use them has come. Says whether any came back.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, they may or may not have been given back.
    pub async fn cancel(self) -> Result<bool> {
        let Some(after) = self.after else {
            return Ok(false);
        };
        let want = LimitOp::Cancel(self.units, *after);
        let answer = self.limiter.ask("cancel", self.name, want).await?;
        Ok(match answer {
            super::store_call::Answer::Decided(verdict, _) => verdict.granted.is_some(),
            super::store_call::Answer::Assumed { .. } => false,
        })
    }

    pub(super) fn allowed(&self) -> Decision {
        self.decision
    }
}

/// How long after a reservation its units may be used, in microseconds.
pub(super) fn delay(rules: &[Rule], after: &RuleStates, now: u64) -> u64 {
    let each = |(i, rule): (usize, &Rule)| match (rule, after.get(i)) {
        (Rule::Bucket(b), Some(RuleState::Bucket { tat, .. })) => {
            tat.minus(b.full, b.amount).ceil().saturating_sub(now)
        }
        _ => 0,
    };
    rules.iter().enumerate().map(each).max().unwrap_or(0)
}
