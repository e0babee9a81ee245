//! Counters in memory.

use std::future::ready;

use super::MemoryStore;
use super::limit::micros;
use crate::error::Result;
use crate::name::Name;
use crate::rules::counter::{self as rules, CounterState};
use crate::rules::operation::{Done, OtherAmount};
use crate::store::Pending;
use crate::store::counter::{Counted, CounterRequest, CounterStore, other_amount, other_kind};

/// An operation that was done, and for how long that is known.
pub(super) struct Known {
    done: Done,
    ends: u64,
}

impl MemoryStore {
    fn count(&self, ask: &CounterRequest) -> Result<Counted> {
        // Both are held until the end, always in this order.
        let mut counters = self.counters.of(&ask.name);
        let operation = ask
            .operation
            .as_ref()
            .map(|operation| Name::checked(&format!("{}\n{}", ask.name, operation.id)));
        let mut known = operation.as_ref().map(|name| self.counter_ops.of(name));
        let now = micros(&self.clock);
        if let (Some(asked), Some(name), Some(known)) = (&ask.operation, &operation, &known)
            && let Some(before) = known.map.get(name).filter(|before| before.ends > now)
            && let Some(answer) = before.done.answer(asked.number, ask.addition.amount)
        {
            return match answer {
                Ok(sum) => Ok(Counted::of(sum, true)),
                Err(OtherAmount(amount)) => Err(other_amount(amount)),
            };
        }
        let (sum, tally) = rules::add(counters.map.get(&ask.name), now, &ask.addition)
            .map_err(|_| other_kind())?;
        if let Some(tally) = tally {
            counters.sweep(|tally: &CounterState| tally.ends().is_some_and(|ends| ends <= now));
            counters.map.insert(ask.name.clone(), tally);
        }
        if let (Some(asked), Some(name), Some(known)) = (&ask.operation, operation, &mut known)
            && let Some(done) = Done::new(asked.number, ask.addition.amount, sum)
        {
            known.sweep(|known| known.ends <= now);
            let ends = now + asked.remember;
            known.map.insert(name, Known { done, ends });
        }
        Ok(Counted::of(sum, false))
    }
}

impl CounterStore for MemoryStore {
    fn add(&self, ask: CounterRequest) -> Pending<'_, Counted> {
        Box::pin(ready(self.count(&ask)))
    }

    fn reset(&self, name: Name) -> Pending<'_, i64> {
        let now = micros(&self.clock);
        let gone = self.counters.of(&name).map.remove(&name);
        Box::pin(ready(Ok(gone.map_or(0, |tally| tally.value(now)))))
    }
}
