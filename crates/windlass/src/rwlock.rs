//! The read-write lock: many readers, or one writer.

use std::time::Duration;

use crate::acquirer::Acquirer;
use crate::coordinator::Coordinator;
use crate::lease::{Detached, Lease, Request, WaitPolicy, guard, note_option, request_options};
use crate::lock::Attempt;
use windlass_core::error::{Error, ErrorKind, Result};
use windlass_core::store::{Holder, Kind, OnSizeMismatch, Order, Released, Share};

pub use windlass_core::store::MAX_READERS;

/// A read-write lock to be acquired: its name, and how.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> windlass::Result<()> {
/// let w = windlass::connect("memory:").await?;
/// let config = w.rwlock("config");
/// let (a, b) = (config.read().await?, config.read().await?);
/// assert!(config.try_write().await?.is_busy());
/// # drop((a, b));
/// let writer = config.write().await?;
/// // … write, then go on reading without letting another writer in between …
/// let reader = writer.downgrade().await?;
/// # drop(reader);
/// # Ok(()) }
/// ```
///
/// # Guarantees
///
/// - Many readers or one writer, never both, as long as holders stop when told that their lease is
///   lost.
/// - First come, first served between readers and writers: a writer that waits is not starved by
///   readers that come later.
/// - Each reader's lease ends by itself: a crashed reader holds up writers for one ttl at most, however
///   many others go on reading.
/// - Readers and writers have fences, from one counter. A write is stale if a later writer, or a
///   reader that came after it, has been there.
///
/// # Upgrading
///
/// There is no way from reading to writing while holding on: two readers that both want it would
/// wait for each other. Release, and acquire to write.
#[derive(Clone, Debug)]
#[must_use = "a read-write lock does nothing until it is acquired"]
pub struct RwLock {
    coordinator: Coordinator,
    name: String,
    request: Request,
}

/// A read-write lock, held to read.
#[derive(Debug)]
#[must_use = "dropping the guard releases the lock"]
pub struct ReadGuard {
    lease: Lease,
}

/// A read-write lock, held to write.
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

    /// Goes on reading, and lets other readers in. No writer comes in between. The fence stays.
    ///
    /// # Errors
    ///
    /// [`Lost`](ErrorKind::Lost) if the lock was not held any more. Any error releases it.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the lock is released.
    pub async fn downgrade(self) -> Result<ReadGuard> {
        let claim = self.lease.claim();
        let terms = &claim.terms;
        let (name, owner) = (terms.name.clone(), terms.owner.clone());
        let answer = terms
            .store
            .shrink(Kind::ReadWrite, name, owner, claim.wake, 1);
        let shrunk = self
            .coordinator
            .call("downgrade", self.lease.name(), answer)
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
pub struct RwState {
    /// The name.
    pub name: String,
    /// Who writes, if anybody.
    pub writer: Option<Holder>,
    /// Who reads, those first whose claims would end first.
    pub readers: Vec<Holder>,
    /// How many wait in line, to read or to write.
    pub waiters: u64,
}

/// A read-write lock that was taken over, held as it was before.
#[derive(Debug)]
#[must_use = "dropping the guard releases the lock"]
pub enum RwGuard {
    /// To read.
    Read(ReadGuard),
    /// To write.
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
    pub(crate) fn new(coordinator: Coordinator, name: &str) -> RwLock {
        RwLock {
            coordinator,
            name: name.to_owned(),
            request: Request::new(),
        }
    }

    request_options!();
    note_option!();

    /// Waits in line to read.
    ///
    /// # Errors
    ///
    /// If a patience was set with [`wait`](RwLock::wait) and it ran out, the error's kind is
    /// [`WaitElapsed`](ErrorKind::WaitElapsed).
    ///
    /// # Cancel safety
    ///
    /// Dropping the future loses the place in line, and leaves nothing behind.
    pub async fn read(&self) -> Result<ReadGuard> {
        self.asking(1).acquire().await.map(reading)
    }

    /// Waits in line to write.
    ///
    /// # Errors and cancel safety
    ///
    /// As [`read`](RwLock::read).
    pub async fn write(&self) -> Result<WriteGuard> {
        let lease = self.asking(MAX_READERS).acquire().await?;
        Ok(self.writing()(lease))
    }

    /// Asks to read, once: the answer comes at once. It is "busy" too if a writer waits.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future leaves nothing behind.
    pub async fn try_read(&self) -> Result<Attempt<ReadGuard>> {
        let attempted = self.asking(1).attempt(WaitPolicy::None).await?;
        Ok(Attempt::from(attempted, reading))
    }

    /// Asks to write, once.
    ///
    /// # Cancel safety
    ///
    /// As [`try_read`](RwLock::try_read).
    pub async fn try_write(&self) -> Result<Attempt<WriteGuard>> {
        let attempted = self.asking(MAX_READERS).attempt(WaitPolicy::None).await?;
        Ok(Attempt::from(attempted, self.writing()))
    }

    /// Waits in line to read, but no longer than `wait`.
    pub async fn read_within(&self, wait: Duration) -> Result<Attempt<ReadGuard>> {
        let attempted = self.asking(1).acquire_within(wait).await?;
        Ok(Attempt::from(attempted, reading))
    }

    /// Waits in line to write, but no longer than `wait`.
    pub async fn write_within(&self, wait: Duration) -> Result<Attempt<WriteGuard>> {
        let attempted = self.asking(MAX_READERS).acquire_within(wait).await?;
        Ok(Attempt::from(attempted, self.writing()))
    }

    /// Takes over what `owner` holds, from a guard that was detached.
    ///
    /// # Errors
    ///
    /// [`Lost`](ErrorKind::Lost) if `owner` does not hold it now.
    pub async fn attach(&self, owner: impl Into<String>) -> Result<RwGuard> {
        let (lease, weight) = self.asking(1).attach(owner.into()).await?;
        Ok(match weight {
            MAX_READERS => RwGuard::Write(self.writing()(lease)),
            _ => RwGuard::Read(reading(lease)),
        })
    }

    /// Gives up whatever `owner` has, the lock or a place in line, without a guard.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, it may or may not have happened; asking again is harmless.
    pub async fn release_as(&self, owner: impl Into<String>) -> Result<Released> {
        self.asking(1).release_as(owner.into()).await
    }

    /// Looks at the lock: who writes or reads, since when, how many wait.
    pub async fn inspect(&self) -> Result<RwState> {
        let seen = self.asking(1).inspect(usize::MAX).await?;
        let (writers, readers): (Vec<Holder>, Vec<Holder>) =
            seen.holders.into_iter().partition(|h| h.weight > 1);
        Ok(RwState {
            name: seen.name,
            writer: writers.into_iter().next(),
            readers,
            waiters: seen.waiters,
        })
    }

    fn writing(&self) -> impl FnOnce(Lease) -> WriteGuard {
        let coordinator = self.coordinator.clone();
        |lease| WriteGuard { lease, coordinator }
    }

    fn asking(&self, weight: u32) -> Acquirer<'_> {
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

fn reading(lease: Lease) -> ReadGuard {
    ReadGuard { lease }
}
