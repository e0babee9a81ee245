//! Counters in memory.

use std::future::ready;

use super::World;
use super::limit::micros;
use crate::backend::Pending;
use crate::backend::counter::{Counted, CounterAsk, CounterStore, other_amount, other_kind};
use crate::backend::rules::counter::{self as rules, Tally};
use crate::error::Result;
use crate::name::Name;

/// An operation that was done.
pub(super) struct Done {
    amount: i64,
    value: i64,
    ends: u64,
}

impl World {
    fn count(&self, ask: &CounterAsk) -> Result<Counted> {
        // Both are held until the end, always in this order.
        let mut counters = self.counters.of(&ask.name);
        let operation = ask
            .operation
            .as_ref()
            .map(|operation| Name::checked(&format!("{}\n{}", ask.name, operation.id)));
        let mut done = operation.as_ref().map(|name| self.counter_ops.of(name));
        let now = micros(&self.clock);
        if let (Some(name), Some(done)) = (&operation, &done)
            && let Some(before) = done.map.get(name).filter(|before| before.ends > now)
        {
            if before.amount != ask.addition.amount {
                return Err(other_amount(before.amount));
            }
            return Ok(Counted {
                value: before.value,
                added: true,
                repeated: true,
            });
        }
        let (sum, tally) = rules::add(counters.map.get(&ask.name), now, &ask.addition)
            .map_err(|_| other_kind())?;
        if let Some(tally) = tally {
            counters.sweep(|tally: &Tally| tally.ends().is_some_and(|ends| ends <= now));
            counters.map.insert(ask.name.clone(), tally);
        }
        if let (Some(operation), Some(name), Some(done)) = (&ask.operation, operation, &mut done)
            && sum.added
        {
            done.sweep(|done| done.ends <= now);
            let record = Done {
                amount: ask.addition.amount,
                value: sum.value,
                ends: now + operation.remember,
            };
            done.map.insert(name, record);
        }
        Ok(Counted {
            value: sum.value,
            added: sum.added,
            repeated: false,
        })
    }
}

impl CounterStore for World {
    fn add(&self, ask: CounterAsk) -> Pending<'_, Counted> {
        Box::pin(ready(self.count(&ask)))
    }

    fn reset(&self, name: Name) -> Pending<'_, i64> {
        let now = micros(&self.clock);
        let gone = self.counters.of(&name).map.remove(&name);
        Box::pin(ready(Ok(gone.map_or(0, |tally| tally.value(now)))))
    }
}
