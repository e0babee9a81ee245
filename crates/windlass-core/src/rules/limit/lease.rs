//! Leased units: charged now, and used a little later by a client that decides without the store.
//!
//! Units that are used late must not add up with units that were charged meanwhile. In a window
//! that is easy: leased units expire with the window. A sliding log counts a unit from the moment
//! at which it is taken, so it leases for no time at all: its units are taken. A bucket leases for the time that the client
//! asks for, up to a limit ([`Bucket::lease_time`]), and charges as if all units were used at the
//! end of it: its TAT (theoretical arrival time, when it is full again) is first moved to the end
//! of the lease, and then on by the time that the units take to refill.
//!
//! Why that is enough: imagine a second bucket of the same quota that is charged when units are
//! *used*, and call its TAT `used`. At any time `y`, with `out(y)` units leased and not expired,
//! `max(used, y) + time_for(out(y)) ≤ tat`: a lease moves `tat` to the end of its time and adds its
//! units, a use moves one unit from one term of the sum to the other, an expiry only lowers the
//! left side, and a charge without a lease raises both sides alike. And `tat` is never more than a
//! full bucket ahead of the clock. So the second bucket would have allowed every single use.
//!
//! Returning units lowers `tat`, so it must not go below what the other leases need: the end of a
//! longest lease that starts now, plus all units leased within the last lease time, which [`LeasedUnits`]
//! counts in two halves.
//!
//! [`LeasedUnits`]: super::state::LeasedUnits

use super::rule::{Bucket, Rule};
use super::state::LeasedUnits;
use super::{RuleState, Span};

impl Bucket {
    /// How long a lease can last, in microseconds: a quarter of the time in which the bucket
    /// refills. Up to three quarters of a burst can then be leased at once.
    pub fn lease_time(&self) -> u64 {
        self.full.us / 4
    }
}

impl Rule {
    /// How long units can be leased at most, in microseconds.
    pub fn longest_lease(&self) -> u64 {
        match self {
            Rule::Bucket(b) => b.lease_time(),
            Rule::Allowance { .. } => super::state::ALLOWANCE_RETENTION / 2,
            Rule::Fixed { period, .. } | Rule::Sliding { period, .. } => *period,
            Rule::Log { .. } => 0,
        }
    }

    /// How many units can be leased now for this time. The state is as of now.
    pub fn leasable(&self, state: &RuleState, now: u64, life: u64) -> u64 {
        match (self, state) {
            (Rule::Bucket(b), &RuleState::Bucket { tat, .. }) => {
                let start = tat.max(Span::whole(now + life.min(b.lease_time())));
                let latest = b.full.plus(Span::whole(now), b.amount);
                b.units_in(latest.minus(start, b.amount)).min(b.burst)
            }
            _ => self.status(state, now, 1).remaining,
        }
    }

    /// How long units leased at `now` for `life` may be used, in microseconds. The state is the one
    /// after the charge.
    pub fn lease_validity(&self, state: &RuleState, now: u64, life: u64) -> u64 {
        let longest = match (self, state) {
            (Rule::Bucket(b), _) => b.lease_time(),
            (Rule::Allowance { .. }, _) => self.longest_lease(),
            (Rule::Fixed { .. }, RuleState::Fixed { end, .. }) => end.saturating_sub(now),
            (Rule::Sliding { period, .. }, RuleState::Sliding { start, .. }) => {
                (start + period).saturating_sub(now)
            }
            _ => 0,
        };
        longest.min(life)
    }
}

/// The state after leasing; `None` if denied.
pub(super) fn charge(
    rule: &Rule,
    state: &RuleState,
    now: u64,
    cost: u64,
    life: u64,
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
    ) = (rule, state)
    else {
        return rule.charge(state, now, cost, 0);
    };
    let time = b.time_for(cost);
    let start = tat.max(Span::whole(now + life.min(b.lease_time())));
    let tat = start.plus(time, b.amount);
    let latest = b.full.plus(Span::whole(now), b.amount);
    let mut leased = rotate(leased, now, b.lease_time());
    leased.now += time.ceil();
    (cost <= b.burst && tat <= latest).then_some(RuleState::Bucket {
        limit,
        amount,
        period,
        tat,
        leased,
        refunds: refunds.clone(),
    })
}

/// Starts a new count when the current one is as old as a lease lasts.
fn rotate(leased: LeasedUnits, now: u64, duration: u64) -> LeasedUnits {
    if leased.since == 0 || now >= leased.since + 2 * duration {
        LeasedUnits {
            since: now,
            before: 0,
            now: 0,
        }
    } else if now >= leased.since + duration {
        LeasedUnits {
            since: now,
            before: leased.now,
            now: 0,
        }
    } else {
        leased
    }
}

/// Returns unused units that were leased at some time for another; `None` if none can be returned.
pub(super) fn return_units(
    rule: &Rule,
    state: &RuleState,
    now: u64,
    cost: u64,
    (leased_at, life): (u64, u64),
) -> Option<RuleState> {
    // The clock has stepped back: whether they have expired is not known.
    if leased_at > now {
        return None;
    }
    match (rule, state) {
        (
            Rule::Bucket(b),
            &RuleState::Bucket {
                limit,
                amount,
                period,
                tat,
                mut leased,
                ref refunds,
            },
        ) => {
            // Expired units are counted as used: the time that has passed since may have been
            // charged again.
            if leased.since == 0 || now >= leased_at + life.min(b.lease_time()) {
                return None;
            }
            let time = b.time_for(cost);
            if leased_at >= leased.since {
                leased.now = leased.now.checked_sub(time.us)?;
            } else {
                leased.before = leased.before.checked_sub(time.us)?;
            }
            let needed = Span::whole(now + b.lease_time() + leased.before + leased.now);
            let lower = tat.minus(time, b.amount).max(needed);
            (lower < tat).then_some(RuleState::Bucket {
                limit,
                amount,
                period,
                tat: lower,
                leased,
                refunds: refunds.clone(),
            })
        }
        (Rule::Allowance { .. }, &RuleState::Allowance { limit, used }) => {
            Some(RuleState::Allowance {
                limit,
                used: used.checked_sub(cost)?,
            })
        }
        // Units of an earlier window have expired.
        (
            Rule::Fixed { .. },
            &RuleState::Fixed {
                limit,
                period,
                start,
                count,
                end,
            },
        ) if leased_at >= start => Some(RuleState::Fixed {
            limit,
            period,
            start,
            count: count.checked_sub(cost)?,
            end,
        }),
        (
            Rule::Sliding { .. },
            &RuleState::Sliding {
                limit,
                period,
                start,
                before,
                count,
            },
        ) if leased_at >= start => Some(RuleState::Sliding {
            limit,
            period,
            start,
            before,
            count: count.checked_sub(cost)?,
        }),
        _ => None,
    }
}
