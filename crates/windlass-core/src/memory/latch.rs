//! Latches in memory.

use super::{MemoryStore, reply};
use crate::name::Name;
use crate::rules::latch::{self as rules, LatchChange, LatchRecord};
use crate::store::{Channel, CountedDown, LatchSpec, LatchState, LatchStore, Pending, Reset};

impl MemoryStore {
    fn decide_latch<T>(
        &self,
        terms: &LatchSpec,
        operation: Option<u128>,
        decision: impl FnOnce(Option<&LatchState>, bool) -> (T, LatchChange),
    ) -> T {
        let (outcome, change) = {
            let mut shard = self.latches.of(&terms.name);
            let now = self.clock.now();
            shard.sweep(|latch| latch.until <= now);
            let latch = shard.map.get(&terms.name).filter(|l| l.until > now);
            let known = latch
                .zip(operation)
                .is_some_and(|(l, o)| l.counted.contains(&o));
            let (outcome, change) = decision(latch.map(|l| &l.state), known);
            let until = now + terms.keep;
            match change.clone() {
                LatchChange::None => {}
                LatchChange::Begin(state) => {
                    let counted = Default::default();
                    let started = LatchRecord {
                        state,
                        counted,
                        until,
                    };
                    shard.map.insert(terms.name.clone(), started);
                }
                LatchChange::Count(state) => {
                    if let Some(latch) = shard.map.get_mut(&terms.name) {
                        latch.state = state;
                        latch.until = until;
                        latch.counted.extend(operation);
                    }
                }
            }
            (outcome, change)
        };
        if change.is_notified() {
            let (kind, name) = (crate::store::latch::CHANNEL, terms.name.clone());
            self.notify(&Channel { kind, name }, b"");
        }
        outcome
    }
}

impl LatchStore for MemoryStore {
    fn reset(&self, terms: LatchSpec, count: u32) -> Pending<'_, Reset> {
        let outcome =
            self.decide_latch(&terms, None, |latch, _| rules::reset(latch, &terms, count));
        reply(Ok(outcome))
    }

    fn count_down(&self, terms: LatchSpec, by: u32, operation: u128) -> Pending<'_, CountedDown> {
        let outcome = self.decide_latch(&terms, Some(operation), |latch, known| {
            rules::count_down(latch, &terms, by, known)
        });
        reply(Ok(outcome))
    }

    fn inspect(&self, name: Name) -> Pending<'_, Option<LatchState>> {
        let shard = self.latches.of(&name);
        let now = self.clock.now();
        let latch = shard.map.get(&name).filter(|l| l.until > now);
        reply(Ok(latch.map(|l| l.state.clone())))
    }
}
