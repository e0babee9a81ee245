//! Latches, as documents.

use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::documents::{Document, Documents};
use windlass_core::error::Result;
use windlass_core::name::Name;
use windlass_core::rules::latch::{self as rules, LatchChange};
use windlass_core::store::{
    CountedDown, LatchSpec, LatchState, LatchStore, PastGeneration, Pending, Reset,
};

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct LatchDocument {
    generation: String,
    count: u32,
    remaining: u32,
    past: Vec<(String, bool)>,
    /// The operations that were counted in this generation, by the lower half of each one's number.
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

#[derive(Debug)]
pub(super) struct ZooKeeperLatches {
    documents: Arc<Documents>,
}

impl ZooKeeperLatches {
    pub(super) fn new(documents: Arc<Documents>) -> ZooKeeperLatches {
        ZooKeeperLatches { documents }
    }

    /// Applies a rule, which receives the state and whether the operation was counted before.
    async fn update<T>(
        &self,
        spec: &LatchSpec,
        operation: Option<u128>,
        rule: impl Fn(Option<&LatchState>, bool) -> (T, LatchChange),
    ) -> Result<T> {
        let operation = operation.map(|number| number as u64);
        let decide = |stored: Option<&LatchDocument>, _| {
            let state = stored.map(LatchDocument::state);
            let counted = stored.map_or(&[][..], |stored| &stored.counted);
            let is_counted = operation.is_some_and(|number| counted.contains(&number));
            let (outcome, change) = rule(state.as_ref(), is_counted);
            let document = match change {
                LatchChange::None => None,
                LatchChange::Begin(state) => Some(LatchDocument::new(state, Vec::new(), spec.keep)),
                LatchChange::Count(state) => {
                    let counted = counted.iter().copied().chain(operation).collect();
                    Some(LatchDocument::new(state, counted, spec.keep))
                }
            };
            (outcome, document)
        };
        self.documents.update(spec.name.as_str(), decide).await
    }
}

impl LatchStore for ZooKeeperLatches {
    fn reset(&self, spec: LatchSpec, count: u32) -> Pending<'_, Reset> {
        Box::pin(async move {
            let rule = |state: Option<&LatchState>, _| rules::reset(state, &spec, count);
            self.update(&spec, None, rule).await
        })
    }

    fn count_down(&self, spec: LatchSpec, by: u32, operation: u128) -> Pending<'_, CountedDown> {
        Box::pin(async move {
            let rule = |state: Option<&LatchState>, is_counted| {
                rules::count_down(state, &spec, by, is_counted)
            };
            self.update(&spec, Some(operation), rule).await
        })
    }

    fn inspect(&self, name: Name) -> Pending<'_, Option<LatchState>> {
        Box::pin(async move {
            let stored: Option<LatchDocument> = self.documents.read(name.as_str()).await?;
            Ok(stored.map(|stored| stored.state()))
        })
    }
}
