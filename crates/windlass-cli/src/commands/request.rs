//! One interface to acquire and hold locks, permits and read-write locks.

use std::ops::Deref;
use std::time::Duration;

use windlass::{
    Attempt, Coordinator, Detached, Holder, Lease, Lock, LockGuard, Permit, ReadGuard, Released,
    RetryPolicy, RwGuard, RwLock, Semaphore, WriteGuard,
};

use super::acquisition::Acquirable;
use super::wait_report::Blocker;
use crate::humanize;

/// A lock, permit or side of a read-write lock to acquire.
#[derive(Clone, Debug)]
pub(super) enum ClaimRequest {
    Lock(Lock),
    /// With the number of permits to acquire.
    Permit(Semaphore, u32),
    Read(RwLock),
    Write(RwLock),
}

/// A lock, permit or side of a read-write lock that is held.
#[derive(Debug)]
#[must_use = "dropping it releases"]
pub(super) enum HeldClaim {
    Lock(LockGuard),
    Permit(Permit),
    Read(ReadGuard),
    Write(WriteGuard),
}

/// Applies the same option to each kind.
macro_rules! each {
    ($request:expr, $it:ident => $changed:expr) => {
        match $request {
            ClaimRequest::Lock($it) => ClaimRequest::Lock($changed),
            ClaimRequest::Permit($it, weight) => ClaimRequest::Permit($changed, weight),
            ClaimRequest::Read($it) => ClaimRequest::Read($changed),
            ClaimRequest::Write($it) => ClaimRequest::Write($changed),
        }
    };
}

impl ClaimRequest {
    /// Permits of the semaphore `name`.
    pub(super) fn permit(
        store: &Coordinator,
        name: &str,
        permits: u32,
        weight: u32,
    ) -> ClaimRequest {
        ClaimRequest::Permit(store.semaphore(name, permits), weight)
    }

    pub(super) fn ttl(self, ttl: Duration) -> ClaimRequest {
        each!(self, it => it.ttl(ttl))
    }

    pub(super) fn owner(self, owner: &str) -> ClaimRequest {
        each!(self, it => it.owner(owner))
    }

    pub(super) fn without_renewal(self) -> ClaimRequest {
        each!(self, it => it.without_renewal())
    }

    /// Sets the note that others see.
    pub(super) fn note(self, note: Option<&str>) -> ClaimRequest {
        match note {
            Some(note) => each!(self, it => it.note(note)),
            None => self,
        }
    }

    /// The noun for messages.
    pub(super) fn noun(&self) -> &'static str {
        match self {
            ClaimRequest::Lock(_) | ClaimRequest::Read(_) | ClaimRequest::Write(_) => "lock",
            ClaimRequest::Permit(_, 1) => "permit",
            ClaimRequest::Permit(..) => "permits",
        }
    }

    /// Attaches to what `owner` holds.
    pub(super) async fn attach(&self, owner: &str) -> windlass::Result<HeldClaim> {
        match self {
            ClaimRequest::Lock(it) => it.attach(owner).await.map(HeldClaim::Lock),
            ClaimRequest::Permit(it, _) => it.attach(owner).await.map(HeldClaim::Permit),
            ClaimRequest::Read(it) | ClaimRequest::Write(it) => {
                Ok(match it.attach(owner).await? {
                    RwGuard::Read(guard) => HeldClaim::Read(guard),
                    RwGuard::Write(guard) => HeldClaim::Write(guard),
                })
            }
        }
    }

    /// The holder, or of several the first to expire, and the number of waiters.
    pub(super) async fn holder_and_waiters(&self) -> windlass::Result<(Option<Holder>, u64)> {
        Ok(match self {
            ClaimRequest::Lock(it) => {
                let seen = it.inspect().await?;
                (seen.holder, seen.waiters)
            }
            ClaimRequest::Permit(it, _) => {
                let seen = it.inspect_up_to(1).await?;
                (seen.holders.into_iter().next(), seen.waiters)
            }
            ClaimRequest::Read(it) | ClaimRequest::Write(it) => {
                let seen = it.inspect().await?;
                let holder = seen.writer.or_else(|| seen.readers.into_iter().next());
                (holder, seen.waiters)
            }
        })
    }
}

impl Acquirable for ClaimRequest {
    type Guard = HeldClaim;

    fn retry(self, policy: RetryPolicy) -> ClaimRequest {
        each!(self, it => it.retry(policy))
    }

    async fn try_acquire(&self) -> windlass::Result<Attempt<HeldClaim>> {
        Ok(match self {
            ClaimRequest::Lock(it) => map(it.try_acquire().await?, HeldClaim::Lock),
            ClaimRequest::Permit(it, weight) => {
                map(it.try_acquire_many(*weight).await?, HeldClaim::Permit)
            }
            ClaimRequest::Read(it) => map(it.try_read().await?, HeldClaim::Read),
            ClaimRequest::Write(it) => map(it.try_write().await?, HeldClaim::Write),
        })
    }

    async fn acquire_within(&self, wait: Duration) -> windlass::Result<Attempt<HeldClaim>> {
        Ok(match self {
            ClaimRequest::Lock(it) => map(it.acquire_within(wait).await?, HeldClaim::Lock),
            ClaimRequest::Permit(it, weight) => map(
                it.acquire_many_within(*weight, wait).await?,
                HeldClaim::Permit,
            ),
            ClaimRequest::Read(it) => map(it.read_within(wait).await?, HeldClaim::Read),
            ClaimRequest::Write(it) => map(it.write_within(wait).await?, HeldClaim::Write),
        })
    }

    async fn acquire(&self) -> windlass::Result<HeldClaim> {
        Ok(match self {
            ClaimRequest::Lock(it) => HeldClaim::Lock(it.acquire().await?),
            ClaimRequest::Permit(it, weight) => HeldClaim::Permit(it.acquire_many(*weight).await?),
            ClaimRequest::Read(it) => HeldClaim::Read(it.read().await?),
            ClaimRequest::Write(it) => HeldClaim::Write(it.write().await?),
        })
    }

    async fn blocker(&self) -> windlass::Result<Blocker> {
        let (holder, waiters) = self.holder_and_waiters().await?;
        Ok(Blocker {
            detail: holder.map(|holder| format!("held by {}", humanize::holder(&holder))),
            waiters: Some(waiters),
        })
    }

    async fn release_as(&self, owner: &str) -> windlass::Result<Released> {
        match self {
            ClaimRequest::Lock(it) => it.release_as(owner).await,
            ClaimRequest::Permit(it, _) => it.release_as(owner).await,
            ClaimRequest::Read(it) | ClaimRequest::Write(it) => it.release_as(owner).await,
        }
    }
}

impl HeldClaim {
    /// Releases it. Returns whether it was still held.
    pub(super) async fn release(self) -> windlass::Result<Released> {
        match self {
            HeldClaim::Lock(guard) => guard.release().await,
            HeldClaim::Permit(permit) => permit.release().await,
            HeldClaim::Read(guard) => guard.release().await,
            HeldClaim::Write(guard) => guard.release().await,
        }
    }

    /// Leaves it held for one TTL, without renewal.
    pub(super) async fn detach(self) -> windlass::Result<Detached> {
        match self {
            HeldClaim::Lock(guard) => guard.detach().await,
            HeldClaim::Permit(permit) => permit.detach().await,
            HeldClaim::Read(guard) => guard.detach().await,
            HeldClaim::Write(guard) => guard.detach().await,
        }
    }
}

impl Deref for HeldClaim {
    type Target = Lease;

    fn deref(&self) -> &Lease {
        match self {
            HeldClaim::Lock(guard) => guard,
            HeldClaim::Permit(permit) => permit,
            HeldClaim::Read(guard) => guard,
            HeldClaim::Write(guard) => guard,
        }
    }
}

fn map<G>(attempt: Attempt<G>, held: impl FnOnce(G) -> HeldClaim) -> Attempt<HeldClaim> {
    match attempt {
        Attempt::Acquired(guard) => Attempt::Acquired(held(guard)),
        Attempt::Busy(holder) => Attempt::Busy(holder),
    }
}
