//! Windows, fixed and sliding.

use super::RuleState;
use super::rule::Rule;

/// What is stored, as it stands now under this rule; `None` for another algorithm's.
///
/// If the length has changed, what was used stays used. Nobody knows when within the old window that was,
/// so it counts as if it had been as late as it may have been:
///
/// - A fixed window that is under way has begun when it began, and ends a new length after that. If that is
///   over already, it goes on for one new length, but not beyond its old end.
/// - Of sliding windows, the present one has begun when it began, and the one before ended then. If the
///   present one is over already by the new length, then what was used in it counts as used within the
///   last new length, and begins to fade now.
pub(super) fn bring_up(rule: &Rule, state: RuleState, now: u64) -> Option<RuleState> {
    match (rule, state) {
        (Rule::Fixed { .. }, RuleState::Fixed { end, .. }) if now >= end => Some(rule.fresh(now)),
        (
            Rule::Fixed {
                limit,
                period: another,
            },
            RuleState::Fixed {
                period,
                start,
                count,
                end,
                ..
            },
        ) if period != *another => Some(RuleState::Fixed {
            limit: *limit,
            period: *another,
            start,
            count,
            end: match start + another {
                anew if anew > now => anew,
                _ => end.min(now + another),
            },
        }),
        (Rule::Fixed { .. }, RuleState::Fixed { .. }) => Some(state),
        (
            Rule::Sliding {
                limit,
                period: another,
            },
            RuleState::Sliding { .. },
        ) => {
            let (start, before, count) = turned(state, now)?;
            let over = now >= start + another;
            Some(RuleState::Sliding {
                limit: *limit,
                period: *another,
                start: if over { now } else { start },
                before: if over { count } else { before },
                count: if over { 0 } else { count },
            })
        }
        _ => None,
    }
}

/// Sliding windows, by their own length, at this time.
fn turned(state: RuleState, now: u64) -> Option<(u64, u64, u64)> {
    let RuleState::Sliding {
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

/// The state after the charge, if there is pool.
pub(super) fn charge(rule: &Rule, state: RuleState, now: u64, cost: u64) -> Option<RuleState> {
    match (rule, state) {
        (
            Rule::Fixed { limit, .. },
            RuleState::Fixed {
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
            RuleState::Sliding {
                start,
                before,
                count,
                ..
            },
        ) => {
            let count = count + cost;
            let pool = limit.checked_sub(count)?;
            let left = u128::from(period - now.saturating_sub(start));
            let fits = u128::from(before) * left <= u128::from(pool) * u128::from(*period);
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

/// Units there now, time until `cost` units are, time until all are.
pub(super) fn standing(
    rule: &Rule,
    state: RuleState,
    now: u64,
    cost: u64,
) -> (u64, Option<u64>, Option<u64>) {
    match (rule, state) {
        (Rule::Fixed { limit, .. }, RuleState::Fixed { count, end, .. }) => {
            let left = limit.saturating_sub(count);
            let end = end.saturating_sub(now);
            let wait = if cost <= left { 0 } else { end };
            let reset = if count == 0 { 0 } else { end };
            (left, (cost <= *limit).then_some(wait), Some(reset))
        }
        (
            Rule::Sliding { limit, period },
            RuleState::Sliding {
                start,
                before,
                count,
                ..
            },
        ) => {
            let passed = now.saturating_sub(start);
            let fading = u128::from(before) * u128::from(period - passed);
            let pool = u128::from(limit.saturating_sub(count)) * u128::from(*period);
            let left = (pool.saturating_sub(fading) / u128::from(*period)) as u64;
            let wait = (cost <= *limit).then(|| {
                let at = match limit
                    .checked_sub(count)
                    .and_then(|pool| pool.checked_sub(cost))
                {
                    Some(pool) => faded(before, pool, *period),
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

/// How far into a window what the window before used has faded to `pool` units.
fn faded(before: u64, pool: u64, period: u64) -> u64 {
    if before <= pool {
        return 0;
    }
    let still = u128::from(pool) * u128::from(period) / u128::from(before);
    period - still as u64
}
