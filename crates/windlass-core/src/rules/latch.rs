//! Latches: start a generation, count down.

use std::collections::HashSet;

use crate::Moment;
use crate::store::{CountedDown, LatchSpec, LatchState, PastGeneration, Reset};

/// A latch in memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LatchRecord {
    /// The public state.
    pub state: LatchState,
    /// The operations counted in this generation: at most its count.
    pub counted: HashSet<u128>,
    /// When it may be forgotten.
    pub until: Moment,
}

/// The change that a decision makes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LatchChange {
    /// Nothing.
    None,
    /// A new generation: the operations of the old one are dropped.
    Begin(LatchState),
    /// The operation was counted.
    Count(LatchState),
}

impl LatchChange {
    /// Whether subscribers are notified: a generation has started, or its count has reached zero.
    pub fn is_notified(&self) -> bool {
        match self {
            LatchChange::None => false,
            LatchChange::Begin(_) => true,
            LatchChange::Count(state) => state.remaining == 0,
        }
    }
}

/// Starts a generation.
pub fn reset(latch: Option<&LatchState>, terms: &LatchSpec, count: u32) -> (Reset, LatchChange) {
    let mut past = Vec::new();
    if let Some(now) = latch {
        if now.generation == *terms.generation {
            let outcome = match now.count == count {
                true => Reset::Known {
                    remaining: now.remaining,
                },
                false => Reset::OtherCount { count: now.count },
            };
            return (outcome, LatchChange::None);
        }
        if now.ended(&terms.generation).is_some() {
            let present = now.generation.clone();
            return (Reset::Over { present }, LatchChange::None);
        }
        past.push(PastGeneration {
            generation: now.generation.clone(),
            opened: now.remaining == 0,
        });
        past.extend(now.past.iter().take(LatchState::MAX_PAST - 1).cloned());
    }
    let started = LatchState::new(terms.generation.to_string(), count, count, past);
    (Reset::Begun, LatchChange::Begin(started))
}

/// Counts down. `is_known` says that the operation was counted before.
pub fn count_down(
    latch: Option<&LatchState>,
    terms: &LatchSpec,
    by: u32,
    is_known: bool,
) -> (CountedDown, LatchChange) {
    let Some(now) = latch.filter(|now| now.generation == *terms.generation) else {
        let present = latch.map(|now| now.generation.clone());
        return (CountedDown::OtherGeneration { present }, LatchChange::None);
    };
    let remaining = now.remaining;
    if is_known {
        return (CountedDown::To { remaining }, LatchChange::None);
    }
    match remaining.checked_sub(by) {
        None => (CountedDown::BelowZero { remaining }, LatchChange::None),
        Some(remaining) => {
            let mut state = now.clone();
            state.remaining = remaining;
            (CountedDown::To { remaining }, LatchChange::Count(state))
        }
    }
}
