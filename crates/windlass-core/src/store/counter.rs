//! Counters: what a store decides about them.

use std::fmt;
use std::sync::Arc;

use super::Pending;
use crate::error::{Error, ErrorKind};
use crate::name::Name;
use crate::rules::counter::{Addition, Sum};

/// Counters: one number for all.
pub trait CounterStore: Send + Sync + fmt::Debug {
    /// Adds to a counter, unless that goes beyond a bound; 0 is a look. With an operation that was
    /// done before, nothing happens and its answer is given again.
    fn add(&self, ask: CounterRequest) -> Pending<'_, Counted>;

    /// Forgets the counter. Says what its value was.
    fn reset(&self, name: Name) -> Pending<'_, i64>;
}

/// What is asked of a counter.
#[derive(Clone, Debug)]
pub struct CounterRequest {
    /// Which one.
    pub name: Name,
    /// What to add.
    pub addition: Addition,
    /// To be done once only.
    pub operation: Option<Operation>,
}

/// Something that is done once, however often it is asked for.
#[derive(Clone, Debug)]
pub struct Operation {
    /// What it is known by.
    pub id: Arc<str>,
    /// Which of several under this id, made one after the other, each once; 0 if it is the only one.
    pub number: u64,
    /// For how long, in microseconds.
    pub remember: u64,
}

/// What became of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "what was refused was not counted"]
pub struct Counted {
    /// The value afterwards.
    pub value: i64,
    /// Whether it was added, now or when the operation was first done.
    pub added: bool,
    /// Whether the operation had been done before: then `value` is what it was right after that.
    pub repeated: bool,
}

pub fn other_kind() -> Error {
    Error::new(
        ErrorKind::WrongType,
        "call",
        "a counter of another kind has this name: plain, or with another window",
    )
    .with_hint("choose another name, or reset the counter first")
}

impl Counted {
    pub fn of(sum: Sum, repeated: bool) -> Counted {
        Counted {
            value: sum.value,
            added: sum.added,
            repeated,
        }
    }
}

pub fn other_amount(before: i64) -> Error {
    Error::invalid(
        "call",
        format!("the operation of this id was done before, with another amount: {before}"),
    )
    .with_hint("use a fresh id for each operation")
}
