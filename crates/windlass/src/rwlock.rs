//! [`RwLock`]: many readers, or one writer.

use std::time::Duration;

use crate::acquirer::Acquirer;
use crate::coordinator::Coordinator;
use crate::lease::{
    Detached, Lease, RequestOptions, WaitPolicy, guard, note_option, request_options,
};
use crate::lock::Attempt;
use windlass_core::error::{Error, ErrorKind, Result};
use windlass_core::store::{Holder, Kind, OnSizeMismatch, Order, Released, Share};

const MAX_READERS: u32 = RwLock::MAX_READERS;

/// A distributed read-write lock: its name, and how to acquire it.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> windlass::Result<()> {
/// let w = windlass::connect("memory:").await?;
/// let config = w.rwlock("config");
/// let (a, b) = (config.read().await?, config.read().await?);
/// assert!(config.try_write().await?.is_busy());
/// # drop((a, b));
/// let writer = config.write().await?;
/// // … write, then keep reading without another writer in between …
/// let reader = writer.downgrade().await?;
/// # drop(reader);
/// # Ok(()) }
/// ```
///
/// # Guarantees
///
/// - Many readers or one writer, never both, as long as holders stop when their lease is lost.
/// - First come, first served between readers and writers: later readers do not starve a waiting writer.
/// - Each reader has its own lease: a crashed reader delays writers for one TTL at most, even while
///   others keep reading.
/// - Readers and writers take fences from one counter. A write is stale if the resource has seen the fence of a
///   later writer or reader.
///
/// # Upgrading
///
/// A read lock cannot be upgraded while it is held: two readers that both upgrade would deadlock. Release it, and
/// acquire the write lock.
#[derive(Clone, Debug)]
#[must_use = "a read-write lock does nothing until it is acquired"]
pub struct RwLock {
    coordinator: Coordinator,
    name: String,
    request: RequestOptions,
}

/// A read-write lock held for reading.
#[derive(Debug)]
#[must_use = "dropping the guard releases the lock"]
pub struct ReadGuard {
    lease: Lease,
}

/// A read-write lock held for writing.
#[derive(Debug)]
#[must_use = "dropping the guard releases the lock"]
pub struct WriteGuard {
    lease: Lease,
    coordinator: Coordinator,
}

guard!(ReadGuard, "lock");
guard!(WriteGuard, "lock");

impl ReadGuard {
    /// Gives up the guard but not the lock: see [`LockGuard::detach`](crate::LockGuard::detach).
    pub async fn detach(self) -> Result<Detached> {
        self.lease.detach().await
    }
}

impl WriteGuard {
    /// Gives up the guard but not the lock: see [`LockGuard::detach`](crate::LockGuard::detach).
    pub async fn detach(self) -> Result<Detached> {
        self.lease.detach().await
    }

    /// Turns the write lock into a read lock and lets other readers in. No writer comes in between. The fence
    /// stays the same.
    ///
    /// # Errors
    ///
    /// [`Lost`](ErrorKind::Lost) if the lock is not held any more. Any error releases it.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the lock is released.
    pub async fn downgrade(self) -> Result<ReadGuard> {
        let claim = self.lease.claim();
        let spec = &claim.spec;
        let (name, owner) = (spec.name.clone(), spec.owner.clone());
        let reply = spec
            .store
            .shrink(Kind::ReadWrite, name, owner, claim.wake, 1);
        let shrunk = self
            .coordinator
            .call("downgrade", self.lease.name(), reply)
            .await?;
        if !shrunk || !self.lease.is_held() {
            let lost = "the lock is not held any more";
            let error = Error::new(ErrorKind::Lost, "downgrade", lost);
            return Err(self
                .coordinator
                .describe(error.with_name(self.lease.name())));
        }
        Ok(ReadGuard { lease: self.lease })
    }
}

/// What can be seen of a read-write lock from outside.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct RwState {
    /// The name, without the namespace.
    pub name: String,
    /// The writer, if there is one.
    pub writer: Option<Holder>,
    /// The readers; those whose claims end first come first.
    pub readers: Vec<Holder>,
    /// How many clients wait in the queue, to read or to write.
    pub waiters: u64,
}

/// A read-write lock that was [attached](RwLock::attach) to, held as it was before.
///
/// Exhaustive on purpose: these are the only two ways to hold it.
#[derive(Debug)]
#[must_use = "dropping the guard releases the lock"]
pub enum RwGuard {
    /// Held for reading.
    Read(ReadGuard),
    /// Held for writing.
    Write(WriteGuard),
}

impl RwGuard {
    /// Gives up the guard but not the lock: see [`LockGuard::detach`](crate::LockGuard::detach).
    pub async fn detach(self) -> Result<Detached> {
        match self {
            RwGuard::Read(guard) => guard.detach().await,
            RwGuard::Write(guard) => guard.detach().await,
        }
    }
}

impl RwLock {
    /// The most readers that can hold a read-write lock at once.
    pub const MAX_READERS: u32 = windlass_core::store::MAX_READERS;

    pub(crate) fn new(coordinator: Coordinator, name: &str) -> RwLock {
        RwLock {
            request: RequestOptions::new(coordinator.default_ttl()),
            coordinator,
            name: name.to_owned(),
        }
    }

    request_options!();
    note_option!();

    /// Waits in the queue until the read lock is granted.
    ///
    /// # Errors
    ///
    /// [`WaitElapsed`](ErrorKind::WaitElapsed) if [`wait`](RwLock::wait) was set and has passed.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future leaves the queue, and leaves nothing behind.
    pub async fn read(&self) -> Result<ReadGuard> {
        self.acquirer(1).acquire().await.map(read_guard)
    }

    /// Waits in the queue until the write lock is granted.
    ///
    /// # Errors and cancel safety
    ///
    /// As [`read`](RwLock::read).
    pub async fn write(&self) -> Result<WriteGuard> {
        let lease = self.acquirer(MAX_READERS).acquire().await?;
        Ok(self.write_guard()(lease))
    }

    /// Acquires the read lock if no writer holds it or waits for it; does not wait.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future leaves nothing behind.
    pub async fn try_read(&self) -> Result<Attempt<ReadGuard>> {
        let outcome = self.acquirer(1).attempt(WaitPolicy::None).await?;
        Ok(Attempt::from(outcome, read_guard))
    }

    /// Acquires the write lock if it is free; does not wait.
    ///
    /// # Cancel safety
    ///
    /// As [`try_read`](RwLock::try_read).
    pub async fn try_write(&self) -> Result<Attempt<WriteGuard>> {
        let outcome = self.acquirer(MAX_READERS).attempt(WaitPolicy::None).await?;
        Ok(Attempt::from(outcome, self.write_guard()))
    }

    /// Waits in the queue for the read lock, at most for `wait`.
    ///
    /// # Cancel safety
    ///
    /// As [`read`](RwLock::read).
    pub async fn read_within(&self, wait: Duration) -> Result<Attempt<ReadGuard>> {
        let outcome = self.acquirer(1).acquire_within(wait).await?;
        Ok(Attempt::from(outcome, read_guard))
    }

    /// Waits in the queue for the write lock, at most for `wait`.
    ///
    /// # Cancel safety
    ///
    /// As [`read`](RwLock::read).
    pub async fn write_within(&self, wait: Duration) -> Result<Attempt<WriteGuard>> {
        let outcome = self.acquirer(MAX_READERS).acquire_within(wait).await?;
        Ok(Attempt::from(outcome, self.write_guard()))
    }

    /// Takes over what `owner` holds, from a guard that was [detached](ReadGuard::detach).
    ///
    /// # Errors
    ///
    /// [`Lost`](ErrorKind::Lost) if `owner` does not hold it now.
    pub async fn attach(&self, owner: impl Into<String>) -> Result<RwGuard> {
        let (lease, weight) = self.acquirer(1).attach(owner.into()).await?;
        Ok(match weight {
            MAX_READERS => RwGuard::Write(self.write_guard()(lease)),
            _ => RwGuard::Read(read_guard(lease)),
        })
    }

    /// Releases what `owner` has, the lock or a queue entry, without a guard.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the release may or may not have happened; calling again is harmless.
    pub async fn release_as(&self, owner: impl Into<String>) -> Result<Released> {
        self.acquirer(1).release_as(owner.into()).await
    }

    /// Returns the writer or all readers, and the number of waiters.
    pub async fn inspect(&self) -> Result<RwState> {
        let occupancy = self.acquirer(1).inspect(usize::MAX).await?;
        let (writers, readers): (Vec<Holder>, Vec<Holder>) =
            occupancy.holders.into_iter().partition(|h| h.weight > 1);
        Ok(RwState {
            name: occupancy.name,
            writer: writers.into_iter().next(),
            readers,
            waiters: occupancy.waiters,
        })
    }

    fn write_guard(&self) -> impl FnOnce(Lease) -> WriteGuard {
        let coordinator = self.coordinator.clone();
        |lease| WriteGuard { lease, coordinator }
    }

    fn acquirer(&self, weight: u32) -> Acquirer<'_> {
        Acquirer {
            coordinator: &self.coordinator,
            kind: Kind::ReadWrite,
            name: &self.name,
            share: Share {
                weight,
                size: MAX_READERS,
                on_size_mismatch: OnSizeMismatch::Refuse,
                order: Order::Fifo,
            },
            request: &self.request,
            heal_missing_ttl: false,
        }
    }
}

fn read_guard(lease: Lease) -> ReadGuard {
    ReadGuard { lease }
}
