//! Gates: the highest fence that a resource has seen.

use std::fmt;
use std::time::Duration;

use super::Pending;
use crate::Fence;
use crate::name::Name;

/// Stores gates.
pub trait GateStore: Send + Sync + fmt::Debug {
    /// Admits `fence` unless a higher one was admitted within `remember`.
    fn admit(&self, name: Name, fence: Fence, remember: Duration) -> Pending<'_, Admission>;

    /// The state of a gate; `None` if it has admitted no fence, or its retention is over.
    fn inspect(&self, name: Name) -> Pending<'_, Option<GateState>>;

    /// Forgets the highest fence, and returns it.
    fn reset(&self, name: Name) -> Pending<'_, Option<Fence>>;

    /// The highest fence that the store can have issued for `name` by now, if its fences follow a
    /// clock: its counter or its clock in microseconds, whichever is higher. `None` for a store
    /// whose fences are small numbers: those of another store are higher, and no less genuine.
    fn highest_issued(&self, name: Name) -> Pending<'_, Option<Fence>>;
}

/// The state of a gate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct GateState {
    /// The highest fence admitted.
    pub highest: Fence,
    /// How long the gate keeps it, unless a fence is admitted again. [`Duration::MAX`] if it does not
    /// expire, because another program has removed the expiry.
    pub remaining: Duration,
}

impl GateState {
    /// The state of a gate.
    pub fn new(highest: Fence, remaining: Duration) -> GateState {
        GateState { highest, remaining }
    }
}

/// The decision of a gate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "a stale write must not proceed"]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "kebab-case"))]
pub enum Admission {
    /// No higher fence has been admitted: the write may proceed.
    Admitted,
    /// A higher fence has been admitted: the caller has lost its lease.
    Stale {
        /// The highest fence admitted.
        highest: Fence,
    },
}

impl Admission {
    /// Whether the write may proceed.
    pub fn is_admitted(self) -> bool {
        self == Admission::Admitted
    }
}
