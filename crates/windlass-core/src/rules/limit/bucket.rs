//! The token bucket, by GCRA: the whole state is the time at which the bucket will be full.
//!
//! See the "virtual scheduling algorithm" of ITU-T I.371, annex A.

use super::rule::{Bucket, Rule};
use super::{LONGEST_MICROS, Span, State};

/// Lua counts exactly up to here.
const EXACT: f64 = 9_007_199_254_740_992.0;

/// What is stored, as it stands now under this rule; `None` for another algorithm's.
///
/// If the quota has changed, what was used stays used, unit for unit.
pub(super) fn bring_up(rule: &Rule, state: State, now: u64) -> Option<State> {
    match (rule, state) {
        (
            Rule::Bucket(b),
            State::Bucket {
                limit,
                amount,
                period,
                tat,
                lent,
            },
        ) if (amount, period) == (b.amount, b.period) => Some(State::Bucket {
            limit,
            amount,
            period,
            tat: tat.max(Span::whole(now)),
            lent,
        }),
        (Rule::Bucket(b), State::Bucket { .. } | State::Allowance { .. }) => {
            let time = (used(state, now) * b.period as f64 / b.amount as f64).ceil();
            let time = time.min(LONGEST_MICROS as f64) as u64;
            let mut changed = State::bucket(b, Span::whole(now + time));
            if let (State::Bucket { lent, .. }, State::Bucket { lent: old, .. }) =
                (&mut changed, state)
                && old.since > 0
            {
                // Reckoned by the other quota, so that nothing of it can be given back.
                lent.since = now;
                lent.now = b.full.us;
            }
            Some(changed)
        }
        (Rule::Allowance { .. }, State::Allowance { .. }) => Some(state),
        (Rule::Allowance { burst }, State::Bucket { .. }) => Some(State::Allowance {
            limit: *burst,
            used: used(state, now).ceil().min(EXACT) as u64,
        }),
        _ => None,
    }
}

/// Units that have been used and did not come in again yet. Only for quotas that change, where the
/// exact fraction cannot be kept: the next step rounds up.
fn used(state: State, now: u64) -> f64 {
    match state {
        State::Bucket {
            amount,
            period,
            tat,
            ..
        } if tat.us >= now => {
            let parts = tat.part as f64 / amount as f64;
            ((tat.us - now) as f64 + parts) * amount as f64 / period as f64
        }
        State::Allowance { used, .. } => used as f64,
        _ => 0.0,
    }
}

/// The state after the charge, if the units can be had within `wait`.
pub(super) fn charge(rule: &Rule, state: State, now: u64, cost: u64, wait: u64) -> Option<State> {
    match (rule, state) {
        (
            Rule::Bucket(b),
            State::Bucket {
                limit,
                amount,
                period,
                tat,
                lent,
            },
        ) => {
            let tat = tat.plus(b.time_for(cost), b.amount);
            let latest = b.full.plus(Span::whole(now + wait), b.amount);
            (cost <= b.burst && tat <= latest).then_some(State::Bucket {
                limit,
                amount,
                period,
                tat,
                lent,
            })
        }
        (Rule::Allowance { burst }, State::Allowance { limit, used }) => {
            let used = used + cost;
            (used <= *burst).then_some(State::Allowance { limit, used })
        }
        _ => None,
    }
}

/// Takes units of a bucket that nothing has to be known of but its state: the same decision as `decide`
/// takes, without a copy. `None` if it is not as simple as that.
#[inline(always)]
pub(super) fn take_in_place(b: &Bucket, state: &mut State, now: u64, cost: u64) -> Option<bool> {
    let State::Bucket {
        limit,
        amount,
        period,
        tat,
        ..
    } = state
    else {
        return None;
    };
    if (*amount, *period) != (b.amount, b.period) || cost == 0 {
        return None;
    }
    *tat = (*tat).max(Span::whole(now));
    let next = tat.plus(b.time_for(cost), b.amount);
    let fits = cost <= b.burst && next <= b.full.plus(Span::whole(now), b.amount);
    if fits {
        *tat = next;
        *limit = b.burst;
    }
    Some(fits)
}

/// Gives back what a reservation took, as far as later ones have not built on it; `None` if nothing.
/// `after` is what the reservation left.
pub(super) fn cancel(
    rule: &Rule,
    state: State,
    now: u64,
    cost: u64,
    after: State,
) -> Option<State> {
    let (
        Rule::Bucket(b),
        State::Bucket {
            limit,
            amount,
            period,
            tat,
            lent,
        },
        State::Bucket {
            amount: then_amount,
            period: then_period,
            tat: then,
            ..
        },
    ) = (rule, state, after)
    else {
        return None;
    };
    // Its time has come: whoever made it may have acted.
    let due = then <= b.full.plus(Span::whole(now), b.amount);
    if due || (then_amount, then_period) != (amount, period) {
        return None;
    }
    let later = tat.minus(then, b.amount);
    let back = b.time_for(cost).minus(later, b.amount);
    (back > Span::whole(0)).then(|| State::Bucket {
        limit,
        amount,
        period,
        tat: tat.minus(back, b.amount).max(Span::whole(now)),
        lent,
    })
}

/// Units there now, time until `cost` units are, time until all are.
#[inline(always)]
pub(super) fn standing(
    rule: &Rule,
    state: State,
    now: u64,
    cost: u64,
) -> (u64, Option<u64>, Option<u64>) {
    match (rule, state) {
        (Rule::Bucket(b), State::Bucket { tat, .. }) => {
            let Bucket { amount, burst, .. } = *b;
            let latest = b.full.plus(Span::whole(now), amount);
            let remaining = b.units_in(latest.minus(tat, amount)).min(burst);
            let retry = (cost <= burst).then(|| {
                let next = tat.plus(b.time_for(cost), amount);
                next.minus(latest, amount).ceil()
            });
            (remaining, retry, Some(tat.ceil().saturating_sub(now)))
        }
        (Rule::Allowance { burst }, State::Allowance { used, .. }) => {
            let left = burst.saturating_sub(used);
            let retry = (cost <= left).then_some(0);
            (left, retry, (used == 0).then_some(0))
        }
        _ => (0, None, None),
    }
}
