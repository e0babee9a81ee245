//! The lock: who may act.

use std::time::Duration;

use crate::acquirer::Acquirer;
use crate::coordinator::Coordinator;
use crate::lease::{
    AcquireOutcome, Detached, Lease, Request, WaitPolicy, guard, note_option, request_options,
};
use windlass_core::error::Result;
use windlass_core::store::{Holder, Kind, Occupancy, Released, Share};

/// A lock to be acquired: its name, and how.
///
/// What is asked for (`Lock`) and what is held ([`LockGuard`]) are different types.
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
/// - At most one holder at a time, as long as holders stop when told that the lease is lost; beyond
///   that, the [fence](crate::Fence) protects the resource.
/// - First come, first served. A release hands the lock to the first living waiter.
/// - A holder that crashes blocks others for at most one ttl.
///
/// # Re-entry
///
/// A lock is not re-entrant: a task that holds it and acquires it again with a new owner waits for
/// itself. A counter inside one program cannot be kept in step with leases that end by
/// themselves, so it is not offered; pass the guard (or `&LockGuard`) to the code that needs to know
/// the lock is held. With the *same* owner, acquiring again renews.
///
/// # When not to use this
///
/// To count or to limit, a counter or a limiter decides in one step without holding anything. To
/// protect data that lives in one database, that database's own transactions are simpler.
#[derive(Clone, Debug)]
#[must_use = "a lock does nothing until it is acquired"]
pub struct Lock {
    coordinator: Coordinator,
    name: String,
    request: Request,
    heal_missing_ttl: bool,
}

/// A held lock. Renewed in the background for as long as it lives.
///
/// Dropping it releases the lock in the background and never blocks; if that cannot reach the
/// store, the ttl ends the claim. [`release`](LockGuard::release) tells whether it was still held.
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

    /// Gives up the guard but not the lock: it is renewed once more, and then lives for its ttl,
    /// for another process to [take over](crate::Lock::attach).
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the lock is released.
    pub async fn detach(self) -> Result<Detached> {
        self.lease.detach().await
    }
}

/// What became of an attempt that may be answered with "busy".
#[derive(Debug)]
#[must_use = "it may not have been acquired"]
pub enum Attempt<G = LockGuard> {
    /// Held until the guard is released or dropped.
    Acquired(G),
    /// Somebody else has it; who, where that could still be seen.
    Busy(Option<Holder>),
}

impl<G> Attempt<G> {
    pub(crate) fn from(attempted: AcquireOutcome, guard: impl FnOnce(Lease) -> G) -> Attempt<G> {
        match attempted {
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

    /// Whether somebody else has it.
    pub fn is_busy(&self) -> bool {
        matches!(self, Attempt::Busy(_))
    }
}

impl Lock {
    pub(crate) fn new(coordinator: Coordinator, name: &str) -> Lock {
        Lock {
            coordinator,
            name: name.to_owned(),
            request: Request::new(),
            heal_missing_ttl: false,
        }
    }

    request_options!();
    note_option!();

    /// If somebody else's key has no expiry at all (a SETNX client that crashed), gives it ours,
    /// so that it ends.
    pub fn heal_missing_ttl(mut self) -> Lock {
        self.heal_missing_ttl = true;
        self
    }

    /// Asks once: the answer comes at once.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future leaves nothing behind: if the lock was granted, it is given back.
    pub async fn try_acquire(&self) -> Result<Attempt> {
        let attempted = self.asking().attempt(WaitPolicy::None).await?;
        Ok(Attempt::from(attempted, LockGuard::new))
    }

    /// Waits in line until the lock is ours.
    ///
    /// # Errors
    ///
    /// If a patience was set with [`wait`](Lock::wait) and it ran out, the error's kind is
    /// [`WaitElapsed`](crate::ErrorKind::WaitElapsed). [`acquire_within`](Lock::acquire_within) gives
    /// the same as an answer.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future loses the place in line, and leaves nothing behind.
    pub async fn acquire(&self) -> Result<LockGuard> {
        self.asking().acquire().await.map(LockGuard::new)
    }

    /// Waits in line, but no longer than `wait`.
    ///
    /// # Cancel safety
    ///
    /// As [`acquire`](Lock::acquire).
    pub async fn acquire_within(&self, wait: Duration) -> Result<Attempt> {
        let attempted = self.asking().acquire_within(wait).await?;
        Ok(Attempt::from(attempted, LockGuard::new))
    }

    /// Takes over a lock that `owner` holds, from a guard that was
    /// [detached](LockGuard::detach), in this process or another one.
    ///
    /// # Errors
    ///
    /// [`Lost`](crate::ErrorKind::Lost) if `owner` does not hold it now.
    pub async fn attach(&self, owner: impl Into<String>) -> Result<LockGuard> {
        let (lease, _weight) = self.asking().attach(owner.into()).await?;
        Ok(LockGuard::new(lease))
    }

    /// Gives up whatever `owner` has, the lock or a place in line, without a guard: for a lock that
    /// was [detached](LockGuard::detach) and that nobody needs to take over any more.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, it may or may not have happened; asking again is harmless.
    ///
    /// # Errors
    ///
    /// If the store did not answer, the lock may or may not have been released.
    pub async fn release_as(&self, owner: impl Into<String>) -> Result<Released> {
        self.asking().release_as(owner.into()).await
    }

    /// Looks at the lock: who has it, since when, how many wait.
    pub async fn inspect(&self) -> Result<LockState> {
        self.asking().inspect(1).await.map(LockState::from)
    }

    /// Takes the lock from whoever has it, by force, and hands it on. Tells whose it was.
    ///
    /// The holder learns of it at its next renewal, up to a third of its ttl later; until
    /// then, only the fence protects the resource.
    pub async fn break_lock(&self) -> Result<Option<Holder>> {
        let asking = self.asking();
        let name = asking.checked_name("break")?;
        let answer = self.coordinator.claims().break_lock(name);
        asking.call("break", answer).await
    }

    fn asking(&self) -> Acquirer<'_> {
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
pub struct LockState {
    /// The name.
    pub name: String,
    /// Who has it, if anybody.
    pub holder: Option<Holder>,
    /// How many wait in line.
    pub waiters: u64,
}

impl From<Occupancy> for LockState {
    fn from(seen: Occupancy) -> LockState {
        LockState {
            name: seen.name,
            holder: seen.holders.into_iter().next(),
            waiters: seen.waiters,
        }
    }
}
