//! Token buckets, by GCRA (the "virtual scheduling algorithm" of ITU-T I.371, annex A): the state
//! is the time at which the bucket will be full again.

use super::rule::{Bucket, Rule};
use super::{MAX_PERIOD_MICROS, RuleState, Span, step_back};

/// The largest number up to which Lua is exact.
const EXACT: f64 = 9_007_199_254_740_992.0;

/// The stored state as of now under this rule; `None` if it is another algorithm's.
///
/// If the quota has changed, the units used stay used.
pub(super) fn advance(rule: &Rule, state: &RuleState, now: u64) -> Option<RuleState> {
    match (rule, state) {
        (
            Rule::Bucket(b),
            &RuleState::Bucket {
                limit,
                amount,
                period,
                tat,
                leased,
                ref refunds,
            },
        ) if (amount, period) == (b.amount, b.period) => Some(RuleState::Bucket {
            limit,
            amount,
            period,
            tat: tat.max(Span::whole(now)),
            leased,
            refunds: refunds.clone(),
        }),
        (Rule::Bucket(b), RuleState::Bucket { .. } | RuleState::Allowance { .. }) => {
            let time = (used(state, now) * b.period as f64 / b.amount as f64).ceil();
            let time = time.min(MAX_PERIOD_MICROS as f64) as u64;
            let mut changed = RuleState::bucket(b, Span::whole(now + time));
            if let (RuleState::Bucket { leased, .. }, &RuleState::Bucket { leased: old, .. }) =
                (&mut changed, state)
                && old.since > 0
            {
                // Leased under the other quota: none of it can be returned.
                leased.since = now;
                leased.now = b.full.us;
            }
            Some(changed)
        }
        (Rule::Allowance { .. }, RuleState::Allowance { .. }) => Some(state.clone()),
        (Rule::Allowance { burst }, RuleState::Bucket { .. }) => Some(RuleState::Allowance {
            limit: *burst,
            used: used(state, now).ceil().min(EXACT) as u64,
        }),
        _ => None,
    }
}

/// Units used and not refilled yet. For changed quotas only, where the exact fraction is lost: the
/// caller rounds up.
fn used(state: &RuleState, now: u64) -> f64 {
    match state {
        &RuleState::Bucket {
            amount,
            period,
            tat,
            ..
        } if tat.us >= now => {
            let parts = tat.part as f64 / amount as f64;
            ((tat.us - now) as f64 + parts) * amount as f64 / period as f64
        }
        RuleState::Allowance { used, .. } => *used as f64,
        _ => 0.0,
    }
}

/// The state after the charge; `None` if the units are not available within `wait`.
pub(super) fn charge(
    rule: &Rule,
    state: &RuleState,
    now: u64,
    cost: u64,
    wait: u64,
) -> Option<RuleState> {
    match (rule, state) {
        (
            Rule::Bucket(b),
            &RuleState::Bucket {
                amount,
                period,
                tat,
                leased,
                ref refunds,
                ..
            },
        ) => {
            let tat = tat.plus(b.time_for(cost), b.amount);
            let latest = b.full.plus(Span::whole(now + wait), b.amount);
            let mut refunds = refunds.clone();
            if let Some(refunds) = &mut refunds
                && tat > b.full.plus(Span::whole(now), b.amount)
            {
                // It is used later.
                refunds.end_all(tat, now);
            }
            (cost <= b.burst && tat <= latest).then_some(RuleState::Bucket {
                limit: b.burst,
                amount,
                period,
                tat,
                leased,
                refunds,
            })
        }
        (Rule::Allowance { burst }, &RuleState::Allowance { limit, used }) => {
            let used = used + cost;
            (used <= *burst).then_some(RuleState::Allowance { limit, used })
        }
        _ => None,
    }
}

/// The decision of `decide`, in place. `None` if the state needs a conversion first.
#[inline(always)]
pub(super) fn take_in_place(
    b: &Bucket,
    state: &mut RuleState,
    now: u64,
    cost: u64,
    mark: u64,
) -> Option<bool> {
    let RuleState::Bucket {
        limit,
        amount,
        period,
        tat,
        leased,
        ..
    } = state
    else {
        return None;
    };
    if (*amount, *period) != (b.amount, b.period) || cost == 0 || leased.since > now {
        return None;
    }
    if mark == 0 {
        *tat = step_back::lowered(b, *limit, *tat, now);
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

/// Returns the units of a reservation, except those that later charges rely on; `None` if there are
/// none. `after` is the state after the reservation.
pub(super) fn cancel(
    rule: &Rule,
    state: &RuleState,
    now: u64,
    cost: u64,
    after: &RuleState,
) -> Option<RuleState> {
    let (
        Rule::Bucket(b),
        &RuleState::Bucket {
            limit,
            amount,
            period,
            tat,
            leased,
            ref refunds,
        },
        &RuleState::Bucket {
            amount: then_amount,
            period: then_period,
            tat: then,
            ..
        },
    ) = (rule, state, after)
    else {
        return None;
    };
    // Once it is due, its client may have acted.
    let due = then <= b.full.plus(Span::whole(now), b.amount);
    if due || (then_amount, then_period) != (amount, period) {
        return None;
    }
    let later = tat.minus(then, b.amount);
    let returned = b.time_for(cost).minus(later, b.amount);
    (returned > Span::whole(0)).then(|| RuleState::Bucket {
        limit,
        amount,
        period,
        tat: tat.minus(returned, b.amount).max(Span::whole(now)),
        leased,
        refunds: refunds.clone(),
    })
}

/// Units available now, time until `cost` units are, time until all are.
#[inline(always)]
pub(super) fn status(
    rule: &Rule,
    state: &RuleState,
    now: u64,
    cost: u64,
) -> (u64, Option<u64>, Option<u64>) {
    match (rule, state) {
        (Rule::Bucket(b), &RuleState::Bucket { tat, .. }) => {
            let Bucket { amount, burst, .. } = *b;
            let latest = b.full.plus(Span::whole(now), amount);
            let remaining = b.units_in(latest.minus(tat, amount)).min(burst);
            let retry = (cost <= burst).then(|| {
                let next = tat.plus(b.time_for(cost), amount);
                next.minus(latest, amount).ceil()
            });
            (remaining, retry, Some(tat.ceil().saturating_sub(now)))
        }
        (Rule::Allowance { burst }, &RuleState::Allowance { used, .. }) => {
            let left = burst.saturating_sub(used);
            let retry = (cost <= left).then_some(0);
            (left, retry, (used == 0).then_some(0))
        }
        _ => (0, None, None),
    }
}
