//! Fixed and sliding windows.

use super::RuleState;
use super::rule::Rule;

/// The stored state as of now under this rule; `None` if it is another algorithm's.
///
/// If the period has changed, the units used stay used. When they were used within the old window
/// is not known, so they count as if used as late as possible:
///
/// - A fixed window keeps its start, and ends one new period after it. If that has passed already,
///   it ends one new period from now, but not after its old end.
/// - Of the two windows of a sliding window, the current one keeps its start. If that is more than
///   one new period ago, its units count as used within the last new period, and begin to fade now.
pub(super) fn advance(rule: &Rule, state: &RuleState, now: u64) -> Option<RuleState> {
    match (rule, state) {
        (Rule::Fixed { .. }, RuleState::Fixed { end, .. }) if now >= *end => Some(rule.fresh(now)),
        (
            Rule::Fixed {
                limit,
                period: new_period,
            },
            &RuleState::Fixed {
                period,
                start,
                count,
                end,
                ..
            },
        ) if period != *new_period => Some(RuleState::Fixed {
            limit: *limit,
            period: *new_period,
            start,
            count,
            end: match start + new_period {
                new_end if new_end > now => new_end,
                _ => end.min(now + new_period),
            },
        }),
        (Rule::Fixed { .. }, RuleState::Fixed { .. }) => Some(state.clone()),
        (
            Rule::Sliding {
                limit,
                period: new_period,
            },
            RuleState::Sliding { .. },
        ) => {
            let (start, before, count) = rotated(state, now)?;
            let over = now >= start + new_period;
            Some(RuleState::Sliding {
                limit: *limit,
                period: *new_period,
                start: if over { now } else { start },
                before: if over { count } else { before },
                count: if over { 0 } else { count },
            })
        }
        _ => None,
    }
}

/// Start, previous and current count of a sliding window at this time, by its own period.
fn rotated(state: &RuleState, now: u64) -> Option<(u64, u64, u64)> {
    let &RuleState::Sliding {
        period,
        start,
        before,
        count,
        ..
    } = state
    else {
        return None;
    };
    Some(if now >= start + 2 * period {
        (now, 0, 0)
    } else if now >= start + period {
        (start + period, count, 0)
    } else {
        (start, before, count)
    })
}

/// The state after the charge; `None` if it is denied.
pub(super) fn charge(rule: &Rule, state: &RuleState, now: u64, cost: u64) -> Option<RuleState> {
    match (rule, state) {
        (
            Rule::Fixed { limit, .. },
            &RuleState::Fixed {
                period,
                start,
                count,
                end,
                ..
            },
        ) => {
            let count = count + cost;
            (count <= *limit).then_some(RuleState::Fixed {
                period,
                start,
                count,
                end,
                limit: *limit,
            })
        }
        (
            Rule::Sliding { limit, period },
            &RuleState::Sliding {
                start,
                before,
                count,
                ..
            },
        ) => {
            let count = count + cost;
            let free = limit.checked_sub(count)?;
            let left = u128::from(period - now.saturating_sub(start));
            let fits = u128::from(before) * left <= u128::from(free) * u128::from(*period);
            fits.then_some(RuleState::Sliding {
                limit: *limit,
                period: *period,
                start,
                before,
                count,
            })
        }
        _ => None,
    }
}

/// Units available now, time until `cost` units are, time until all are.
pub(super) fn status(
    rule: &Rule,
    state: &RuleState,
    now: u64,
    cost: u64,
) -> (u64, Option<u64>, Option<u64>) {
    match (rule, state) {
        (Rule::Fixed { limit, .. }, &RuleState::Fixed { count, end, .. }) => {
            let left = limit.saturating_sub(count);
            let end = end.saturating_sub(now);
            let wait = if cost <= left { 0 } else { end };
            let reset = if count == 0 { 0 } else { end };
            (left, (cost <= *limit).then_some(wait), Some(reset))
        }
        (
            Rule::Sliding { limit, period },
            &RuleState::Sliding {
                start,
                before,
                count,
                ..
            },
        ) => {
            let passed = now.saturating_sub(start);
            let fading = u128::from(before) * u128::from(period - passed);
            let free = u128::from(limit.saturating_sub(count)) * u128::from(*period);
            let left = (free.saturating_sub(fading) / u128::from(*period)) as u64;
            let wait = (cost <= *limit).then(|| {
                let at = match limit
                    .checked_sub(count)
                    .and_then(|free| free.checked_sub(cost))
                {
                    Some(free) => faded(before, free, *period),
                    None => period + faded(count, limit - cost, *period),
                };
                (start + at).saturating_sub(now)
            });
            let reset = match (before, count) {
                (0, 0) => 0,
                (_, 0) => (start + period).saturating_sub(now),
                _ => (start + 2 * period).saturating_sub(now),
            };
            (left, wait, Some(reset))
        }
        _ => (0, None, None),
    }
}

/// How far into a window the units of the previous one have faded to `remaining` units.
fn faded(before: u64, remaining: u64, period: u64) -> u64 {
    if before <= remaining {
        return 0;
    }
    let still = u128::from(remaining) * u128::from(period) / u128::from(before);
    period - still as u64
}
