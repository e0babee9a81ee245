//! Latches.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::Store;
use super::documents::Document;
use windlass_core::name::Name;
use windlass_core::rules::latch::{self as rules, LatchChange};
use windlass_core::store::{
    CountedDown, LatchSpec, LatchState, LatchStore, PastGeneration, Pending, Reset,
};

#[derive(Clone, Debug, Serialize, Deserialize)]
struct LatchDocument {
    generation: String,
    count: u32,
    remaining: u32,
    past: Vec<(String, bool)>,
    /// The operations that were counted in this generation: half of each one's number is enough to tell
    /// it from the others.
    counted: Vec<u64>,
    /// In milliseconds.
    keep: u64,
}

impl Document for LatchDocument {
    const FAMILY: &'static str = windlass_core::store::latch::CHANNEL;

    fn keep(&self) -> Duration {
        Duration::from_millis(self.keep)
    }
}

impl LatchDocument {
    fn state(&self) -> LatchState {
        let past = |(generation, opened): &(String, bool)| {
            PastGeneration::new(generation.clone(), *opened)
        };
        let past = self.past.iter().map(past).collect();
        LatchState::new(self.generation.clone(), self.count, self.remaining, past)
    }

    fn new(state: LatchState, counted: Vec<u64>, keep: Duration) -> LatchDocument {
        let past = state.past.into_iter();
        LatchDocument {
            generation: state.generation,
            count: state.count,
            remaining: state.remaining,
            past: past.map(|past| (past.generation, past.opened)).collect(),
            counted,
            keep: u64::try_from(keep.as_millis()).unwrap_or(u64::MAX),
        }
    }
}

impl Store {
    async fn decide_latch<T>(
        &self,
        terms: &LatchSpec,
        operation: Option<u128>,
        decision: impl Fn(Option<&LatchState>, bool) -> (T, LatchChange),
    ) -> windlass_core::error::Result<T> {
        let operation = operation.map(|number| number as u64);
        self.decide(terms.name.as_str(), |known: Option<&LatchDocument>, _| {
            let state = known.map(LatchDocument::state);
            let counted = known.map_or(&[][..], |known| &known.counted);
            let is_known = operation.is_some_and(|number| counted.contains(&number));
            let (outcome, change) = decision(state.as_ref(), is_known);
            let document = match change {
                LatchChange::None => None,
                LatchChange::Begin(state) => {
                    Some(LatchDocument::new(state, Vec::new(), terms.keep))
                }
                LatchChange::Count(state) => {
                    let counted = counted.iter().copied().chain(operation).collect();
                    Some(LatchDocument::new(state, counted, terms.keep))
                }
            };
            (outcome, document)
        })
        .await
    }
}

impl LatchStore for Store {
    fn reset(&self, terms: LatchSpec, count: u32) -> Pending<'_, Reset> {
        Box::pin(async move {
            let decision = |state: Option<&LatchState>, _| rules::reset(state, &terms, count);
            self.decide_latch(&terms, None, decision).await
        })
    }

    fn count_down(&self, terms: LatchSpec, by: u32, operation: u128) -> Pending<'_, CountedDown> {
        Box::pin(async move {
            let decision = |state: Option<&LatchState>, is_known| {
                rules::count_down(state, &terms, by, is_known)
            };
            self.decide_latch(&terms, Some(operation), decision).await
        })
    }

    fn look(&self, name: Name) -> Pending<'_, Option<LatchState>> {
        Box::pin(async move {
            let known: Option<LatchDocument> = self.peek(name.as_str()).await?;
            Ok(known.map(|known| known.state()))
        })
    }
}
