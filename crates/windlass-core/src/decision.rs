//! A limiter's answer.

use std::time::Duration;

use crate::rules::limit::{LimitStatus, Rule, standing};
use crate::store::limit::LimitOutcome;

/// A limiter's answer: allowed or denied, and how things stand.
///
/// A denial is an answer, not an error. It tells "not now" from "never".
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "a limiter limits nothing if nobody heeds its answer"]
pub struct Decision {
    // Few and plain, because it is handed on by copying: that is a good part of what a check in memory
    // costs.
    allowed: bool,
    basis: Basis,
    limit: u64,
    remaining: u64,
    /// Microseconds, or `NEVER`.
    retry_after: u64,
    /// Microseconds, or `NEVER`.
    reset_after: u64,
}

const NEVER: u64 = u64::MAX;

fn known(micros: u64) -> Option<Duration> {
    (micros != NEVER).then(|| Duration::from_micros(micros))
}

/// Who decided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Basis {
    /// The store, for all who share it.
    Store,
    /// This process, from what the store has lent it.
    Leased,
    /// This process alone, because the store could not be asked.
    Local,
    /// Nobody: the store could not be asked, and this is what was to be assumed then.
    Assumed,
}

impl Decision {
    /// What was decided, and how things stand afterwards. Whoever was allowed need not try again.
    #[inline(always)]
    pub fn new(allowed: bool, seen: LimitStatus, basis: Basis) -> Decision {
        let again = seen.retry_after.unwrap_or(NEVER);
        Decision {
            allowed,
            basis,
            limit: seen.limit,
            remaining: seen.remaining,
            retry_after: if allowed { 0 } else { again },
            reset_after: seen.reset_after.unwrap_or(NEVER),
        }
    }

    pub fn of(rules: &[Rule], verdict: &LimitOutcome, cost: u64, basis: Basis) -> Decision {
        let allowed = verdict.granted.is_some();
        let seen = standing(rules, &verdict.states, verdict.now, cost);
        Decision::new(allowed, seen, basis)
    }

    pub fn assumed(rules: &[Rule], allowed: bool, retry_after: Duration) -> Decision {
        let limit = rules.iter().map(Rule::limit).min().unwrap_or(0);
        let micros = u64::try_from(retry_after.as_micros()).unwrap_or(u64::MAX);
        let seen = LimitStatus {
            limit,
            remaining: if allowed { limit } else { 0 },
            retry_after: Some(micros),
            reset_after: Some(0),
        };
        Decision::new(allowed, seen, Basis::Assumed)
    }

    /// What somebody who only looked would have been told.
    pub fn peeked(mut self) -> Decision {
        self.allowed = self.retry_after == 0;
        self
    }

    /// Whether the call may go ahead.
    pub fn is_allowed(&self) -> bool {
        self.allowed
    }

    /// The most that one call can ever have: the burst, or what a window holds. Of several quotas,
    /// that of the one with the least left.
    pub fn limit(&self) -> u64 {
        self.limit
    }

    /// Units that could be had now. Of several quotas, the least.
    pub fn remaining(&self) -> u64 {
        self.remaining
    }

    /// How long to wait until the same call would be allowed, if nobody else calls in the meantime:
    /// exact, to the microsecond of the store's clock. Zero if it was allowed; `None` if it
    /// [never](Decision::is_never) will be.
    pub fn retry_after(&self) -> Option<Duration> {
        known(self.retry_after)
    }

    /// Whether waiting is no use: more was asked for than there can ever be.
    pub fn is_never(&self) -> bool {
        !self.allowed && self.retry_after == NEVER
    }

    /// How long until the limiter is as if it had never been used; `None` for never.
    pub fn reset_after(&self) -> Option<Duration> {
        known(self.reset_after)
    }

    /// Who decided.
    pub fn basis(&self) -> Basis {
        self.basis
    }
}
