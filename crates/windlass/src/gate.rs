//! [`Gate`]: rejects stale fencing tokens on the side of the resource.

use std::time::Duration;

use crate::coordinator::Coordinator;
use crate::lease::Fence;
use windlass_core::error::Result;
use windlass_core::name::Name;
use windlass_core::store::Admission;

/// Stores the highest [`Fence`] that a resource has seen, and rejects any lower one.
///
/// A process that is suspended past the end of its lease may resume and write after another client was
/// granted the lock. Put the gate where the write lands, and the stale write is rejected.
///
/// # Guarantees
///
/// `admit` is one atomic decision. It is as durable as the store. A resource that can store the highest fence beside
/// its own data, in the same transaction, should do that instead.
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
#[must_use = "a gate does nothing until a fence is admitted"]
pub struct Gate {
    coordinator: Coordinator,
    name: String,
    retention: Duration,
}

/// The longest retention that is stored; a longer one is shortened to it, because not every store's clock holds more.
const LONGEST_RETENTION: Duration = Duration::from_secs(100 * 365 * 24 * 60 * 60);

impl Gate {
    /// How long a gate keeps the highest fence, unless another [retention](Gate::retention) is set.
    pub const DEFAULT_RETENTION: Duration = Duration::from_secs(30 * 24 * 60 * 60);

    pub(crate) fn new(coordinator: Coordinator, name: &str) -> Gate {
        Gate {
            coordinator,
            name: name.to_owned(),
            retention: Gate::DEFAULT_RETENTION,
        }
    }

    /// How long the highest fence is kept after it was last admitted: longer than any holder can be suspended.
    /// 30 days by default.
    pub fn retention(mut self, retention: Duration) -> Gate {
        self.retention = retention;
        self
    }

    /// Admits `fence`, unless the gate has seen a higher one.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the fence may or may not have been admitted; calling again is harmless.
    pub async fn admit(&self, fence: Fence) -> Result<Admission> {
        let name = Name::new("admit", self.coordinator.namespace(), &self.name)?;
        let gates = self.coordinator.gates();
        let reply = gates.admit(name, fence, self.retention.min(LONGEST_RETENTION));
        self.coordinator.call("admit", &self.name, reply).await
    }
}
