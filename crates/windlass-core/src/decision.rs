//! The decision of a rate limiter, as callers get it.

use std::time::Duration;

use crate::rules::limit::{LimitStatus, Rule, status};
use crate::store::limit::LimitOutcome;

/// The decision of a rate limiter: allowed or denied, and the status of the limiter afterwards.
///
/// A denial is an answer, not an error. It distinguishes "not now" from
/// [never](Decision::is_never).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "a denied call must not proceed"]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(
    feature = "serde",
    serde(from = "wire::DecisionFields", into = "wire::DecisionFields")
)]
pub struct Decision {
    // Small, because it is copied: that is a measurable part of the cost of a check in memory.
    allowed: bool,
    basis: Basis,
    quota: u16,
    limit: u64,
    remaining: u64,
    /// Microseconds, or `NEVER`.
    retry_after: u64,
    /// Microseconds, or `NEVER`.
    reset_after: u64,
}

const NEVER: u64 = u64::MAX;

fn duration(micros: u64) -> Option<Duration> {
    (micros != NEVER).then(|| Duration::from_micros(micros))
}

/// Where a decision comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "kebab-case"))]
pub enum Basis {
    /// The store, for all clients that share it.
    Store,
    /// This process, from units prefetched from the store.
    Leased,
    /// This process alone, because the store could not be reached.
    Local,
    /// The configured fallback, because the store could not be reached.
    Assumed,
}

impl Decision {
    /// A decision, with the status after it.
    #[inline(always)]
    pub fn new(allowed: bool, status: LimitStatus, basis: Basis) -> Decision {
        let retry_after = status.retry_after.unwrap_or(NEVER);
        Decision {
            allowed,
            basis,
            quota: status.quota,
            limit: status.limit,
            remaining: status.remaining,
            retry_after: if allowed { 0 } else { retry_after },
            reset_after: status.reset_after.unwrap_or(NEVER),
        }
    }

    /// The decision of a store on a call of this cost.
    pub fn of(rules: &[Rule], outcome: &LimitOutcome, cost: u64, basis: Basis) -> Decision {
        let allowed = outcome.granted.is_some();
        let status = status(rules, &outcome.states, outcome.now, cost);
        Decision::new(allowed, status, basis)
    }

    /// The fallback while the store cannot be reached.
    pub fn assumed(rules: &[Rule], allowed: bool, retry_after: Duration) -> Decision {
        let limit = rules.iter().map(Rule::limit).min().unwrap_or(0);
        let micros = u64::try_from(retry_after.as_micros()).unwrap_or(u64::MAX);
        let status = LimitStatus {
            limit,
            quota: 0,
            remaining: if allowed { limit } else { 0 },
            retry_after: Some(micros),
            reset_after: Some(0),
        };
        Decision::new(allowed, status, Basis::Assumed)
    }

    /// The same as the answer to a peek: allowed if the cost is available now.
    pub fn peeked(mut self) -> Decision {
        self.allowed = self.retry_after == 0;
        self
    }

    /// Whether the call may proceed.
    pub fn is_allowed(&self) -> bool {
        self.allowed
    }

    /// The most units that one call can ever take: the burst, or the limit of a window. Of several
    /// quotas, that of the one with the fewest units left.
    pub fn limit(&self) -> u64 {
        self.limit
    }

    /// The position of the quota with the fewest units left, which [`limit`](Decision::limit) and
    /// [`remaining`](Decision::remaining) are of: 0 for a limiter with one quota. A leased limiter does not know, and
    /// names the quota with the lowest limit. Not serialized.
    pub fn quota_index(&self) -> usize {
        usize::from(self.quota)
    }

    /// The units available now. Of several quotas, the fewest.
    pub fn remaining(&self) -> u64 {
        self.remaining
    }

    /// How long until the same call would be allowed, if no other client takes units meanwhile:
    /// exact, to the microsecond of the store's clock. Zero if it was allowed; `None` if it
    /// [never](Decision::is_never) will be.
    pub fn retry_after(&self) -> Option<Duration> {
        duration(self.retry_after)
    }

    /// Whether waiting is useless: the cost exceeds the limit.
    pub fn is_never(&self) -> bool {
        !self.allowed && self.retry_after == NEVER
    }

    /// How long until the quota is whole again; `None` for never.
    pub fn reset_after(&self) -> Option<Duration> {
        duration(self.reset_after)
    }

    /// Where the decision comes from.
    pub fn basis(&self) -> Basis {
        self.basis
    }
}

#[cfg(feature = "serde")]
mod wire {
    use super::{Basis, Decision, NEVER};

    /// A [`Decision`] as it is serialized: with the keys of `windlass limit check --json`, times in
    /// whole milliseconds, rounded up, and `null` for never.
    #[derive(serde::Serialize, serde::Deserialize)]
    pub(super) struct DecisionFields {
        allowed: bool,
        limit: u64,
        remaining: u64,
        retry_after_ms: Option<u64>,
        reset_after_ms: Option<u64>,
        basis: Basis,
    }

    fn millis(micros: u64) -> Option<u64> {
        (micros != NEVER).then(|| micros.div_ceil(1_000))
    }

    fn micros(millis: Option<u64>) -> u64 {
        millis.map_or(NEVER, |millis| millis.saturating_mul(1_000))
    }

    impl From<Decision> for DecisionFields {
        fn from(decision: Decision) -> DecisionFields {
            DecisionFields {
                allowed: decision.allowed,
                limit: decision.limit,
                remaining: decision.remaining,
                retry_after_ms: millis(decision.retry_after),
                reset_after_ms: millis(decision.reset_after),
                basis: decision.basis,
            }
        }
    }

    impl From<DecisionFields> for Decision {
        fn from(fields: DecisionFields) -> Decision {
            Decision {
                quota: 0,
                allowed: fields.allowed,
                limit: fields.limit,
                remaining: fields.remaining,
                retry_after: micros(fields.retry_after_ms),
                reset_after: micros(fields.reset_after_ms),
                basis: fields.basis,
            }
        }
    }
}
