//! Where state lives: the store traits and the backends behind them.
//!
//! A store answers *whole decisions*, each in one indivisible step; waiting, renewing, retrying
//! and cleaning up are written once, above. No type of a driver crosses these traits.

mod bloom;
mod claims;
pub mod counter;
#[cfg(feature = "etcd")]
pub(crate) mod etcd;
#[cfg(feature = "file")]
pub(crate) mod file;
pub(crate) mod latch;
pub mod limit;
pub(crate) mod memory;
pub(crate) mod news;
mod once;
mod permissions;
#[cfg(feature = "redis")]
pub(crate) mod quorum;
#[cfg(feature = "redis")]
pub(crate) mod redis;
pub(crate) mod refused;
mod replicas;
pub mod rules;
mod seen;
#[cfg(any(feature = "redis", feature = "zookeeper"))]
pub(crate) mod skew;
pub(crate) mod topic;
pub(crate) mod url;
#[cfg(feature = "zookeeper")]
pub(crate) mod zookeeper;

pub use bloom::{BloomStore, Filled};
pub use once::{Kept, OnceStore, Record, Started};
pub use permissions::{Change, Cursor, Field, Page, PermissionStore, Wanted};
pub use replicas::{Acknowledged, Replicas};
pub use seen::SeenStore;
pub use topic::TopicStore;

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

pub use claims::{
    Acquired, AcquiredAll, Ask, ClaimStore, Holder, IfHeld, IfOtherSize, Kind, Occupancy, Order,
    Refusal, Released, Renewal, Renewed, SameOwner, Share, WakeAddress, WakeUps,
};
pub use latch::{CountedDown, LatchState, LatchStore, LatchTerms, PAST_GENERATIONS, Past, Reset};
pub use news::{Channel, Hears, Listening, NewsStore};

use crate::error::Result;
use crate::lease::{Drift, Fence, FenceStrength};
use crate::name::Name;

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
    fn news(&self) -> Arc<dyn NewsStore>;

    /// Its counters. Flow and data are refused by a backend that says nothing of them.
    fn counters(&self) -> Arc<dyn counter::CounterStore> {
        Arc::new(refused::Refused(self.capabilities().kind))
    }

    /// Its limiters.
    fn limits(&self) -> Arc<dyn limit::LimitStore> {
        Arc::new(refused::Refused(self.capabilities().kind))
    }

    /// Its Bloom filters.
    fn blooms(&self) -> Arc<dyn BloomStore> {
        Arc::new(refused::Refused(self.capabilities().kind))
    }

    /// Its permissions.
    fn permissions(&self) -> Arc<dyn PermissionStore> {
        Arc::new(refused::Refused(self.capabilities().kind))
    }

    /// What was seen.
    fn seen(&self) -> Arc<dyn SeenStore> {
        Arc::new(refused::Refused(self.capabilities().kind))
    }

    /// What was done once.
    fn onces(&self) -> Arc<dyn OnceStore> {
        Arc::new(refused::Refused(self.capabilities().kind))
    }

    /// Its topics.
    fn topics(&self) -> Arc<dyn TopicStore> {
        Arc::new(refused::Refused(self.capabilities().kind))
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
    pub(crate) fn new(
        severity: Severity,
        topic: &'static str,
        message: impl Into<String>,
    ) -> Finding {
        Finding {
            severity,
            topic,
            message: message.into(),
        }
    }
}

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

/// Whether `name` matches `pattern`, where `*` stands for any text and `?` for one character.
pub(crate) fn matches(pattern: &str, name: &str) -> bool {
    let (pattern, name): (Vec<char>, Vec<char>) =
        (pattern.chars().collect(), name.chars().collect());
    let (mut p, mut n) = (0, 0);
    let mut star: Option<(usize, usize)> = None;
    while n < name.len() {
        if p < pattern.len() && pattern[p] == '*' {
            star = Some((p, n));
            p += 1;
        } else if p < pattern.len() && (pattern[p] == '?' || pattern[p] == name[n]) {
            p += 1;
            n += 1;
        } else if let Some((star_p, star_n)) = star {
            p = star_p + 1;
            n = star_n + 1;
            star = Some((star_p, star_n + 1));
        } else {
            return false;
        }
    }
    pattern[p..].iter().all(|&c| c == '*')
}

#[cfg(test)]
mod tests {
    use super::matches;

    #[test]
    fn patterns() {
        assert!(matches("*", ""));
        assert!(matches("*", "anything"));
        assert!(matches("job/*", "job/1"));
        assert!(matches("*/1", "job/1"));
        assert!(matches("j?b/*/x", "job/a/b/x"));
        assert!(!matches("j?b", "jb"));
        assert!(!matches("job", "job/1"));
        assert!(matches("a*b*c", "a1b2b3c"));
        assert!(matches("[x]", "[x]"), "brackets mean themselves");
    }
}
