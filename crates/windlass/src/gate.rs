//! [`Gate`]: rejects stale fencing tokens on the side of the resource.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::coordinator::Coordinator;
use crate::lease::Fence;
use windlass_core::error::{Error, Result};
use windlass_core::name::Name;
use windlass_core::rules::gate as rules;
use windlass_core::store::{Admission, GateState};

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

    /// How far a fence may be ahead of what the store can have issued: a day.
    pub const MAX_LEAD: Duration = rules::MAX_LEAD;

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
    /// # Errors
    ///
    /// [`InvalidInput`](windlass_core::error::ErrorKind::InvalidInput) if no store can have issued the fence: above
    /// [`Fence::MAX`], or, where the store's fences follow a clock (`file:`, Redis), more than
    /// [`MAX_LEAD`](Gate::MAX_LEAD) ahead of them. Such a fence would keep every genuine one out.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the fence may or may not have been admitted; calling again is harmless.
    pub async fn admit(&self, fence: Fence) -> Result<Admission> {
        let name = Name::new("admit", self.coordinator.namespace(), &self.name)?;
        self.refuse_too_high(&name, fence).await?;
        let gates = self.coordinator.gates();
        let reply = gates.admit(name, fence, self.retention.min(LONGEST_RETENTION));
        self.coordinator.call("admit", &self.name, reply).await
    }

    /// The highest fence admitted, and how long it is kept; `None` if there is none.
    pub async fn inspect(&self) -> Result<Option<GateState>> {
        let name = Name::new("inspect", self.coordinator.namespace(), &self.name)?;
        let reply = self.coordinator.gates().inspect(name);
        self.coordinator.call("inspect", &self.name, reply).await
    }

    /// Forgets the highest fence, and returns it. Until a new fence is admitted, the gate admits stale ones too.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the gate may or may not have been reset; calling again is harmless.
    pub async fn reset(&self) -> Result<Option<Fence>> {
        let name = Name::new("reset", self.coordinator.namespace(), &self.name)?;
        let reply = self.coordinator.gates().reset(name);
        self.coordinator.call("reset", &self.name, reply).await
    }

    /// Fails if no store can have issued `fence`.
    ///
    /// A fence behind this machine's clock passes without a call: it is too low to keep genuine fences out for long.
    /// The check need not be atomic with the admission, because fences only grow.
    async fn refuse_too_high(&self, name: &Name, fence: Fence) -> Result<()> {
        let clock = SystemTime::now().duration_since(UNIX_EPOCH);
        let clock = clock.map_or(0, |since| since.as_micros() as u64);
        if !rules::is_too_high(fence, Some(Fence::new(clock))) {
            return Ok(());
        }
        let (coordinator, gates) = (&self.coordinator, self.coordinator.gates());
        let highest_issued = gates.highest_issued(name.clone());
        let highest_issued = coordinator
            .call("admit", &self.name, highest_issued)
            .await?;
        if !rules::is_too_high(fence, highest_issued) {
            return Ok(());
        }
        // A gate that has seen this fence or a higher one is not raised by it.
        let seen = coordinator
            .call("admit", &self.name, gates.inspect(name.clone()))
            .await?;
        if seen.is_some_and(|seen| seen.highest >= fence) {
            return Ok(());
        }
        let message = match highest_issued {
            Some(highest) if fence <= Fence::MAX => {
                format!(
                    "no lock can have fence {fence}: the fences of this store are at {highest} now"
                )
            }
            _ => format!(
                "no lock can have fence {fence}: the highest possible is {}",
                Fence::MAX
            ),
        };
        let error = Error::invalid("admit", message).with_hint(
            "pass the fence of the lock unchanged; if the lock is in another store, compare the clocks of both",
        );
        Err(error
            .with_name(&self.name)
            .with_backend(coordinator.address().to_owned()))
    }
}
