//! Gates: what a resource has seen.

use std::fmt;
use std::time::Duration;

use super::Pending;
use crate::Fence;
use crate::name::Name;

/// Gates: what a resource has seen.
pub trait GateStore: Send + Sync + fmt::Debug {
    /// Admits `fence` unless a higher one was admitted within `remember`.
    fn admit(&self, name: Name, fence: Fence, remember: Duration) -> Pending<'_, Admission>;
}

/// A gate's answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "a stale write must not go ahead"]
pub enum Admission {
    /// No higher fence was seen.
    Admitted,
    /// A higher fence was seen: the caller's lease is history.
    Stale {
        /// The highest fence seen.
        highest: Fence,
    },
}

impl Admission {
    /// Whether the write may go ahead.
    pub fn is_admitted(self) -> bool {
        self == Admission::Admitted
    }
}
