//! [`Forecast`]: what the store can grant, by its last reply.
//!
//! A reply contains the state of the limiter and the store's time, and the rules are the same here as there. So until
//! another client changes the state, this process knows what the store would answer. A forecast is never a reason to
//! allow; it sizes requests, and denies what the store would deny.

use std::time::Duration;

use crate::lease::Moment;
use windlass_core::rules::limit::{LimitOp, Rule, RuleStates, advance, decide, status};
use windlass_core::store::limit::LimitOutcome;

#[derive(Debug)]
pub(super) struct Forecast {
    /// After the requests that are under way.
    states: RuleStates,
    /// The store's time of the reply.
    store_time: u64,
    /// When its request was sent. Another request reaches the store as long after that one as it was sent after it,
    /// if both travel equally long.
    sent: Moment,
    /// When the last request was sent that is under way.
    last: Moment,
}

impl Forecast {
    pub(super) fn new(outcome: &LimitOutcome, sent: Moment) -> Forecast {
        Forecast {
            states: outcome.states.clone(),
            store_time: outcome.now,
            sent,
            last: sent,
        }
    }

    pub(super) fn sent(&self) -> Moment {
        self.sent
    }

    /// The store's time when a request that is sent at `sent` reaches it.
    fn store_time(&self, sent: Moment) -> u64 {
        self.store_time + sent.since(self.sent).as_micros() as u64
    }

    /// Applies a request that is under way. Returns what it will be granted.
    pub(super) fn apply(&mut self, rules: &[Rule], sent: Moment, op: &LimitOp) -> u64 {
        match decide(rules, &self.states, self.store_time(sent), op) {
            Ok(outcome) => {
                self.last = self.last.max(sent);
                self.states = outcome.states;
                outcome.granted.unwrap_or(0)
            }
            // Another client uses the name with another algorithm, which the store will report.
            Err(_) => 0,
        }
    }

    /// How many units a request that is sent at `sent` can lease for this time.
    pub(super) fn leasable(&self, rules: &[Rule], sent: Moment, life: Duration) -> u64 {
        let now = self.store_time(sent);
        let Ok(states) = advance(rules, &self.states, now) else {
            return 0;
        };
        let each = |(i, rule): (usize, &Rule)| match states.get(i) {
            Some(state) => rule.leasable(state, now, life.as_micros() as u64),
            None => 0,
        };
        rules.iter().enumerate().map(each).min().unwrap_or(0)
    }

    /// How long after the reply's request one for this many units must be sent to be granted; `None` if it never will
    /// be.
    pub(super) fn wait(&self, rules: &[Rule], units: u64) -> Option<Duration> {
        let now = self.store_time(self.last);
        let states = advance(rules, &self.states, now).ok()?;
        let wait = status(rules, &states, now, units).retry_after?;
        let before = match wait {
            // It could have been sent before the last one; that is not worth knowing.
            0 => Duration::ZERO,
            _ => self.last.since(self.sent),
        };
        Some(before + Duration::from_micros(wait))
    }
}
