//! Counters.

use std::fmt;
use std::sync::Arc;

use super::Pending;
use crate::error::{Error, ErrorKind};
use crate::name::Name;
use crate::rules::counter::{Addition, Sum};

/// Stores counters.
pub trait CounterStore: Send + Sync + fmt::Debug {
    /// Adds to a counter, unless the sum would be out of bounds. Adding 0 reads the value. If the
    /// same operation was done before, nothing changes and its outcome is returned again.
    fn add(&self, request: CounterRequest) -> Pending<'_, Counted>;

    /// Removes the counter. Returns its last value.
    fn reset(&self, name: Name) -> Pending<'_, i64>;
}

/// A change of a counter.
#[derive(Clone, Debug)]
pub struct CounterRequest {
    /// The name of the counter.
    pub name: Name,
    /// The amount, and its bounds.
    pub addition: Addition,
    /// Makes the change idempotent.
    pub operation: Option<Operation>,
}

/// Identifies a change that is made once, however often it is requested.
#[derive(Clone, Debug)]
pub struct Operation {
    /// The operation id.
    pub id: Arc<str>,
    /// The position in a sequence of changes under this id, each made once; 0 if there is only one.
    pub number: u64,
    /// How long the outcome is kept, in microseconds.
    pub remember: u64,
}

/// The outcome of a [`CounterRequest`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "a change that is out of bounds was not made"]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Counted {
    /// The value afterwards.
    pub value: i64,
    /// Whether the amount was added, now or when the operation was first done.
    pub added: bool,
    /// Whether the operation had been done before: then `value` is that of then.
    pub repeated: bool,
}

/// The name has a counter of another kind.
pub fn other_kind() -> Error {
    Error::new(
        ErrorKind::WrongType,
        "call",
        "this name has a counter of another kind: one without a window, or with another window",
    )
    .with_hint("choose another name, or reset the counter first")
}

impl Counted {
    /// The outcome of an addition.
    pub fn of(sum: Sum, repeated: bool) -> Counted {
        Counted {
            value: sum.value,
            added: sum.added,
            repeated,
        }
    }
}

/// The operation id was used before, with another amount.
pub fn other_amount(before: i64) -> Error {
    Error::invalid(
        "call",
        format!("the operation with this id was done before with another amount: {before}"),
    )
    .with_hint("use a fresh id for each operation")
}
