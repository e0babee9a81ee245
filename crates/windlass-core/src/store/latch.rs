//! Latches: a count that goes down to zero once, for each generation anew.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use super::Pending;
use crate::name::Name;

/// The kind of a latch in keys and notification channels.
pub const CHANNEL: &str = "latch";

/// Latches. Each call is one indivisible decision.
pub trait LatchStore: Send + Sync + fmt::Debug {
    /// Begins a generation, unless it has begun already.
    fn reset(&self, terms: LatchSpec, count: u32) -> Pending<'_, Reset>;

    /// Takes `by` from what remains. The same `operation` again changes nothing, so that a call
    /// whose answer was lost can be repeated.
    fn count_down(&self, terms: LatchSpec, by: u32, operation: u128) -> Pending<'_, CountedDown>;

    /// Looks, and changes nothing. `None` if there is no such latch.
    fn look(&self, name: Name) -> Pending<'_, Option<LatchState>>;
}

/// Which latch, which generation of it, and how long it is kept.
#[derive(Clone, Debug)]
pub struct LatchSpec {
    /// Which latch.
    pub name: Name,
    /// Which generation.
    pub generation: Arc<str>,
    /// How long it is kept after it was last changed.
    pub keep: Duration,
}

/// What can be seen of a latch.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct LatchState {
    /// The present generation.
    pub generation: String,
    /// What it began with.
    pub count: u32,
    /// What is left; at zero the latch is open.
    pub remaining: u32,
    /// Those before it, the latest first, no more than [`PAST_GENERATIONS`]. They cannot begin again, so
    /// that a late request does not undo what came after it; and those who wait for one learn how it
    /// ended.
    pub past: Vec<PastGeneration>,
}

/// How many generations of a latch are remembered besides the present one.
pub const PAST_GENERATIONS: usize = 16;

/// A generation that is over.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct PastGeneration {
    /// Its name.
    pub generation: String,
    /// Whether it had come to zero.
    pub opened: bool,
}

impl PastGeneration {
    /// A generation, and whether it had come to zero.
    pub fn new(generation: impl Into<String>, opened: bool) -> PastGeneration {
        PastGeneration {
            generation: generation.into(),
            opened,
        }
    }
}

impl LatchState {
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

    /// How a generation ended that is over, if it is remembered.
    pub fn ended(&self, generation: &str) -> Option<&PastGeneration> {
        self.past.iter().find(|past| past.generation == generation)
    }
}

/// As stores keep it: one line each, with `+` in front if it had opened. No generation has a line
/// break in it.
pub fn write_past(past: &[PastGeneration]) -> String {
    let line = |past: &PastGeneration| {
        let mark = if past.opened { '+' } else { '-' };
        format!("{mark}{}", past.generation)
    };
    past.iter().map(line).collect::<Vec<_>>().join("\n")
}

/// The reverse.
pub fn read_past(text: &str) -> Vec<PastGeneration> {
    let line = |line: &str| {
        let opened = line.starts_with('+');
        let generation = line.get(1..)?.to_owned();
        Some(PastGeneration { generation, opened })
    };
    text.lines().filter_map(line).collect()
}

/// What became of a request to begin a generation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reset {
    /// It has begun.
    Begun,
    /// It had begun before, with the same count.
    Known {
        /// What is left of it.
        remaining: u32,
    },
    /// It had begun before, with another count.
    OtherCount {
        /// The count.
        count: u32,
    },
    /// It is over: another one has taken its ticket.
    Over {
        /// The present one.
        present: String,
    },
}

/// What became of a request to count down.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CountedDown {
    /// Counted, now or when the same operation came before.
    To {
        /// What is left.
        remaining: u32,
    },
    /// Not counted: less than that was left.
    BelowZero {
        /// What is left.
        remaining: u32,
    },
    /// Not counted: another generation has begun, or none has.
    OtherGeneration {
        /// The present one.
        present: Option<String>,
    },
}
