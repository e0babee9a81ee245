//! The traits that a store implements.
//!
//! A store takes *whole decisions* ("grant this lock?", "allow this request?"), each in one atomic
//! step. Waiting, renewing, retrying, timing out and cleaning up are written once, above the
//! stores, in the `windlass` crate. No type of a driver crosses these traits.
//!
//! [`Backend`] is an open store; its methods return one trait object per group of primitives.
//! [`ClaimStore`], [`GateStore`], [`LatchStore`] and [`NotificationStore`] are coordination, which
//! every store has (a quorum lacks latches). The others are optional: their defaults return
//! [errors](unsupported) that name the stores to use instead.

mod bloom;
pub mod claims;
pub mod counter;
mod gate;
mod inventory;
pub mod latch;
pub mod limit;
pub mod notification;
mod occupancy;
mod once;
mod permissions;
mod replicas;
mod seen;
pub mod topic;
pub mod unsupported;
mod wake_up;

pub use crate::pattern::matches;
pub use bloom::BloomStore;
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
    AcquireRequest, Acquired, AcquiredAll, ClaimStore, Kind, MAX_READERS, OnBusy, OnSizeMismatch,
    Order, Refusal, Released, Renewal, Renewed, SameOwner, Share,
};
pub use gate::{Admission, GateState, GateStore};
pub use inventory::{DataKind, InventoryStore, NamePage};
pub use latch::{CountedDown, LatchSpec, LatchState, LatchStore, PastGeneration, Reset};
pub use notification::{Channel, NotificationStore, Subscriber, SubscriptionHandle};
pub use occupancy::{Holder, Occupancy};
pub use wake_up::{GrantListener, NoListener, WakeAddress, WakeUpPolicy};

use crate::error::Result;
use crate::{Drift, Fence, FenceStrength};

/// The reply of a store.
pub type Pending<'a, T> = Pin<Box<dyn Future<Output = Result<T>> + Send + 'a>>;

/// An opened store.
pub trait Backend: Send + Sync + fmt::Debug {
    /// Its URL, without credentials: `redis://127.0.0.1:6379/0`.
    fn address(&self) -> &str;

    /// Its properties.
    fn capabilities(&self) -> Capabilities;

    /// Locks, semaphores and everything else that is held for a TTL.
    fn claims(&self) -> Arc<dyn ClaimStore>;

    /// Gates: the highest fence that a resource has seen.
    fn gates(&self) -> Arc<dyn GateStore>;

    /// Count-down latches.
    fn latches(&self) -> Arc<dyn LatchStore>;

    /// Notifications of state changes.
    fn notifications(&self) -> Arc<dyn NotificationStore>;

    /// The names of what is stored, besides claims and limiters.
    fn inventory(&self) -> Arc<dyn InventoryStore>;

    /// Counters. Like all that follow, not supported unless the backend overrides it.
    fn counters(&self) -> Arc<dyn counter::CounterStore> {
        Arc::new(unsupported::UnsupportedStore(self.capabilities().kind))
    }

    /// Rate limiters.
    fn limits(&self) -> Arc<dyn limit::LimitStore> {
        Arc::new(unsupported::UnsupportedStore(self.capabilities().kind))
    }

    /// Bloom filters.
    fn blooms(&self) -> Arc<dyn BloomStore> {
        Arc::new(unsupported::UnsupportedStore(self.capabilities().kind))
    }

    /// Permissions.
    fn permissions(&self) -> Arc<dyn PermissionStore> {
        Arc::new(unsupported::UnsupportedStore(self.capabilities().kind))
    }

    /// Deduplication windows.
    fn seen(&self) -> Arc<dyn SeenStore> {
        Arc::new(unsupported::UnsupportedStore(self.capabilities().kind))
    }

    /// Records of idempotent execution.
    fn onces(&self) -> Arc<dyn OnceStore> {
        Arc::new(unsupported::UnsupportedStore(self.capabilities().kind))
    }

    /// Topics: publish and subscribe.
    fn topics(&self) -> Arc<dyn TopicStore> {
        Arc::new(unsupported::UnsupportedStore(self.capabilities().kind))
    }

    /// The replicas that must acknowledge a grant, if the URL sets them.
    fn replicas(&self) -> Option<Replicas> {
        None
    }

    /// What a wake-up of this store is worth.
    fn wake_up_policy(&self) -> WakeUpPolicy {
        WakeUpPolicy::Trust
    }

    /// The longest TTL that the store allows, if the URL sets it.
    fn max_ttl(&self) -> Option<std::time::Duration> {
        None
    }

    /// The clock drift to allow for, if the URL sets it.
    fn drift(&self) -> Option<Drift> {
        None
    }

    /// Diagnoses the store for `windlass doctor`: version, persistence, clocks, configuration.
    fn diagnose(&self) -> Pending<'_, Vec<Finding>>;
}

/// The properties of a backend, as `windlass doctor` prints them.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct Capabilities {
    /// Its kind: `memory`, `file`, `redis`, ….
    pub kind: &'static str,
    /// The guarantee of its fences.
    pub fences: FenceStrength,
    /// Which processes can share it.
    pub reach: &'static str,
    /// What happens to held locks when the store's process or machine stops.
    pub durability: &'static str,
}

impl Capabilities {
    /// The properties of a backend.
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

/// One line of the diagnosis by `windlass doctor`.
#[derive(Clone, Debug)]
#[non_exhaustive]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct Finding {
    /// How much it matters.
    pub severity: Severity,
    /// What was checked: `version`, `persistence`, …
    pub topic: &'static str,
    /// What was found, and what it means for a lock.
    pub message: String,
}

/// How much a [`Finding`] matters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "kebab-case"))]
pub enum Severity {
    /// As it should be, or neutral.
    Fine,
    /// The store works, with a weakness that the operator should know about.
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

    /// That the store has issued its highest fence, if it has: no higher one is granted. `advice`
    /// says what to do about it.
    pub fn of_exhausted_fences(last: u64, advice: &str) -> Option<Finding> {
        let max = Fence::MAX;
        (last >= max.get()).then(|| {
            let message = format!(
                "the last is {last}, and none above {max} is granted: every lock is refused. {advice}"
            );
            Finding::new(Severity::Problem, "last fence", message)
        })
    }
}
