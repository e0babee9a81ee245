//! Several locks that a command needs together: all or none.

use std::time::Duration;

use windlass::{Attempt, Coordinator, Holder, Lock, Locks, LocksGuard, Released, RetryPolicy};

use super::acquisition::Acquirable;
use super::wait_report::Blocker;
use crate::humanize;

/// Several locks to acquire as one owner.
#[derive(Clone, Debug)]
pub(super) struct SeveralLocks {
    all: Locks,
    /// The same locks one by one, in the order in which they are acquired.
    each: Vec<(String, Lock)>,
    owner: String,
}

impl SeveralLocks {
    /// `names` are sorted and differ from each other.
    pub(super) fn new(
        store: &Coordinator,
        names: &[&str],
        ttl: Duration,
        owner: &str,
        note: Option<&str>,
    ) -> SeveralLocks {
        let mut all = store.locks(names.iter().copied()).ttl(ttl).owner(owner);
        if let Some(note) = note {
            all = all.note(note);
        }
        let each = names
            .iter()
            .map(|name| ((*name).to_owned(), store.lock(name)));
        SeveralLocks {
            all,
            each: each.collect(),
            owner: owner.to_owned(),
        }
    }

    /// The first lock that another owner holds: its name, its holder and the number of waiters. A waiter holds the locks
    /// that come before it.
    pub(super) async fn first_held(&self) -> windlass::Result<Option<(&str, Holder, u64)>> {
        for (name, lock) in &self.each {
            let seen = lock.inspect().await?;
            if let Some(holder) = seen.holder.filter(|holder| holder.owner != self.owner) {
                return Ok(Some((name, holder, seen.waiters)));
            }
        }
        Ok(None)
    }
}

impl Acquirable for SeveralLocks {
    type Guard = LocksGuard;

    fn retry(self, policy: RetryPolicy) -> SeveralLocks {
        SeveralLocks {
            all: self.all.retry(policy),
            ..self
        }
    }

    async fn try_acquire(&self) -> windlass::Result<Attempt<LocksGuard>> {
        self.all.try_acquire().await
    }

    async fn acquire_within(&self, wait: Duration) -> windlass::Result<Attempt<LocksGuard>> {
        self.all.acquire_within(wait).await
    }

    async fn acquire(&self) -> windlass::Result<LocksGuard> {
        self.all.acquire().await
    }

    async fn blocker(&self) -> windlass::Result<Blocker> {
        Ok(match self.first_held().await? {
            Some((name, holder, waiters)) => Blocker {
                detail: Some(format!(
                    "of which {name} is held by {}",
                    humanize::holder(&holder)
                )),
                waiters: Some(waiters),
            },
            None => Blocker::default(),
        })
    }

    /// Releases all of them, even if one of the releases fails. Returns the outcome of the last one that was there.
    async fn release_as(&self, owner: &str) -> windlass::Result<Released> {
        let mut outcome = Ok(Released::WasGone);
        for (_, lock) in &self.each {
            match lock.release_as(owner).await {
                Ok(Released::WasGone) => {}
                there_or_failed => outcome = there_or_failed,
            }
        }
        outcome
    }
}
