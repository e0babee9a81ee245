//! Windows, fixed and sliding.

use super::State;
use super::rule::Rule;

/// What is stored, as it stands now; `None` for another algorithm's.
pub(super) fn bring_up(rule: &Rule, state: State, now: u64) -> Option<State> {
    match (rule, state) {
        (Rule::Fixed { period, .. }, State::Fixed { start, .. }) => {
            Some(if now >= start + period {
                State::Fixed {
                    start: now,
                    count: 0,
                }
            } else {
                state
            })
        }
        (Rule::Sliding { period, .. }, State::Sliding { start, count, .. }) => {
            Some(if now >= start + 2 * period {
                State::Sliding {
                    start: now,
                    before: 0,
                    count: 0,
                }
            } else if now >= start + period {
                State::Sliding {
                    start: start + period,
                    before: count,
                    count: 0,
                }
            } else {
                state
            })
        }
        _ => None,
    }
}

/// The state after the charge, if there is room.
pub(super) fn charge(rule: &Rule, state: State, now: u64, cost: u64) -> Option<State> {
    match (rule, state) {
        (Rule::Fixed { limit, .. }, State::Fixed { start, count }) => {
            let count = count + cost;
            (count <= *limit).then_some(State::Fixed { start, count })
        }
        (
            Rule::Sliding { limit, period },
            State::Sliding {
                start,
                before,
                count,
            },
        ) => {
            let count = count + cost;
            let room = limit.checked_sub(count)?;
            let left = u128::from(period - now.saturating_sub(start));
            let fits = u128::from(before) * left <= u128::from(room) * u128::from(*period);
            fits.then_some(State::Sliding {
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
    state: State,
    now: u64,
    cost: u64,
) -> (u64, Option<u64>, Option<u64>) {
    match (rule, state) {
        (Rule::Fixed { limit, period }, State::Fixed { start, count }) => {
            let left = limit.saturating_sub(count);
            let end = (start + period).saturating_sub(now);
            let wait = if cost <= left { 0 } else { end };
            let reset = if count == 0 { 0 } else { end };
            (left, (cost <= *limit).then_some(wait), Some(reset))
        }
        (
            Rule::Sliding { limit, period },
            State::Sliding {
                start,
                before,
                count,
            },
        ) => {
            let passed = now.saturating_sub(start);
            let fading = u128::from(before) * u128::from(period - passed);
            let room = u128::from(limit.saturating_sub(count)) * u128::from(*period);
            let left = (room.saturating_sub(fading) / u128::from(*period)) as u64;
            let wait = (cost <= *limit).then(|| {
                let at = match limit
                    .checked_sub(count)
                    .and_then(|room| room.checked_sub(cost))
                {
                    Some(room) => faded(before, room, *period),
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

/// How far into a window what the window before used has faded to `room` units.
fn faded(before: u64, room: u64, period: u64) -> u64 {
    if before <= room {
        return 0;
    }
    let still = u128::from(room) * u128::from(period) / u128::from(before);
    period - still as u64
}
