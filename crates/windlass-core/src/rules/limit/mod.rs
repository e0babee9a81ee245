//! Rate limiters.
//!
//! A [`Rule`] is a quota in whole numbers: a token bucket, a fixed window, a sliding window or a
//! sliding log. A [`RuleState`] is what a store keeps for it between two calls. A limiter has one rule or several,
//! and all of them decide together ([`decide`]). Time is a whole number of microseconds, and
//! fractions are kept exactly (see [`Span`]), so nothing is rounded and nothing drifts.
//!
//! | file | contents |
//! |---|---|
//! | `rule.rs`, `span.rs` | quotas, and times with a fraction |
//! | `state.rs` | states and their stored text |
//! | `bucket.rs`, `window.rs`, `log.rs` | the algorithms |
//! | `lease.rs` | units charged in advance and used later without the store ([`LimitOp::Lease`]) |
//! | `hold.rs` | an estimate charged in advance, and settled when the cost is known ([`hold()`], [`settle`]) |
//! | `matching.rs` | which stored state belongs to which rule, where quotas have changed |
//! | `step_back.rs` | states written by a clock that was ahead |
//! | `inspect.rs` | usage without knowing the quota |

mod bucket;
mod hold;
mod inspect;
mod lease;
mod log;
mod matching;
mod rule;
mod span;
mod state;
mod step_back;
#[cfg(test)]
mod tests;
mod window;

pub use hold::{
    HeldQuota, HoldRecord, Refunds, SettledQuota, UnsettledHold, charged_units, hold, settle,
};
pub use inspect::{QuotaUsage, usage};
pub use log::CallLog;
pub use rule::{InvalidRule, Rule};
pub use span::Span;
pub use state::{RuleState, RuleStates};

use matching::{MatchedStates, match_states};

/// The longest period, in microseconds: 100 years. The current time plus two of these stays below
/// 2^53, up to which Lua is exact.
pub const MAX_PERIOD_MICROS: u64 = 100 * 365 * 24 * 3600 * 1_000_000;
/// The largest number of units in a quota or in one call.
pub const MAX_UNITS: u64 = 1_000_000_000_000;
/// The largest number of units in the quota of a sliding log, which stores every admitted call of
/// the last period: 160 kB in memory, and about as much as text.
pub const MAX_LOG_UNITS: u64 = 10_000;

/// An operation on a limiter. Times are in microseconds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LimitOp {
    /// Changes nothing.
    Peek,
    /// Takes units now.
    Take(u64),
    /// Takes units that become available within this time: units, longest wait.
    Reserve(u64, u64),
    /// Leases units: charges them now, for a client that uses them a little later without the
    /// store: amounts, of which the first that fits is taken, and for how long. A bucket leases for
    /// a limited time. Leased for no time, units are taken.
    Lease(Vec<u64>, u64),
    /// Returns unused leased units: units, when and for how long they were leased, and the
    /// [mark](RuleStates::mark) of the state that leased them.
    ReturnLeased(u64, u64, u64, u64),
    /// Cancels a reservation: its units, and the states after it was made.
    Cancel(u64, RuleStates),
}

/// The outcome of an operation.
#[derive(Clone, Debug, PartialEq)]
pub struct RuleOutcome {
    /// The units charged or returned; `None` if denied.
    pub granted: Option<u64>,
    /// The states after the operation, as of now.
    pub states: RuleStates,
    /// Whether they have to be stored.
    pub changed: bool,
}

/// The stored state is that of another algorithm.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mismatch {
    /// The stored algorithm.
    pub stored: &'static str,
    /// The requested algorithm.
    pub requested: &'static str,
}

/// Decides by all rules together: all of them are charged, or none.
pub fn decide(
    rules: &[Rule],
    stored: &RuleStates,
    now: u64,
    want: &LimitOp,
) -> Result<RuleOutcome, Mismatch> {
    let (states, converted) = advance_all(rules, stored, now)?;
    let lone;
    let (costs, wait): (&[u64], u64) = match want {
        LimitOp::Peek => (&[], 0),
        LimitOp::Take(cost) => {
            lone = [*cost];
            (&lone, 0)
        }
        LimitOp::Reserve(cost, wait) => {
            lone = [*cost];
            (&lone, *wait)
        }
        LimitOp::Lease(costs, _) => (costs, 0),
        LimitOp::ReturnLeased(cost, leased_at, life, mark) => {
            return Ok(return_units(
                states,
                *mark,
                rules.len(),
                *cost,
                |i, state| lease::return_units(&rules[i], state, now, *cost, (*leased_at, *life)),
            ));
        }
        LimitOp::Cancel(cost, after) => {
            let mark = after.mark();
            return Ok(return_units(
                states,
                mark,
                rules.len(),
                *cost,
                |i, state| bucket::cancel(&rules[i], state, now, *cost, after.get(i)?),
            ));
        }
    };
    let life = match want {
        LimitOp::Lease(_, life) => *life,
        _ => 0,
    };
    // A changed quota is stored even if the call is denied: otherwise units would refill at the old
    // rate until a call is allowed. So is a time that was lowered, or it would be lowered for ever.
    let converted = converted && !costs.is_empty();
    for &cost in costs {
        if cost == 0 {
            return Ok(RuleOutcome {
                granted: Some(0),
                states,
                changed: converted,
            });
        }
        let charge = |i: usize, state: &RuleState| {
            if life > 0 {
                lease::charge(&rules[i], state, now, cost, life)
            } else {
                rules[i].charge(state, now, cost, wait)
            }
        };
        if let Some(mut states) = states.try_map(rules.len(), charge) {
            if life > 0 || wait > 0 {
                states.set_mark(now);
            }
            return Ok(RuleOutcome {
                granted: Some(cost),
                states,
                changed: true,
            });
        }
    }
    Ok(RuleOutcome {
        granted: None,
        states,
        changed: converted,
    })
}

/// [`decide`] for the most frequent operation: units of a single bucket, without copying its state.
/// Returns whether they were granted, and the status afterwards; `None` if the case is not that
/// simple, and nothing changed.
// On the path of every check in memory, where a function call is a measurable part of the cost.
#[inline(always)]
pub fn take_in_place(
    rules: &[Rule],
    states: &mut RuleStates,
    now: u64,
    cost: u64,
) -> Option<(bool, LimitStatus)> {
    let [rule @ Rule::Bucket(b)] = rules else {
        return None;
    };
    let mark = states.mark();
    if mark > now {
        return None;
    }
    let state = states.lone()?;
    let taken = bucket::take_in_place(b, state, now, cost, mark)?;
    Some((taken, rule.status(state, now, cost)))
}

/// Returns units to each rule on its own; `granted` if any of them took some back. Units charged to
/// a state that was reset since are not returned to its successor.
fn return_units(
    mut states: RuleStates,
    mark: u64,
    rules: usize,
    cost: u64,
    returned: impl Fn(usize, &RuleState) -> Option<RuleState>,
) -> RuleOutcome {
    let mut changed = false;
    let known = mark != 0 && mark == states.mark();
    for i in (0..rules).filter(|_| known) {
        if let Some(state) = states.get(i).and_then(|state| returned(i, state)) {
            states.set(i, state);
            changed = true;
        }
    }
    RuleOutcome {
        granted: changed.then_some(cost),
        states,
        changed,
    }
}

/// The stored states as of now under these rules: their own states in their order, then those of
/// rules that only other clients have.
pub fn advance(rules: &[Rule], stored: &RuleStates, now: u64) -> Result<RuleStates, Mismatch> {
    Ok(advance_all(rules, stored, now)?.0)
}

/// As [`advance`]. Also returns whether any state was converted, or lowered because the clock has
/// stepped back.
fn advance_all(
    rules: &[Rule],
    stored: &RuleStates,
    now: u64,
) -> Result<(RuleStates, bool), Mismatch> {
    let in_order = |(i, rule): (usize, &Rule)| stored.get(i).is_some_and(|s| rule.is_of(s));
    let MatchedStates {
        own,
        others,
        converted,
    } = match stored.is_empty() || rules.iter().enumerate().all(in_order) {
        true => MatchedStates {
            own: (0..rules.len()).map(|i| stored.get(i)).collect(),
            others: stored.iter().skip(rules.len()).collect(),
            converted: false,
        },
        false => match_states(rules, stored, now)?,
    };
    let mut mark = step_back::mark(stored, now);
    let mut lowered = mark != stored.mark();
    if converted && mark > 0 {
        // Units taken under another quota cannot be returned.
        mark = now;
    }
    let advance = |(rule, state): (&Rule, Option<&RuleState>)| match state {
        Some(state) => {
            let usable = step_back::lower(rule, state, now, mark);
            lowered |= usable != *state;
            let state = rule.advance(&usable, now);
            step_back::with_true_limit(rule, state, now, mark)
        }
        None => rule.fresh(now),
    };
    let own = rules.iter().zip(own).map(advance);
    let states: RuleStates = own.chain(others.into_iter().cloned()).collect();
    Ok((states.with_mark(mark), converted || lowered))
}

/// When all quotas are whole again, so that the states can be dropped.
#[inline]
pub fn ends(states: &RuleStates, now: u64) -> u64 {
    states.iter().map(|s| s.ends(now)).max().unwrap_or(now)
}

/// The algorithms, each in its own file.
impl Rule {
    /// The state before the first call.
    fn fresh(&self, now: u64) -> RuleState {
        match self {
            Rule::Bucket(b) => RuleState::bucket(b, Span::whole(now)),
            Rule::Allowance { burst } => RuleState::Allowance {
                limit: *burst,
                used: 0,
            },
            Rule::Fixed { limit, period } => RuleState::Fixed {
                limit: *limit,
                period: *period,
                start: now,
                count: 0,
                end: now + period,
            },
            Rule::Sliding { limit, period } => RuleState::Sliding {
                limit: *limit,
                period: *period,
                start: now,
                before: 0,
                count: 0,
            },
            Rule::Log { limit, period } => RuleState::Log {
                limit: *limit,
                period: *period,
                calls: CallLog::default(),
            },
        }
    }

    /// A state of this algorithm as of now under this rule.
    fn advance(&self, state: &RuleState, now: u64) -> RuleState {
        let state = match self {
            Rule::Bucket(_) | Rule::Allowance { .. } => bucket::advance(self, state, now),
            Rule::Fixed { .. } | Rule::Sliding { .. } => window::advance(self, state, now),
            Rule::Log { .. } => log::advance(self, state, now),
        };
        let state = state.unwrap_or_else(|| self.fresh(now));
        state.with_limit(self.limit())
    }

    /// Whether the state was computed by a rule with the same rate or period, so that it needs no
    /// conversion.
    fn is_of(&self, state: &RuleState) -> bool {
        match (self, state) {
            (Rule::Bucket(b), RuleState::Bucket { amount, period, .. }) => {
                (b.amount, b.period) == (*amount, *period)
            }
            (Rule::Allowance { .. }, RuleState::Allowance { .. }) => true,
            (Rule::Fixed { period, .. }, RuleState::Fixed { period: theirs, .. })
            | (Rule::Sliding { period, .. }, RuleState::Sliding { period: theirs, .. })
            | (Rule::Log { period, .. }, RuleState::Log { period: theirs, .. }) => period == theirs,
            _ => false,
        }
    }

    /// The state after the charge; `None` if it is denied.
    fn charge(&self, state: &RuleState, now: u64, cost: u64, wait: u64) -> Option<RuleState> {
        match self {
            Rule::Bucket(_) | Rule::Allowance { .. } => {
                bucket::charge(self, state, now, cost, wait)
            }
            Rule::Fixed { .. } | Rule::Sliding { .. } => window::charge(self, state, now, cost),
            Rule::Log { .. } => log::charge(self, state, now, cost),
        }
    }

    /// The status for a call of this cost.
    #[inline(always)]
    fn status(&self, state: &RuleState, now: u64, cost: u64) -> LimitStatus {
        let (remaining, retry_after, reset_after) = match self {
            Rule::Bucket(_) | Rule::Allowance { .. } => bucket::status(self, state, now, cost),
            Rule::Fixed { .. } | Rule::Sliding { .. } => window::status(self, state, now, cost),
            Rule::Log { .. } => log::status(self, state, now, cost),
        };
        LimitStatus {
            limit: self.limit(),
            quota: 0,
            remaining,
            retry_after: if cost == 0 { Some(0) } else { retry_after },
            reset_after,
        }
    }
}

/// The status of a limiter, for a call of some cost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LimitStatus {
    /// The most units that one call can take.
    pub limit: u64,
    /// The position of the rule that `limit` and `remaining` are of.
    pub quota: u16,
    /// The units available now.
    pub remaining: u64,
    /// Microseconds until the cost is available; `None` for never.
    pub retry_after: Option<u64>,
    /// Microseconds until the quota is whole again; `None` for never.
    pub reset_after: Option<u64>,
}

/// The status by all rules together. `states` are as of now.
pub fn status(rules: &[Rule], states: &RuleStates, now: u64, cost: u64) -> LimitStatus {
    status_by(rules, states, now, |_| cost)
}

/// As [`status`], with a cost for each rule; none is one unit of each.
pub fn status_of_costs(
    rules: &[Rule],
    states: &RuleStates,
    now: u64,
    costs: &[u64],
) -> LimitStatus {
    status_by(rules, states, now, |i| costs.get(i).copied().unwrap_or(1))
}

fn status_by(
    rules: &[Rule],
    states: &RuleStates,
    now: u64,
    cost: impl Fn(usize) -> u64,
) -> LimitStatus {
    let each = |(i, rule): (usize, &Rule)| LimitStatus {
        quota: u16::try_from(i).unwrap_or(u16::MAX),
        ..match states.get(i) {
            Some(state) => rule.status(state, now, cost(i)),
            None => rule.status(&rule.fresh(now), now, cost(i)),
        }
    };
    let mut all = rules.iter().enumerate().map(each);
    let Some(first) = all.next() else {
        return LimitStatus {
            limit: 0,
            quota: 0,
            remaining: 0,
            retry_after: None,
            reset_after: Some(0),
        };
    };
    all.fold(first, |a, b| {
        let tightest = if b.remaining < a.remaining { b } else { a };
        LimitStatus {
            limit: tightest.limit,
            quota: tightest.quota,
            remaining: tightest.remaining,
            retry_after: a.retry_after.zip(b.retry_after).map(|(a, b)| a.max(b)),
            reset_after: a.reset_after.zip(b.reset_after).map(|(a, b)| a.max(b)),
        }
    })
}
