//! [`Lock`]: a distributed mutex with a fencing token.

use std::time::Duration;

use crate::acquirer::Acquirer;
use crate::coordinator::Coordinator;
use crate::lease::{
    AcquireOutcome, Detached, Lease, RequestOptions, WaitPolicy, guard, note_option,
    request_options,
};
use windlass_core::error::Result;
use windlass_core::store::{Holder, Kind, Occupancy, Released, Share};

/// A distributed lock (mutex): its name, and how to acquire it.
///
/// `Lock` is the description; [`LockGuard`] is the held lock.
///
/// ```
/// # use std::time::Duration;
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> windlass::Result<()> {
/// let w = windlass::connect("memory:").await?;
/// let guard = w.lock("invoice/42").ttl(Duration::from_secs(10)).acquire().await?;
/// // … send guard.fence() along with every write …
/// assert!(guard.release().await?.was_held());
/// # Ok(()) }
/// ```
///
/// # Guarantees
///
/// - At most one holder at a time, as long as holders stop when their lease is lost. Beyond that, the
///   [fence](crate::Fence) protects the resource.
/// - First come, first served. A release grants the lock to the first living waiter.
/// - A holder that crashes blocks others for at most one TTL.
///
/// # Re-entry
///
/// A lock is not re-entrant: a task that holds it and acquires it again under a new owner waits for itself. Pass the
/// guard (or `&LockGuard`) to the code that needs to know that the lock is held. A re-entry count inside one process
/// could not follow leases that expire on their own. Acquiring again under the *same* owner renews.
///
/// # When not to use this
///
/// To count or to limit, use a [counter](crate::Counter) or a [limiter](crate::Limiter), which decide in one step
/// without holding anything. To protect data in one database, that database's transactions are simpler.
#[derive(Clone, Debug)]
#[must_use = "a lock does nothing until it is acquired"]
pub struct Lock {
    coordinator: Coordinator,
    name: String,
    request: RequestOptions,
    heal_missing_ttl: bool,
}

/// A held lock, renewed in the background.
///
/// Dropping it releases the lock in the background and never blocks. If the release cannot reach the store, the TTL ends
/// the claim. [`release`](LockGuard::release) returns whether the lock was still held.
#[derive(Debug)]
#[must_use = "dropping the guard releases the lock"]
pub struct LockGuard {
    lease: Lease,
}

guard!(LockGuard, "lock");

impl LockGuard {
    pub(crate) fn new(lease: Lease) -> LockGuard {
        LockGuard { lease }
    }

    /// See [`Lease::abandon`].
    pub(crate) fn abandon(self) -> Duration {
        self.lease.abandon()
    }

    /// Gives up the guard but not the lock: the lock is renewed once more and then lives for its TTL, for another
    /// process to [attach](crate::Lock::attach) to.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the lock is released.
    pub async fn detach(self) -> Result<Detached> {
        self.lease.detach().await
    }
}

/// The outcome of an attempt to acquire: granted or busy.
///
/// Exhaustive on purpose: these are the only two outcomes.
#[derive(Debug)]
#[must_use = "it may not have been acquired"]
pub enum Attempt<G = LockGuard> {
    /// Held until the guard is released or dropped.
    Acquired(G),
    /// Another client holds it; the holder, where it is known.
    Busy(Option<Holder>),
}

impl<G> Attempt<G> {
    pub(crate) fn from(outcome: AcquireOutcome, guard: impl FnOnce(Lease) -> G) -> Attempt<G> {
        match outcome {
            AcquireOutcome::Held(lease) => Attempt::Acquired(guard(lease)),
            AcquireOutcome::Busy(holder) => Attempt::Busy(holder),
        }
    }

    /// The guard, if acquired.
    pub fn acquired(self) -> Option<G> {
        match self {
            Attempt::Acquired(guard) => Some(guard),
            Attempt::Busy(_) => None,
        }
    }

    /// Whether another client holds it.
    pub fn is_busy(&self) -> bool {
        matches!(self, Attempt::Busy(_))
    }
}

impl Lock {
    pub(crate) fn new(coordinator: Coordinator, name: &str) -> Lock {
        Lock {
            request: RequestOptions::new(coordinator.default_ttl()),
            coordinator,
            name: name.to_owned(),
            heal_missing_ttl: false,
        }
    }

    request_options!();
    note_option!();

    /// The shortest hold: a lock that is released or dropped earlier stays held, and is renewed, until this time has
    /// passed since it was granted. [`release`](LockGuard::release) waits for that.
    ///
    /// For a job that runs on several machines whose clocks differ: a machine that is late finds the lock held, even if
    /// the job took no time. A process that ends earlier leaves the lock for its TTL.
    pub fn min_hold(mut self, time: Duration) -> Lock {
        self.request.min_hold = Some(time);
        self
    }

    /// If another client's key has no expiry (a SETNX client that crashed), sets this lock's TTL on it, so that it
    /// expires.
    pub fn heal_missing_ttl(mut self) -> Lock {
        self.heal_missing_ttl = true;
        self
    }

    /// Acquires the lock if it is free; does not wait.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future leaves nothing behind: a lock that was granted is released.
    pub async fn try_acquire(&self) -> Result<Attempt> {
        let outcome = self.acquirer().attempt(WaitPolicy::None).await?;
        Ok(Attempt::from(outcome, |lease| self.guard(lease)))
    }

    /// Waits in the queue until the lock is granted.
    ///
    /// # Errors
    ///
    /// [`WaitElapsed`](crate::ErrorKind::WaitElapsed) if [`wait`](Lock::wait) was set and has passed.
    /// [`acquire_within`](Lock::acquire_within) returns that as [`Attempt::Busy`] instead.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future leaves the queue, and leaves nothing behind.
    pub async fn acquire(&self) -> Result<LockGuard> {
        let lease = self.acquirer().acquire().await?;
        Ok(self.guard(lease))
    }

    /// Waits in the queue, at most for `wait`.
    ///
    /// # Cancel safety
    ///
    /// As [`acquire`](Lock::acquire).
    pub async fn acquire_within(&self, wait: Duration) -> Result<Attempt> {
        let outcome = self.acquirer().acquire_within(wait).await?;
        Ok(Attempt::from(outcome, |lease| self.guard(lease)))
    }

    /// Takes over the lock that `owner` holds, from a guard that was [detached](LockGuard::detach) in this process or
    /// another one.
    ///
    /// # Errors
    ///
    /// [`Lost`](crate::ErrorKind::Lost) if `owner` does not hold it now.
    pub async fn attach(&self, owner: impl Into<String>) -> Result<LockGuard> {
        let (lease, _weight) = self.acquirer().attach(owner.into()).await?;
        Ok(self.guard(lease))
    }

    fn guard(&self, lease: Lease) -> LockGuard {
        LockGuard::new(lease.held_at_least(self.request.min_hold))
    }

    /// Releases what `owner` has, the lock or a queue entry, without a guard: for a lock that was
    /// [detached](LockGuard::detach) and is not needed any more.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the release may or may not have happened; calling again is harmless.
    ///
    /// # Errors
    ///
    /// If the store did not answer, the release may or may not have happened.
    pub async fn release_as(&self, owner: impl Into<String>) -> Result<Released> {
        self.acquirer().release_as(owner.into()).await
    }

    /// Returns the holder, its age and time left, and the number of waiters.
    pub async fn inspect(&self) -> Result<LockState> {
        self.acquirer().inspect(1).await.map(LockState::from)
    }

    /// Takes the lock away from its holder by force, and grants it to the next waiter. Returns the former
    /// holder.
    ///
    /// The holder learns of it at its next renewal, up to a third of its TTL later. Until then only the
    /// fence protects the resource.
    pub async fn break_lock(&self) -> Result<Option<Holder>> {
        let acquirer = self.acquirer();
        let name = acquirer.full_name("break")?;
        let reply = self.coordinator.claims().break_lock(name);
        acquirer.call("break", reply).await
    }

    fn acquirer(&self) -> Acquirer<'_> {
        Acquirer {
            coordinator: &self.coordinator,
            kind: Kind::Lock,
            name: &self.name,
            share: Share::ONLY,
            request: &self.request,
            heal_missing_ttl: self.heal_missing_ttl,
        }
    }
}

/// What can be seen of a lock from outside.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct LockState {
    /// The name, without the namespace.
    pub name: String,
    /// The holder, if the lock is held.
    pub holder: Option<Holder>,
    /// How many clients wait in the queue.
    pub waiters: u64,
}

impl From<Occupancy> for LockState {
    fn from(occupancy: Occupancy) -> LockState {
        LockState {
            name: occupancy.name,
            holder: occupancy.holders.into_iter().next(),
            waiters: occupancy.waiters,
        }
    }
}
