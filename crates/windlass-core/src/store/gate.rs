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
