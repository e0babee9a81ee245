//! Where state lives: the store traits and the backends behind them.
//!
//! A store answers *whole decisions*, each in one indivisible step; waiting, renewing, retrying
//! and cleaning up are written once, above. No type of a driver crosses these traits.

mod bloom;
mod claims;
pub mod counter;
mod gate;
pub mod latch;
pub mod limit;
pub mod notification;
mod once;
mod permissions;
mod replicas;
mod seen;
pub mod topic;
pub mod unsupported;

pub use crate::pattern::matches;
pub use bloom::{BloomStore, Filled};
pub use once::{OnceFinish, OnceRecord, OnceStart, OnceStore};
pub use permissions::{
    Field, FieldRead, FieldWrite, PermissionStore, ScanCursor, SubjectPage, page,
};
pub use replicas::{Acknowledged, Replicas};
pub use seen::SeenStore;
pub use topic::TopicStore;

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;

pub use claims::{
    AcquireRequest, Acquired, AcquiredAll, ClaimStore, GrantListener, Holder, Kind, MAX_READERS,
    NoListener, Occupancy, OnBusy, OnSizeMismatch, Order, Refusal, Released, Renewal, Renewed,
    SameOwner, Share, WakeAddress,
};
pub use gate::{Admission, GateStore};
pub use latch::{
    CountedDown, LatchSpec, LatchState, LatchStore, PAST_GENERATIONS, PastGeneration, Reset,
};
pub use notification::{Channel, NotificationStore, Subscriber, SubscriptionHandle};

use crate::error::Result;
use crate::{Drift, FenceStrength};

/// The answer of a store, on its way.
pub type Pending<'a, T> = Pin<Box<dyn Future<Output = Result<T>> + Send + 'a>>;

/// An opened store.
pub trait Backend: Send + Sync + fmt::Debug {
    /// What it is, without credentials: `redis://127.0.0.1:6379/0`.
    fn address(&self) -> &str;

    /// What it can do.
    fn capabilities(&self) -> Capabilities;

    /// Its locks, semaphores and all else that is held for a while.
    fn claims(&self) -> Arc<dyn ClaimStore>;

    /// Its gates.
    fn gates(&self) -> Arc<dyn GateStore>;

    /// Its latches.
    fn latches(&self) -> Arc<dyn LatchStore>;

    /// What it announces to those who listen.
    fn notifications(&self) -> Arc<dyn NotificationStore>;

    /// Its counters. Flow and data are refused by a backend that says nothing of them.
    fn counters(&self) -> Arc<dyn counter::CounterStore> {
        Arc::new(unsupported::Refused(self.capabilities().kind))
    }

    /// Its limiters.
    fn limits(&self) -> Arc<dyn limit::LimitStore> {
        Arc::new(unsupported::Refused(self.capabilities().kind))
    }

    /// Its Bloom filters.
    fn blooms(&self) -> Arc<dyn BloomStore> {
        Arc::new(unsupported::Refused(self.capabilities().kind))
    }

    /// Its permissions.
    fn permissions(&self) -> Arc<dyn PermissionStore> {
        Arc::new(unsupported::Refused(self.capabilities().kind))
    }

    /// What was seen.
    fn seen(&self) -> Arc<dyn SeenStore> {
        Arc::new(unsupported::Refused(self.capabilities().kind))
    }

    /// What was done once.
    fn onces(&self) -> Arc<dyn OnceStore> {
        Arc::new(unsupported::Refused(self.capabilities().kind))
    }

    /// Its topics.
    fn topics(&self) -> Arc<dyn TopicStore> {
        Arc::new(unsupported::Refused(self.capabilities().kind))
    }

    /// How many replicas must acknowledge a grant, if the URL says so.
    fn replicas(&self) -> Option<Replicas> {
        None
    }

    /// What clocks may disagree by, if the URL says so.
    fn drift(&self) -> Option<Drift> {
        None
    }

    /// Looks at the store as an operator would.
    fn examine(&self) -> Pending<'_, Vec<Finding>>;
}

/// What a backend is and offers.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Capabilities {
    /// `memory`, `file` or `redis`.
    pub kind: &'static str,
    /// How far fences can be trusted.
    pub fences: FenceStrength,
    /// Who can take part.
    pub reach: &'static str,
    /// What happens to held locks when the store's process or machine ends.
    pub durability: &'static str,
}

impl Capabilities {
    /// What a store is and offers.
    pub const fn new(
        kind: &'static str,
        fences: FenceStrength,
        reach: &'static str,
        durability: &'static str,
    ) -> Capabilities {
        Capabilities {
            kind,
            fences,
            reach,
            durability,
        }
    }
}

/// One line of a doctor's report.
#[derive(Clone, Debug)]
pub struct Finding {
    /// How bad it is.
    pub severity: Severity,
    /// What was looked at: `version`, `persistence`, …
    pub topic: &'static str,
    /// What was found, and what it means for a lock.
    pub message: String,
}

/// How much a [`Finding`] matters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Severity {
    /// Good, or neutral.
    Fine,
    /// Works, with a weakness that the operator should know.
    Warning,
    /// Locks cannot be relied upon.
    Problem,
}

impl Finding {
    pub fn new(severity: Severity, topic: &'static str, message: impl Into<String>) -> Finding {
        Finding {
            severity,
            topic,
            message: message.into(),
        }
    }
}
