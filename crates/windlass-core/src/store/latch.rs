//! Count-down latches. A latch opens when its count reaches zero; a new generation closes it again.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use super::Pending;
use crate::name::Name;

/// The kind of a latch in stored keys and notification channels.
pub const CHANNEL: &str = "latch";

/// Stores latches. Each call is one atomic decision.
pub trait LatchStore: Send + Sync + fmt::Debug {
    /// Starts a generation, unless it has started already.
    fn reset(&self, terms: LatchSpec, count: u32) -> Pending<'_, Reset>;

    /// Counts down by `by`. Repeating an `operation` changes nothing, so that a call whose reply
    /// was lost can be repeated.
    fn count_down(&self, terms: LatchSpec, by: u32, operation: u128) -> Pending<'_, CountedDown>;

    /// Reads the state. `None` if there is no such latch.
    fn inspect(&self, name: Name) -> Pending<'_, Option<LatchState>>;
}

/// A generation of a latch, and its retention.
#[derive(Clone, Debug)]
pub struct LatchSpec {
    /// The name of the latch.
    pub name: Name,
    /// The generation.
    pub generation: Arc<str>,
    /// How long the latch is kept after its last change.
    pub keep: Duration,
}

/// The state of a latch.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct LatchState {
    /// The current generation.
    pub generation: String,
    /// The count that it started with.
    pub count: u32,
    /// The remaining count; at zero the latch is open.
    pub remaining: u32,
    /// The generations before it, the latest first, at most [`LatchState::MAX_PAST`]. They cannot
    /// start again, so a late request does not undo its successors, and a client that waits for one
    /// learns how it ended.
    pub past: Vec<PastGeneration>,
}

/// A generation that has been replaced.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct PastGeneration {
    /// Its name.
    pub generation: String,
    /// Whether its count reached zero.
    pub opened: bool,
}

impl PastGeneration {
    /// A generation, and whether its count reached zero.
    pub fn new(generation: impl Into<String>, opened: bool) -> PastGeneration {
        PastGeneration {
            generation: generation.into(),
            opened,
        }
    }
}

impl LatchState {
    /// How many generations are kept besides the current one.
    pub const MAX_PAST: usize = 16;

    /// The state of a latch.
    pub fn new(
        generation: String,
        count: u32,
        remaining: u32,
        past: Vec<PastGeneration>,
    ) -> LatchState {
        LatchState {
            generation,
            count,
            remaining,
            past,
        }
    }

    /// How a past generation ended, if it is still known.
    pub fn ended(&self, generation: &str) -> Option<&PastGeneration> {
        self.past.iter().find(|past| past.generation == generation)
    }
}

/// Past generations as stores keep them: one line each, after `+` if it opened and `-` if not.
/// Names of generations have no line breaks.
pub fn write_past(past: &[PastGeneration]) -> String {
    let line = |past: &PastGeneration| {
        let mark = if past.opened { '+' } else { '-' };
        format!("{mark}{}", past.generation)
    };
    past.iter().map(line).collect::<Vec<_>>().join("\n")
}

/// The reverse of [`write_past`].
pub fn read_past(text: &str) -> Vec<PastGeneration> {
    let line = |line: &str| {
        let opened = line.starts_with('+');
        let generation = line.get(1..)?.to_owned();
        Some(PastGeneration { generation, opened })
    };
    text.lines().filter_map(line).collect()
}

/// The outcome of a request to start a generation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reset {
    /// It has started.
    Begun,
    /// It had started before, with the same count.
    Known {
        /// Its remaining count.
        remaining: u32,
    },
    /// It had started before, with another count.
    OtherCount {
        /// Its count.
        count: u32,
    },
    /// It is over: a later generation has replaced it.
    Over {
        /// The current generation.
        present: String,
    },
}

/// The outcome of a request to count down.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CountedDown {
    /// Counted, now or by the same operation before.
    To {
        /// The remaining count.
        remaining: u32,
    },
    /// Not counted: the remaining count is lower.
    BelowZero {
        /// The remaining count.
        remaining: u32,
    },
    /// Not counted: the latch has another generation, or none.
    OtherGeneration {
        /// The current generation.
        present: Option<String>,
    },
}
