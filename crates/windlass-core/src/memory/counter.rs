//! Counters in memory.

use super::limit::micros;
use super::{MemoryStore, reply};
use crate::error::Result;
use crate::name::Name;
use crate::rules::counter::{self as rules, CounterState};
use crate::rules::operation::{Done, OtherAmount};
use crate::store::Pending;
use crate::store::counter::{Counted, CounterRequest, CounterStore, other_amount, other_kind};

/// The outcome of an operation, and until when it is kept.
pub(super) struct RecordedOperation {
    done: Done,
    ends: u64,
}

impl MemoryStore {
    fn count(&self, request: &CounterRequest) -> Result<Counted> {
        // Both shards stay locked until the end, always in this order.
        let mut counters = self.counters.of(&request.name);
        let operation = request
            .operation
            .as_ref()
            .map(|operation| Name::checked(&format!("{}\n{}", request.name, operation.id)));
        let mut known = operation.as_ref().map(|name| self.counter_ops.of(name));
        let now = micros(&self.clock);
        if let (Some(requested), Some(name), Some(known)) = (&request.operation, &operation, &known)
            && let Some(before) = known.map.get(name).filter(|before| before.ends > now)
            && let Some(answer) = before
                .done
                .answer(requested.number, request.addition.amount)
        {
            return match answer {
                Ok(sum) => Ok(Counted::of(sum, true)),
                Err(OtherAmount(amount)) => Err(other_amount(amount)),
            };
        }
        let (sum, state) = rules::add(counters.map.get(&request.name), now, &request.addition)
            .map_err(|_| other_kind())?;
        if let Some(state) = state {
            counters.sweep(|state: &CounterState| state.ends().is_some_and(|ends| ends <= now));
            counters.map.insert(request.name.clone(), state);
        }
        if let (Some(requested), Some(name), Some(known)) =
            (&request.operation, operation, &mut known)
            && let Some(done) = Done::new(requested.number, request.addition.amount, sum)
        {
            known.sweep(|known| known.ends <= now);
            let ends = now + requested.remember;
            known.map.insert(name, RecordedOperation { done, ends });
        }
        Ok(Counted::of(sum, false))
    }
}

impl CounterStore for MemoryStore {
    fn add(&self, request: CounterRequest) -> Pending<'_, Counted> {
        reply(self.count(&request))
    }

    fn reset(&self, name: Name) -> Pending<'_, i64> {
        let now = micros(&self.clock);
        let removed = self.counters.of(&name).map.remove(&name);
        reply(Ok(removed.map_or(0, |state| state.value(now))))
    }
}
