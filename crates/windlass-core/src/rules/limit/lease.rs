//! Units that are lent: charged now, and used a little later by somebody who decides alone.
//!
//! What is used late must not crowd with what was charged in the meantime. In a window that is easy:
//! lent units are good until the window ends. A bucket lends for a while ([`Bucket::lend_time`]), and
//! charges as if all were used at the end of it: the bucket's time is first moved there, and then by
//! the units' worth.
//!
//! Why that is enough. Take a second bucket of the same quota that is charged when units are *used*,
//! and call its time `used`. At any moment `y`, with `out(y)` units lent and still good,
//! `max(used, y) + time_for(out(y)) ≤ tat`: a lending moves `tat` to the end of its while and adds its
//! units, a use moves one unit from one side of the sum to the other, an expiry only lowers the left
//! side, and a strict charge raises both sides alike. And `tat` is never more than a full bucket ahead
//! of the clock. So every use would have been allowed by the second bucket, one by one.
//!
//! Giving back lowers `tat`, so it must not go below what the other loans need: the end of the while,
//! and all that was lent within the last one, which is what [`LeasedUnits`] counts in two halves.
//!
//! [`LeasedUnits`]: super::state::LeasedUnits

use super::rule::{Bucket, Rule};
use super::state::LeasedUnits;
use super::{RuleState, Span};

impl Bucket {
    /// For how long units are lent: a quarter of the time in which the bucket fills. Up to three
    /// quarters of a burst can then be lent at once.
    pub fn lend_time(&self) -> u64 {
        self.full.us / 4
    }
}

impl Rule {
    /// The most that can ever be lent at once.
    pub fn most_lent(&self) -> u64 {
        match self {
            Rule::Bucket(b) => {
                let pool = b.full.minus(Span::whole(b.lend_time()), b.amount);
                b.units_in(pool).min(b.burst)
            }
            _ => self.limit(),
        }
    }

    /// Microseconds until so many units can be lent, if nobody else asks; `None` for never. The state
    /// is up to now.
    pub fn lend_after(&self, state: RuleState, now: u64, units: u64) -> Option<u64> {
        match (self, state) {
            (Rule::Bucket(b), RuleState::Bucket { tat, .. }) => {
                (units <= self.most_lent()).then(|| {
                    let latest = b.full.plus(Span::whole(now), b.amount);
                    let next = tat.plus(b.time_for(units), b.amount);
                    next.minus(latest, b.amount).ceil()
                })
            }
            _ => self.standing(state, now, units).retry_after,
        }
    }

    /// How long units that were lent at `now` may be used, in microseconds. The state is that after the
    /// charge.
    pub fn good_for(&self, state: RuleState, now: u64) -> u64 {
        match (self, state) {
            (Rule::Bucket(b), _) => b.lend_time(),
            (Rule::Allowance { .. }, _) => super::state::ALLOWANCE_KEPT / 2,
            (Rule::Fixed { .. }, RuleState::Fixed { end, .. }) => end.saturating_sub(now),
            (Rule::Sliding { period, .. }, RuleState::Sliding { start, .. }) => {
                (start + period).saturating_sub(now)
            }
            _ => 0,
        }
    }
}

/// The state after lending, if it can be done.
pub(super) fn charge(rule: &Rule, state: RuleState, now: u64, cost: u64) -> Option<RuleState> {
    let (
        Rule::Bucket(b),
        RuleState::Bucket {
            limit,
            amount,
            period,
            tat,
            lent,
        },
    ) = (rule, state)
    else {
        return super::charge(rule, state, now, cost, 0);
    };
    let time = b.time_for(cost);
    let start = tat.max(Span::whole(now + b.lend_time()));
    let tat = start.plus(time, b.amount);
    let latest = b.full.plus(Span::whole(now), b.amount);
    let mut lent = turn(lent, now, b.lend_time());
    lent.now += time.ceil();
    (cost <= b.burst && tat <= latest).then_some(RuleState::Bucket {
        limit,
        amount,
        period,
        tat,
        lent,
    })
}

/// Starts a new count when the present one is a while old.
fn turn(lent: LeasedUnits, now: u64, lend_time: u64) -> LeasedUnits {
    if lent.since == 0 || now >= lent.since + 2 * lend_time {
        LeasedUnits {
            since: now,
            before: 0,
            now: 0,
        }
    } else if now >= lent.since + lend_time {
        LeasedUnits {
            since: now,
            before: lent.now,
            now: 0,
        }
    } else {
        lent
    }
}

/// Gives back units that were lent at `lent_at` and not used; `None` if nothing can be.
pub(super) fn give_back(
    rule: &Rule,
    state: RuleState,
    now: u64,
    cost: u64,
    lent_at: u64,
) -> Option<RuleState> {
    match (rule, state) {
        (
            Rule::Bucket(b),
            RuleState::Bucket {
                limit,
                amount,
                period,
                tat,
                mut lent,
            },
        ) => {
            // What is no longer good cannot be told from what was used.
            if lent.since == 0 || now >= lent_at + b.lend_time() {
                return None;
            }
            let time = b.time_for(cost);
            if lent_at >= lent.since {
                lent.now = lent.now.checked_sub(time.us)?;
            } else {
                lent.before = lent.before.checked_sub(time.us)?;
            }
            let needed = Span::whole(now + b.lend_time() + lent.before + lent.now);
            let lower = tat.minus(time, b.amount).max(needed);
            (lower < tat).then_some(RuleState::Bucket {
                limit,
                amount,
                period,
                tat: lower,
                lent,
            })
        }
        (Rule::Allowance { .. }, RuleState::Allowance { limit, used }) => {
            Some(RuleState::Allowance {
                limit,
                used: used.checked_sub(cost)?,
            })
        }
        // Another window's units are no longer good.
        (
            Rule::Fixed { .. },
            RuleState::Fixed {
                limit,
                period,
                start,
                count,
                end,
            },
        ) if lent_at >= start => Some(RuleState::Fixed {
            limit,
            period,
            start,
            count: count.checked_sub(cost)?,
            end,
        }),
        (
            Rule::Sliding { .. },
            RuleState::Sliding {
                limit,
                period,
                start,
                before,
                count,
            },
        ) if lent_at >= start => Some(RuleState::Sliding {
            limit,
            period,
            start,
            before,
            count: count.checked_sub(cost)?,
        }),
        _ => None,
    }
}
