//! The decisions of a latch.

use std::collections::HashSet;

use crate::Moment;
use crate::store::{CountedDown, LatchSpec, LatchState, PAST_GENERATIONS, PastGeneration, Reset};

/// A latch in memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Latch {
    /// What others see.
    pub state: LatchState,
    /// The operations that have been counted in this generation: no more than its count.
    pub counted: HashSet<u128>,
    /// When it may be forgotten.
    pub until: Moment,
}

/// What a decision changes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// Nothing.
    None,
    /// A new generation: what was counted in the old one does not matter any more.
    Begin(LatchState),
    /// The operation was counted.
    Count(LatchState),
}

impl Change {
    /// Whether those who wait want to know: a generation has begun, or has come to zero.
    pub fn is_news(&self) -> bool {
        match self {
            Change::None => false,
            Change::Begin(_) => true,
            Change::Count(state) => state.remaining == 0,
        }
    }
}

/// Decides on a new generation.
pub fn reset(latch: Option<&LatchState>, terms: &LatchSpec, count: u32) -> (Reset, Change) {
    let mut past = Vec::new();
    if let Some(now) = latch {
        if now.generation == *terms.generation {
            let outcome = match now.count == count {
                true => Reset::Known {
                    remaining: now.remaining,
                },
                false => Reset::OtherCount { count: now.count },
            };
            return (outcome, Change::None);
        }
        if now.ended(&terms.generation).is_some() {
            let present = now.generation.clone();
            return (Reset::Over { present }, Change::None);
        }
        past.push(PastGeneration {
            generation: now.generation.clone(),
            opened: now.remaining == 0,
        });
        past.extend(now.past.iter().take(PAST_GENERATIONS - 1).cloned());
    }
    let begun = LatchState::new(terms.generation.to_string(), count, count, past);
    (Reset::Begun, Change::Begin(begun))
}

/// Decides on counting down, by an operation that `is_known` if it was counted before.
pub fn count_down(
    latch: Option<&LatchState>,
    terms: &LatchSpec,
    by: u32,
    is_known: bool,
) -> (CountedDown, Change) {
    let Some(now) = latch.filter(|now| now.generation == *terms.generation) else {
        let present = latch.map(|now| now.generation.clone());
        return (CountedDown::OtherGeneration { present }, Change::None);
    };
    let remaining = now.remaining;
    if is_known {
        return (CountedDown::To { remaining }, Change::None);
    }
    match remaining.checked_sub(by) {
        None => (CountedDown::BelowZero { remaining }, Change::None),
        Some(remaining) => {
            let mut state = now.clone();
            state.remaining = remaining;
            (CountedDown::To { remaining }, Change::Count(state))
        }
    }
}
