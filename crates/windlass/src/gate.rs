//! The check on the side of the resource.

use std::time::Duration;

use crate::coordinator::Coordinator;
use crate::lease::Fence;
use windlass_core::error::Result;
use windlass_core::name::Name;
use windlass_core::store::Admission;

/// Remembers the highest [`Fence`] that came to a resource, and refuses any lower one.
///
/// A lock keeps others out only as long as its holder knows the time. A holder that was paused
/// beyond its lease may wake up and write, long after somebody else was granted the lock. The gate
/// is the last line: put it where the write lands, and a stale write is refused.
///
/// # Guarantees
///
/// `admit` is one indivisible decision. It is as durable as the backend; a resource that can keep
/// the highest fence beside its own data, in the same transaction, should rather do that.
///
/// # Example
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> windlass::Result<()> {
/// let w = windlass::connect("memory:").await?;
/// let first = w.lock("stock").acquire().await?;
/// let stale = first.fence();
/// first.release().await?;
/// let second = w.lock("stock").acquire().await?;
///
/// let gate = w.gate("stock");
/// assert!(gate.admit(second.fence()).await?.is_admitted());
/// assert!(!gate.admit(stale).await?.is_admitted());
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
#[must_use = "a gate does nothing until a fence is shown to it"]
pub struct Gate {
    coordinator: Coordinator,
    name: String,
    remember: Duration,
}

/// How long a gate remembers after the last admission, unless told otherwise.
pub const DEFAULT_REMEMBER: Duration = Duration::from_secs(30 * 24 * 60 * 60);

/// Longer than this is for ever; a store's clock may not hold more.
const LONGEST: Duration = Duration::from_secs(100 * 365 * 24 * 60 * 60);

impl Gate {
    pub(crate) fn new(coordinator: Coordinator, name: &str) -> Gate {
        Gate {
            coordinator,
            name: name.to_owned(),
            remember: DEFAULT_REMEMBER,
        }
    }

    /// How long the highest fence is remembered after it was last admitted: longer than any holder
    /// could be asleep. 30 days by default.
    pub fn remember(mut self, time: Duration) -> Gate {
        self.remember = time;
        self
    }

    /// Admits `fence`, unless a higher one has been here.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the fence may or may not have been admitted; asking again is
    /// harmless.
    pub async fn admit(&self, fence: Fence) -> Result<Admission> {
        let name = Name::new("admit", self.coordinator.namespace(), &self.name)?;
        let gates = self.coordinator.gates();
        let answer = gates.admit(name, fence, self.remember.min(LONGEST));
        self.coordinator.call("admit", &self.name, answer).await
    }
}
