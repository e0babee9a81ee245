//! What a limiter allows.
//!
//! A [`Rule`] is a quota in whole numbers, a [`RuleState`] is what a store keeps of it between two calls,
//! and time is a whole number of microseconds. Nothing here is rounded, so nothing drifts: what does
//! not come out even is kept as a fraction (see [`Span`]).

mod bucket;
mod inspect;
mod lease;
mod matching;
mod rule;
mod span;
mod state;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod tests_change;
#[cfg(test)]
mod tests_lease;
mod window;

pub use inspect::{QuotaUsage, usage};
pub use rule::{InvalidRule, Rule};
pub use span::Span;
pub use state::{RuleState, RuleStates};

/// The longest time that anything here may span, in microseconds: 100 years. The sum of the time of
/// day and two of these stays below 2^53, which is as far as Lua counts exactly.
pub const LONGEST_MICROS: u64 = 100 * 365 * 24 * 3600 * 1_000_000;
/// The largest number of units in a quota, or asked for at once.
pub const MOST_UNITS: u64 = 1_000_000_000_000;

/// What is asked of a limiter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LimitOp {
    /// Only to look.
    Peek,
    /// So many units, now.
    Take(u64),
    /// So many units, to be used within so many microseconds.
    Reserve(u64, u64),
    /// Units to be used a little later, by somebody who decides alone: the first of these amounts that
    /// fits.
    Lend(Vec<u64>),
    /// So many lent units were not used. They were lent at this time, by a state of this
    /// [mark](RuleStates::mark).
    Return(u64, u64, u64),
    /// A reservation is not needed: its units, and what its charge left behind.
    Cancel(u64, RuleStates),
}

/// What became of it.
#[derive(Clone, Debug, PartialEq)]
pub struct RuleOutcome {
    /// The units charged (or given back); `None` if denied.
    pub granted: Option<u64>,
    /// The state afterwards, brought up to now.
    pub states: RuleStates,
    /// Whether the state has to be stored.
    pub changed: bool,
}

/// The state belongs to another algorithm.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mismatch {
    /// What is stored.
    pub stored: &'static str,
    /// What was asked for.
    pub asked: &'static str,
}

/// Decides by all rules together: either all of them are charged, or none.
pub fn decide(
    rules: &[Rule],
    stored: &RuleStates,
    now: u64,
    want: &LimitOp,
) -> Result<RuleOutcome, Mismatch> {
    let (states, converted) = matching::bring_up(rules, stored, now)?;
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
        LimitOp::Lend(costs) => (costs, 0),
        LimitOp::Return(cost, lent_at, mark) => {
            return Ok(give_back(states, *mark, rules.len(), *cost, |i, state| {
                lease::give_back(&rules[i], state, now, *cost, *lent_at)
            }));
        }
        LimitOp::Cancel(cost, after) => {
            let mark = after.mark();
            return Ok(give_back(states, mark, rules.len(), *cost, |i, state| {
                bucket::cancel(&rules[i], state, now, *cost, after.get(i)?)
            }));
        }
    };
    let lends = matches!(want, LimitOp::Lend(_));
    // A quota that has changed counts from now on, even for a call that is denied: or else units would
    // go on coming in at the old rate until one is allowed.
    let converted = converted && !costs.is_empty();
    for &cost in costs {
        if cost == 0 {
            return Ok(RuleOutcome {
                granted: Some(0),
                states,
                changed: converted,
            });
        }
        let charge = |i: usize, state: RuleState| {
            if lends {
                lease::charge(&rules[i], state, now, cost)
            } else {
                charge(&rules[i], state, now, cost, wait)
            }
        };
        if let Some(mut states) = states.try_map(rules.len(), charge) {
            if lends || wait > 0 {
                states.promise(now);
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

/// The same as [`decide`] for what is asked most often: units of one bucket, where they are kept. Says
/// whether they were granted, and how things stand then; `None` if it is not as simple as that, and
/// nothing was done.
// In the way of every check in memory, where calls that answer in memory cost more than what they do.
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
    let state = states.lone()?;
    let taken = bucket::take_in_place(b, state, now, cost)?;
    Some((taken, rule.standing(*state, now, cost)))
}

/// The state after the charge, if it can be made.
fn charge(rule: &Rule, state: RuleState, now: u64, cost: u64, wait: u64) -> Option<RuleState> {
    match rule {
        Rule::Bucket(_) | Rule::Allowance { .. } => bucket::charge(rule, state, now, cost, wait),
        Rule::Fixed { .. } | Rule::Sliding { .. } => window::charge(rule, state, now, cost),
    }
}

/// Each rule gives back on its own; `Some` units if any of them did. What was promised by a state that is
/// gone was forgotten with it.
fn give_back(
    mut states: RuleStates,
    mark: u64,
    rules: usize,
    cost: u64,
    back: impl Fn(usize, RuleState) -> Option<RuleState>,
) -> RuleOutcome {
    let mut changed = false;
    let known = mark != 0 && mark == states.mark();
    for i in (0..rules).filter(|_| known) {
        if let Some(state) = states.get(i).and_then(|state| back(i, state)) {
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

/// What is stored, as these rules see it now: their states in their order, then what belongs to rules that
/// only others have.
pub fn bring_up(rules: &[Rule], stored: &RuleStates, now: u64) -> Result<RuleStates, Mismatch> {
    Ok(matching::bring_up(rules, stored, now)?.0)
}

/// When all that is stored will be as if it had never been.
#[inline]
pub fn ends(states: &RuleStates, now: u64) -> u64 {
    states.iter().map(|s| s.ends(now)).max().unwrap_or(now)
}

/// How the limiter stands, for whoever asked for so many units.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LimitStatus {
    /// Units that one call could have at most.
    pub limit: u64,
    /// Units that could be had now.
    pub remaining: u64,
    /// Microseconds until as many units as were asked for can be had; `None` for never.
    pub retry_after: Option<u64>,
    /// Microseconds until all units are there again; `None` for never.
    pub reset_after: Option<u64>,
}

/// How things stand by all rules together. `states` are up to now.
pub fn standing(rules: &[Rule], states: &RuleStates, now: u64, cost: u64) -> LimitStatus {
    let each = |(i, rule): (usize, &Rule)| {
        let state = states.get(i).unwrap_or_else(|| rule.fresh(now));
        rule.standing(state, now, cost)
    };
    let mut all = rules.iter().enumerate().map(each);
    let Some(first) = all.next() else {
        return LimitStatus {
            limit: 0,
            remaining: 0,
            retry_after: None,
            reset_after: Some(0),
        };
    };
    all.fold(first, |a, b| {
        let tightest = if b.remaining < a.remaining { b } else { a };
        LimitStatus {
            limit: tightest.limit,
            remaining: tightest.remaining,
            retry_after: a.retry_after.zip(b.retry_after).map(|(a, b)| a.max(b)),
            reset_after: a.reset_after.zip(b.reset_after).map(|(a, b)| a.max(b)),
        }
    })
}
