//! What the store may grant, and what happens with the units that it granted.

use std::sync::Arc;
use std::time::Duration;

use super::LeasedLimiter;
use super::refill::{Refills, TokenLease, WaitingCheck};
use super::token_cache::TokenCache;
use super::unused::schedule_return;
use crate::lease::Moment;
use windlass_core::decision::{Basis, Decision};
use windlass_core::rules::limit::{LimitOp, Rule, status};
use windlass_core::store::limit::LimitOutcome;

/// The amounts that the store may grant, the largest first: at most `total`, and probably `free`. An amount that does
/// not serve all waiters serves the first of them exactly.
pub(super) fn amounts(waiters: &[WaitingCheck], total: u64, free: u64) -> Vec<u64> {
    let sums: Vec<u64> = waiters
        .iter()
        .scan(0, |sum, waiter| {
            *sum += waiter.units;
            Some(*sum)
        })
        .collect();
    let waiting = sums.last().copied().unwrap_or(0);
    let probable = total.min(free);
    let eighths = [8, 7, 6, 4, 3, 2, 1].map(|part| (u128::from(probable) * part / 8) as u64);
    let first = sums.first().copied().unwrap_or(1);
    let mut amounts: Vec<u64> = [total]
        .into_iter()
        .chain(eighths)
        .chain([probable / 16, probable / 64, first])
        .map(|amount| match amount > waiting {
            true => amount,
            false => sums[..sums.partition_point(|sum| *sum <= amount)]
                .last()
                .copied()
                .unwrap_or(first),
        })
        .collect();
    amounts.sort_unstable_by(|a, b| b.cmp(a));
    amounts.dedup();
    amounts
}

/// A reply of the store, and what it was sent for.
pub(super) struct GrantedUnits<'a> {
    pub(super) leased: &'a LeasedLimiter,
    pub(super) cache: &'a Arc<TokenCache>,
    pub(super) rules: &'a [Rule],
    pub(super) number: u64,
    pub(super) sent: Moment,
    pub(super) received: Moment,
    pub(super) op: &'a LimitOp,
    pub(super) outcome: &'a LimitOutcome,
    pub(super) basis: Basis,
}

impl GrantedUnits<'_> {
    /// Gives the units to the callers that wait for them, and the rest to the cache.
    pub(super) fn distribute(&self, refills: &mut Refills, waiters: Vec<WaitingCheck>) {
        let after = |micros: u64| self.received + Duration::from_micros(micros);
        let (rules, outcome, cache) = (self.rules, self.outcome, self.cache);
        let one = status(rules, &outcome.states, outcome.now, 1);
        cache.set_reset_at(after(one.reset_after.unwrap_or(0)));
        cache.set_retry_at(after(one.retry_after.unwrap_or(0)));
        let LimitOp::Lease(amounts, life) = self.op else {
            unreachable!("a refill leases")
        };
        let granted = outcome.granted.unwrap_or(0);
        if granted > 0 {
            refills.last_units = granted;
        }
        let short = amounts.first().is_some_and(|most| granted < *most);
        let until = match short {
            true => refills.pause(rules, self.received, refills.worthwhile(rules, 1)),
            false => self.received,
        };
        cache.deny_until(until);
        let mut left = granted;
        for waiter in waiters {
            let allowed = waiter.units <= left;
            let status = status(rules, &outcome.states, outcome.now, waiter.units);
            let decision = Decision::new(allowed, status, self.basis);
            // A caller that is gone takes nothing.
            if waiter.reply.send(Ok(decision)).is_ok() && allowed {
                left -= waiter.units;
            }
        }
        let valid_until = self.sent + self.valid_for(*life);
        if left == 0 || *life == 0 || self.received >= valid_until {
            return;
        }
        let lease = TokenLease {
            number: self.number,
            units: left,
            valid_until,
            leased_at: outcome.now,
            life: *life,
            mark: outcome.states.mark(),
        };
        refills.queued.push_back(lease);
        cache.set_more(true);
        // Tokens of the local fallback are not returned: the store did not charge them.
        if self.basis == Basis::Store {
            schedule_return(self.leased, cache, self.number, self.sent, valid_until);
        }
    }

    /// How long the tokens may be used, from before the request was sent; shortened by 1 %, because this clock may run
    /// slower than the store's.
    fn valid_for(&self, life: u64) -> Duration {
        let outcome = self.outcome;
        let each = |(i, rule): (usize, &Rule)| match outcome.states.get(i) {
            Some(state) => rule.lease_validity(state, outcome.now, life),
            None => 0,
        };
        let micros = self.rules.iter().enumerate().map(each).min().unwrap_or(0);
        Duration::from_micros(micros - micros / 100)
    }
}
