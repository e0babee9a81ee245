//! Clocks that step back: an administrator sets the server's clock, or another server with a slower
//! clock takes over.
//!
//! A stored time that lies further ahead than any call could have moved it was written by a clock
//! that was ahead of this one. Taken literally, the limiter would be blocked until this clock
//! catches up. So such a time is lowered to the latest that a call could write now, as if the units
//! had been taken just now: at most one full period is lost, and never a unit too many allowed.
//!
//! A bucket that took over the usage of a larger one may be further ahead, too. Its limit is not
//! stored until it is not: a time is lowered only by the limit that it was written with.
//!
//! A reservation may move the time of a bucket as far ahead as its client would wait. So in a bucket
//! with reservations or leases a distant time is lowered only if the first of them, or the last
//! lease, lies ahead of the clock as well. Those are then forgotten: units that were reserved or
//! leased by the other clock cannot be returned.

use super::rule::{Bucket, Rule};
use super::state::LeasedUnits;
use super::{RuleState, RuleStates, Span};

/// The mark of these states; 0 if it lies ahead.
#[inline(always)]
pub(super) fn mark(states: &RuleStates, now: u64) -> u64 {
    match states.mark() {
        mark if mark > now => 0,
        mark => mark,
    }
}

/// The time of a bucket, lowered to what a call could write now.
#[inline(always)]
pub(super) fn lowered(b: &Bucket, limit: u64, tat: Span, now: u64) -> Span {
    let latest = b.full.plus(Span::whole(now), b.amount);
    // A bucket that was larger may be further ahead.
    match tat > latest && limit > 0 && limit == b.burst {
        true => latest,
        false => tat,
    }
}

/// The state without its limit, if its time is further ahead than a call by this rule moves it.
pub(super) fn with_true_limit(rule: &Rule, state: RuleState, now: u64, mark: u64) -> RuleState {
    match (rule, &state) {
        (Rule::Bucket(b), RuleState::Bucket { tat, .. })
            if mark == 0 && *tat > b.full.plus(Span::whole(now), b.amount) =>
        {
            state.with_limit(0)
        }
        _ => state,
    }
}

/// The state of this rule with no time that is too far ahead.
pub(super) fn lower(rule: &Rule, state: &RuleState, now: u64, mark: u64) -> RuleState {
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
        ) if (amount, period) == (b.amount, b.period) => RuleState::Bucket {
            limit,
            amount,
            period,
            tat: match mark == 0 || leased.since > now {
                true => lowered(b, limit, tat, now),
                false => tat,
            },
            leased: match leased.since > now {
                // All of them may still be used.
                true => LeasedUnits {
                    since: now,
                    before: leased.before + leased.now,
                    now: 0,
                },
                false => leased,
            },
            refunds: refunds.clone(),
        },
        (
            Rule::Fixed { .. },
            &RuleState::Fixed {
                limit,
                period,
                start,
                count,
                end,
            },
        ) if start > now => RuleState::Fixed {
            limit,
            period,
            start: now,
            count,
            end: end.min(now + period),
        },
        (
            Rule::Sliding { .. },
            &RuleState::Sliding {
                limit,
                period,
                start,
                before,
                count,
            },
        ) if start > now => RuleState::Sliding {
            limit,
            period,
            start: now,
            before,
            count,
        },
        (
            Rule::Log { .. },
            RuleState::Log {
                limit,
                period,
                calls,
            },
        ) if calls.last() > Some(now) => RuleState::Log {
            limit: *limit,
            period: *period,
            calls: calls.map_times(|time| time.min(now)),
        },
        _ => state.clone(),
    }
}
