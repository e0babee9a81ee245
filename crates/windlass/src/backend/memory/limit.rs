//! Limiters in memory.

use std::borrow::Borrow;
use std::future::ready;

use super::World;
use crate::backend::Pending;
use crate::backend::limit::{LimitAsk, LimitStore, Verdict, mismatch};
use crate::backend::rules::limit::{self as rules, Rule, States, Want};
use crate::error::Result;
use crate::lease::Clock;
use crate::name::Name;

/// What is kept of one limiter.
pub(super) struct Limit {
    states: States,
    ends: u64,
}

impl Borrow<str> for Name {
    fn borrow(&self) -> &str {
        self.as_str()
    }
}

pub(super) fn micros(clock: &Clock) -> u64 {
    clock.now().as_nanos() / 1_000
}

impl World {
    pub(crate) fn decide_alone(&self, ask: &LimitAsk) -> Result<Verdict> {
        let name = &ask.name;
        self.limit(name.as_str(), &ask.rules, &ask.want, || name.clone())
    }

    fn limit(
        &self,
        name: &str,
        rules: &[Rule],
        want: &Want,
        owned: impl FnOnce() -> Name,
    ) -> Result<Verdict> {
        let mut shard = self.limits.of_text(name);
        // Within the critical section: time does not go backwards from one decision to the next.
        let now = micros(&self.clock);
        let fresh = States::default();
        let known = shard.map.get_mut(name);
        let (stored, until) = match &known {
            Some(limit) if limit.ends > now => (&limit.states, limit.ends),
            _ => (&fresh, now),
        };
        let outcome = rules::decide(rules, stored, now, want).map_err(mismatch)?;
        if outcome.changed {
            let ends = rules::ends(rules, &outcome.states, now, until);
            let states = outcome.states.clone();
            let limit = Limit { states, ends };
            match known {
                Some(known) => *known = limit,
                None => {
                    shard.sweep(|limit| limit.ends <= now);
                    shard.map.insert(owned(), limit);
                }
            }
        }
        Ok(Verdict {
            granted: outcome.granted,
            now,
            states: outcome.states,
        })
    }
}

impl LimitStore for World {
    fn decide(&self, ask: LimitAsk) -> Pending<'static, Verdict> {
        Box::pin(ready(self.decide_alone(&ask)))
    }

    fn decide_all(&self, asks: Vec<LimitAsk>) -> Pending<'_, Vec<Result<Verdict>>> {
        let each = |ask| self.decide_alone(ask);
        Box::pin(ready(Ok(asks.iter().map(each).collect())))
    }

    fn decide_here(&self, name: &str, rules: &[Rule], want: &Want) -> Option<Result<Verdict>> {
        Some(self.limit(name, rules, want, || Name::checked(name)))
    }

    fn reset(&self, name: Name) -> Pending<'_, bool> {
        let mut shard = self.limits.of(&name);
        let now = micros(&self.clock);
        let gone = shard.map.remove(&name);
        Box::pin(ready(Ok(gone.is_some_and(|limit| limit.ends > now))))
    }
}
