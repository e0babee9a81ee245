//! Whatever can be acquired, to be asked for and held in one way.

use std::ops::Deref;
use std::time::Duration;

use windlass::{
    Attempt, Coordinator, Detached, Holder, Lease, Lock, LockGuard, Permit, ReadGuard, Released,
    RetryPolicy, RwGuard, RwLock, Semaphore, WriteGuard,
};

use super::acquiring::Ask;

/// Something to be acquired.
#[derive(Clone, Debug)]
pub(super) enum Wanted {
    Lock(Lock),
    /// With the number of permits to take.
    Permit(Semaphore, u32),
    Read(RwLock),
    Write(RwLock),
}

/// Something that was acquired.
#[derive(Debug)]
#[must_use = "dropping it releases"]
pub(super) enum Held {
    Lock(LockGuard),
    Permit(Permit),
    Read(ReadGuard),
    Write(WriteGuard),
}

/// The same option on whatever it is.
macro_rules! each {
    ($wanted:expr, $it:ident => $changed:expr) => {
        match $wanted {
            Wanted::Lock($it) => Wanted::Lock($changed),
            Wanted::Permit($it, weight) => Wanted::Permit($changed, weight),
            Wanted::Read($it) => Wanted::Read($changed),
            Wanted::Write($it) => Wanted::Write($changed),
        }
    };
}

impl Wanted {
    /// A share of the semaphore `name`.
    pub(super) fn permit(store: &Coordinator, name: &str, permits: u32, weight: u32) -> Wanted {
        Wanted::Permit(store.semaphore(name, permits), weight)
    }

    pub(super) fn ttl(self, ttl: Duration) -> Wanted {
        each!(self, it => it.ttl(ttl))
    }

    pub(super) fn owner(self, owner: &str) -> Wanted {
        each!(self, it => it.owner(owner))
    }

    pub(super) fn without_renewal(self) -> Wanted {
        each!(self, it => it.without_renewal())
    }

    /// Free text that others see.
    pub(super) fn note(self, note: Option<&str>) -> Wanted {
        match note {
            Some(note) => each!(self, it => it.note(note)),
            None => self,
        }
    }

    /// What it is called once it is held.
    pub(super) fn noun(&self) -> &'static str {
        match self {
            Wanted::Lock(_) | Wanted::Read(_) | Wanted::Write(_) => "lock",
            Wanted::Permit(_, 1) => "permit",
            Wanted::Permit(..) => "permits",
        }
    }

    /// Takes over what `owner` holds.
    pub(super) async fn attach(&self, owner: &str) -> windlass::Result<Held> {
        match self {
            Wanted::Lock(it) => it.attach(owner).await.map(Held::Lock),
            Wanted::Permit(it, _) => it.attach(owner).await.map(Held::Permit),
            Wanted::Read(it) | Wanted::Write(it) => Ok(match it.attach(owner).await? {
                RwGuard::Read(guard) => Held::Read(guard),
                RwGuard::Write(guard) => Held::Write(guard),
            }),
        }
    }

    /// Who holds it, or, if there can be several, the first of them to end.
    pub(super) async fn first_holder(&self) -> windlass::Result<Option<Holder>> {
        Ok(match self {
            Wanted::Lock(it) => it.inspect().await?.holder,
            Wanted::Permit(it, _) => it.inspect(1).await?.holders.into_iter().next(),
            Wanted::Read(it) | Wanted::Write(it) => {
                let seen = it.inspect().await?;
                seen.writer.or_else(|| seen.readers.into_iter().next())
            }
        })
    }

    /// How many wait in line.
    pub(super) async fn waiters(&self) -> windlass::Result<u64> {
        Ok(match self {
            Wanted::Lock(it) => it.inspect().await?.waiters,
            Wanted::Permit(it, _) => it.inspect(0).await?.waiters,
            Wanted::Read(it) | Wanted::Write(it) => it.inspect().await?.waiters,
        })
    }
}

impl Ask for Wanted {
    type Held = Held;

    fn retry(self, policy: RetryPolicy) -> Wanted {
        each!(self, it => it.retry(policy))
    }

    async fn try_acquire(&self) -> windlass::Result<Attempt<Held>> {
        Ok(match self {
            Wanted::Lock(it) => map(it.try_acquire().await?, Held::Lock),
            Wanted::Permit(it, weight) => map(it.try_acquire_many(*weight).await?, Held::Permit),
            Wanted::Read(it) => map(it.try_read().await?, Held::Read),
            Wanted::Write(it) => map(it.try_write().await?, Held::Write),
        })
    }

    async fn acquire_within(&self, wait: Duration) -> windlass::Result<Attempt<Held>> {
        Ok(match self {
            Wanted::Lock(it) => map(it.acquire_within(wait).await?, Held::Lock),
            Wanted::Permit(it, weight) => {
                map(it.acquire_many_within(*weight, wait).await?, Held::Permit)
            }
            Wanted::Read(it) => map(it.read_within(wait).await?, Held::Read),
            Wanted::Write(it) => map(it.write_within(wait).await?, Held::Write),
        })
    }

    async fn acquire(&self) -> windlass::Result<Held> {
        Ok(match self {
            Wanted::Lock(it) => Held::Lock(it.acquire().await?),
            Wanted::Permit(it, weight) => Held::Permit(it.acquire_many(*weight).await?),
            Wanted::Read(it) => Held::Read(it.read().await?),
            Wanted::Write(it) => Held::Write(it.write().await?),
        })
    }

    async fn release_as(&self, owner: &str) -> windlass::Result<Released> {
        match self {
            Wanted::Lock(it) => it.release_as(owner).await,
            Wanted::Permit(it, _) => it.release_as(owner).await,
            Wanted::Read(it) | Wanted::Write(it) => it.release_as(owner).await,
        }
    }
}

impl Held {
    /// Gives it back, and tells whether it was held until now.
    pub(super) async fn release(self) -> windlass::Result<Released> {
        match self {
            Held::Lock(guard) => guard.release().await,
            Held::Permit(permit) => permit.release().await,
            Held::Read(guard) => guard.release().await,
            Held::Write(guard) => guard.release().await,
        }
    }

    /// Lets it live on without us, for one ttl.
    pub(super) async fn detach(self) -> windlass::Result<Detached> {
        match self {
            Held::Lock(guard) => guard.detach().await,
            Held::Permit(permit) => permit.detach().await,
            Held::Read(guard) => guard.detach().await,
            Held::Write(guard) => guard.detach().await,
        }
    }
}

impl Deref for Held {
    type Target = Lease;

    fn deref(&self) -> &Lease {
        match self {
            Held::Lock(guard) => guard,
            Held::Permit(permit) => permit,
            Held::Read(guard) => guard,
            Held::Write(guard) => guard,
        }
    }
}

fn map<G>(attempt: Attempt<G>, held: impl FnOnce(G) -> Held) -> Attempt<Held> {
    match attempt {
        Attempt::Acquired(guard) => Attempt::Acquired(held(guard)),
        Attempt::Busy(holder) => Attempt::Busy(holder),
    }
}
