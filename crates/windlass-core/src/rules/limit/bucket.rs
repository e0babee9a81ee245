//! The token bucket, by GCRA: the whole state is the time at which the bucket will be full.
//!
//! See the "virtual scheduling algorithm" of ITU-T I.371, annex A.

use super::rule::{Bucket, Rule};
use super::{LONGEST_MICROS, RuleState, Span};

/// Lua counts exactly up to here.
const EXACT: f64 = 9_007_199_254_740_992.0;

/// What is stored, as it stands now under this rule; `None` for another algorithm's.
///
/// If the quota has changed, what was used stays used, unit for unit.
pub(super) fn bring_up(rule: &Rule, state: RuleState, now: u64) -> Option<RuleState> {
    match (rule, state) {
        (
            Rule::Bucket(b),
            RuleState::Bucket {
                limit,
                amount,
                period,
                tat,
                lent,
            },
        ) if (amount, period) == (b.amount, b.period) => Some(RuleState::Bucket {
            limit,
            amount,
            period,
            tat: tat.max(Span::whole(now)),
            lent,
        }),
        (Rule::Bucket(b), RuleState::Bucket { .. } | RuleState::Allowance { .. }) => {
            let time = (used(state, now) * b.period as f64 / b.amount as f64).ceil();
            let time = time.min(LONGEST_MICROS as f64) as u64;
            let mut changed = RuleState::bucket(b, Span::whole(now + time));
            if let (RuleState::Bucket { lent, .. }, RuleState::Bucket { lent: old, .. }) =
                (&mut changed, state)
                && old.since > 0
            {
                // Reckoned by the other quota, so that nothing of it can be given back.
                lent.since = now;
                lent.now = b.full.us;
            }
            Some(changed)
        }
        (Rule::Allowance { .. }, RuleState::Allowance { .. }) => Some(state),
        (Rule::Allowance { burst }, RuleState::Bucket { .. }) => Some(RuleState::Allowance {
            limit: *burst,
            used: used(state, now).ceil().min(EXACT) as u64,
        }),
        _ => None,
    }
}

/// Units that have been used and did not come in again yet. Only for quotas that change, where the
/// exact fraction cannot be kept: the next step rounds up.
fn used(state: RuleState, now: u64) -> f64 {
    match state {
        RuleState::Bucket {
            amount,
            period,
            tat,
            ..
        } if tat.us >= now => {
            let parts = tat.part as f64 / amount as f64;
            ((tat.us - now) as f64 + parts) * amount as f64 / period as f64
        }
        RuleState::Allowance { used, .. } => used as f64,
        _ => 0.0,
    }
}

/// The state after the charge, if the units can be had within `wait`.
pub(super) fn charge(
    rule: &Rule,
    state: RuleState,
    now: u64,
    cost: u64,
    wait: u64,
) -> Option<RuleState> {
    match (rule, state) {
        (
            Rule::Bucket(b),
            RuleState::Bucket {
                limit,
                amount,
                period,
                tat,
                lent,
            },
        ) => {
            let tat = tat.plus(b.time_for(cost), b.amount);
            let latest = b.full.plus(Span::whole(now + wait), b.amount);
            (cost <= b.burst && tat <= latest).then_some(RuleState::Bucket {
                limit,
                amount,
                period,
                tat,
                lent,
            })
        }
        (Rule::Allowance { burst }, RuleState::Allowance { limit, used }) => {
            let used = used + cost;
            (used <= *burst).then_some(RuleState::Allowance { limit, used })
        }
        _ => None,
    }
}

/// Takes units of a bucket that nothing has to be known of but its state: the same decision as `decide`
/// takes, without a copy. `None` if it is not as simple as that.
#[inline(always)]
pub(super) fn take_in_place(
    b: &Bucket,
    state: &mut RuleState,
    now: u64,
    cost: u64,
) -> Option<bool> {
    let RuleState::Bucket {
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
    state: RuleState,
    now: u64,
    cost: u64,
    after: RuleState,
) -> Option<RuleState> {
    let (
        Rule::Bucket(b),
        RuleState::Bucket {
            limit,
            amount,
            period,
            tat,
            lent,
        },
        RuleState::Bucket {
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
    (back > Span::whole(0)).then(|| RuleState::Bucket {
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
    state: RuleState,
    now: u64,
    cost: u64,
) -> (u64, Option<u64>, Option<u64>) {
    match (rule, state) {
        (Rule::Bucket(b), RuleState::Bucket { tat, .. }) => {
            let Bucket { amount, burst, .. } = *b;
            let latest = b.full.plus(Span::whole(now), amount);
            let remaining = b.units_in(latest.minus(tat, amount)).min(burst);
            let retry = (cost <= burst).then(|| {
                let next = tat.plus(b.time_for(cost), amount);
                next.minus(latest, amount).ceil()
            });
            (remaining, retry, Some(tat.ceil().saturating_sub(now)))
        }
        (Rule::Allowance { burst }, RuleState::Allowance { used, .. }) => {
            let left = burst.saturating_sub(used);
            let retry = (cost <= left).then_some(0);
            (left, retry, (used == 0).then_some(0))
        }
        _ => (0, None, None),
    }
}
