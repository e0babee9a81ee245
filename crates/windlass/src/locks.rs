//! [`Locks`]: several locks at once, all or none.
//!
//! If all are free, the store grants them in one decision. Otherwise a waiter acquires them one after the other in
//! the order of their names. The common order excludes deadlock between clients that want the same locks.

use std::collections::BTreeSet;
use std::fmt;
use std::future::poll_fn;
use std::pin::Pin;
use std::task::Poll;
use std::time::Duration;

use crate::acquirer::Acquirer;
use crate::coordinator::Coordinator;
use crate::lease::{
    AcquireOutcome, AllOutcome, Fence, Lease, LeaseLost, RequestOptions, WaitPolicy, acquire_all,
    await_replicas, note_option, request_options,
};
use crate::lock::Attempt;
use crate::telemetry::{Acquisition, Outcome};
use windlass_core::error::{Error, ErrorKind, Result};
use windlass_core::join::join_all;
use windlass_core::store::{Holder, Kind, Released, Share};

/// Several locks to acquire together: all or none.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> windlass::Result<()> {
/// let w = windlass::connect("memory:").await?;
/// let both = w.locks(["account/7", "account/12"]).acquire().await?;
/// // … move money, and send each account its own fence …
/// let (from, to) = (both.fence("account/7"), both.fence("account/12"));
/// # assert!(from.is_some() && to.is_some());
/// both.release().await?;
/// # Ok(()) }
/// ```
///
/// # Guarantees
///
/// - All or none. If all are free, they are granted in one decision. (In a Redis Cluster this needs locks of one
///   hash slot, as `{account}:7` and `{account}:12`; others are acquired as below.)
/// - Otherwise a waiter acquires them one after the other in the order of their names, each through its own
///   queue: clients that want the same locks cannot deadlock. A waiter already holds the locks that come first in
///   that order.
/// - On any failure or cancellation, all are released.
/// - They are ordinary locks: a client that acquires one of them alone is excluded too.
#[derive(Clone, Debug)]
#[must_use = "locks do nothing until they are acquired"]
pub struct Locks {
    coordinator: Coordinator,
    names: BTreeSet<String>,
    request: RequestOptions,
}

/// Several held locks. Dropping the guard releases them all in the background.
#[must_use = "dropping the guard releases the locks"]
pub struct LocksGuard {
    leases: Vec<(String, Lease)>,
}

impl Locks {
    /// The most locks that can be acquired at once.
    pub const MAX: usize = 1000;

    pub(crate) fn new(coordinator: Coordinator, names: BTreeSet<String>) -> Locks {
        Locks {
            request: RequestOptions::new(coordinator.default_ttl()),
            coordinator,
            names,
        }
    }

    request_options!();
    note_option!();

    /// Acquires the locks if all are free; does not wait.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future leaves nothing behind.
    pub async fn try_acquire(&self) -> Result<Attempt<LocksGuard>> {
        let acquisitions = self.acquisitions();
        match self.at_once().await {
            Ok(None) => {}
            // The caller may hold some of them already. If another owner holds one, none is acquired.
            Ok(Some(Attempt::Busy(holder))) if self.may_be_own(holder.as_ref()) => {}
            decided => {
                self.record(acquisitions, &decided, WaitPolicy::None);
                return decided.map(|decided| decided.expect("it was decided"));
            }
        }
        // Each of them is recorded on its own.
        acquisitions.into_iter().for_each(Acquisition::discard);
        self.in_order(WaitPolicy::None).await
    }

    /// Waits until all are granted.
    ///
    /// # Errors
    ///
    /// [`WaitElapsed`](ErrorKind::WaitElapsed) if [`wait`](Locks::wait) was set and has passed. None is held then.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future leaves nothing behind.
    pub async fn acquire(&self) -> Result<LocksGuard> {
        let wait = WaitPolicy::of(self.request.wait, self.coordinator.keeper());
        match self.acquire_with(wait).await? {
            Attempt::Acquired(guard) => Ok(guard),
            Attempt::Busy(holder) => {
                let by = holder.map_or("another client".to_owned(), |h| h.owner);
                let waited = self.request.wait.unwrap_or_default();
                let message = format!("one of them is still held by {by} after {waited:?}");
                let error = Error::new(ErrorKind::WaitElapsed, "acquire", message);
                Err(self
                    .coordinator
                    .describe(error.with_name(&self.display_names())))
            }
        }
    }

    /// Waits until all are granted, at most for `wait`.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future leaves nothing behind.
    pub async fn acquire_within(&self, wait: Duration) -> Result<Attempt<LocksGuard>> {
        let wait = WaitPolicy::of(Some(wait), self.coordinator.keeper());
        self.acquire_with(wait).await
    }

    /// Whether the holder may be the owner of this request.
    fn may_be_own(&self, holder: Option<&Holder>) -> bool {
        let own = self.request.owner.as_deref();
        own.is_some_and(|own| holder.is_none_or(|holder| holder.owner == own))
    }

    async fn acquire_with(&self, wait: WaitPolicy) -> Result<Attempt<LocksGuard>> {
        let acquisitions = self.acquisitions();
        match self.at_once().await {
            Ok(None | Some(Attempt::Busy(_))) => {}
            // One by one, each is retried as the request says.
            Err(e) if e.is_retryable() => {}
            decided => {
                self.record(acquisitions, &decided, wait);
                return decided.map(|decided| decided.expect("it was decided"));
            }
        }
        // Each of them is recorded on its own.
        acquisitions.into_iter().for_each(Acquisition::discard);
        self.in_order(wait).await
    }

    fn acquisitions(&self) -> Vec<Acquisition> {
        let keeper = self.coordinator.keeper();
        let begin = |name: &String| {
            let telemetry = keeper.telemetry();
            telemetry.acquisition(Kind::Lock, name, keeper.clock())
        };
        self.names.iter().map(begin).collect()
    }

    /// Records the decision about all names.
    fn record(
        &self,
        acquisitions: Vec<Acquisition>,
        decided: &Result<Option<Attempt<LocksGuard>>>,
        wait: WaitPolicy,
    ) {
        let keeper = self.coordinator.keeper();
        let (telemetry, clock) = (keeper.telemetry(), keeper.clock());
        let outcome = match decided {
            Ok(Some(Attempt::Acquired(guard))) => {
                let granted = acquisitions.into_iter().zip(&guard.leases);
                return granted.for_each(|(one, (_, lease))| one.granted(telemetry, lease));
            }
            Ok(_) => Outcome::busy(wait),
            Err(_) => Outcome::Error,
        };
        for acquisition in acquisitions {
            acquisition.ended(outcome, clock);
        }
    }

    /// Acquires one after the other, in the order of their names.
    async fn in_order(&self, wait: WaitPolicy) -> Result<Attempt<LocksGuard>> {
        let mut leases = Vec::with_capacity(self.names.len());
        for name in &self.names {
            match self.acquirer(name).attempt(wait).await? {
                AcquireOutcome::Held(lease) => leases.push((name.clone(), lease)),
                AcquireOutcome::Busy(holder) => return Ok(Attempt::Busy(holder)),
            }
        }
        let guard = LocksGuard { leases };
        match guard.is_held() {
            true => Ok(Attempt::Acquired(guard)),
            false => {
                let lost = "one of them was lost while waiting for the others";
                let error = Error::new(ErrorKind::Lost, "acquire", lost);
                Err(self
                    .coordinator
                    .describe(error.with_name(&self.display_names())))
            }
        }
    }

    /// Acquires all of them in one decision; `None` if the store cannot decide about them together.
    async fn at_once(&self) -> Result<Option<Attempt<LocksGuard>>> {
        self.check()?;
        let names: Result<_> = self
            .names
            .iter()
            .map(|name| self.acquirer(name).full_name("acquire"))
            .collect();
        let describe = |e| self.coordinator.describe(e);
        let (keeper, store) = (self.coordinator.keeper(), self.coordinator.claims());
        let display_names = self.display_names();
        let outcome = acquire_all(keeper, store, names?, &self.request, &display_names);
        let leases = match outcome.await.map_err(describe)? {
            AllOutcome::Held(leases) => leases,
            AllOutcome::Busy(holder) => return Ok(Some(Attempt::Busy(holder))),
            AllOutcome::Unsupported => return Ok(None),
        };
        let own = self.request.replicas.as_deref().copied();
        let replicas = own.or(self.coordinator.replicas());
        // If one is not acknowledged, the others are dropped, which releases them.
        let leases = leases.into_iter();
        let leases = leases.map(|lease| Box::pin(await_replicas(lease, replicas)));
        let leases: Result<Vec<Lease>> = join_all(leases.collect()).await.into_iter().collect();
        let leases = leases.map_err(describe)?;
        let leases = self.names.iter().cloned().zip(leases).collect();
        Ok(Some(Attempt::Acquired(LocksGuard { leases })))
    }

    fn check(&self) -> Result<()> {
        let invalid = |message: String| Err(Error::invalid("acquire", message));
        match self.names.len() {
            0 => invalid("no lock name was given".into()),
            n if n > Locks::MAX => invalid(format!(
                "{n} locks are more than the limit of {}",
                Locks::MAX
            )),
            _ => Ok(()),
        }
    }

    fn display_names(&self) -> String {
        let names: Vec<&str> = self.names.iter().map(String::as_str).collect();
        names.join(", ")
    }

    fn acquirer<'a>(&'a self, name: &'a str) -> Acquirer<'a> {
        Acquirer {
            coordinator: &self.coordinator,
            kind: Kind::Lock,
            name,
            share: Share::ONLY,
            request: &self.request,
            heal_missing_ttl: false,
        }
    }
}

impl LocksGuard {
    /// The fence of one of the locks, for the resource that it protects. `None` if `name` is not among them.
    pub fn fence(&self, name: &str) -> Option<Fence> {
        let lease = self.leases.iter().find(|(known, _)| known == name);
        lease.map(|(_, lease)| lease.fence())
    }

    /// The names of the locks, without the namespace, in the order of acquisition.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.leases.iter().map(|(name, _)| name.as_str())
    }

    /// The lease of each lock with its name, without the namespace, in the order of acquisition.
    pub fn leases(&self) -> impl Iterator<Item = (&str, &Lease)> {
        self.leases
            .iter()
            .map(|(name, lease)| (name.as_str(), lease))
    }

    /// How long all of them are certain to be held if no further renewal succeeds.
    pub fn remaining(&self) -> Duration {
        let remaining = self.leases.iter().map(|(_, lease)| lease.remaining());
        remaining.min().unwrap_or_default()
    }

    /// Whether all of them are certainly held at this moment.
    pub fn is_held(&self) -> bool {
        self.leases.iter().all(|(_, lease)| lease.is_held())
    }

    /// Resolves when the first of them is lost.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future loses nothing.
    pub async fn lost(&self) {
        let mut losses: Vec<Pin<Box<dyn Future<Output = ()> + Send + '_>>> = Vec::new();
        for (_, lease) in &self.leases {
            losses.push(Box::pin(lease.lost()));
        }
        poll_fn(|cx| {
            let lost = losses
                .iter_mut()
                .any(|loss| loss.as_mut().poll(cx).is_ready());
            if lost { Poll::Ready(()) } else { Poll::Pending }
        })
        .await;
    }

    /// Runs `work` while all leases are held. When one is lost, drops `work` at its next await.
    ///
    /// # Cancel safety
    ///
    /// Dropping this future drops the work; the locks stay held.
    pub async fn run<F: Future>(&self, work: F) -> Result<F::Output, LeaseLost> {
        tokio::select! {
            biased;
            () = self.lost() => Err(LeaseLost),
            output = work => Ok(output),
        }
    }

    /// Releases all of them, and returns whether all were held until now.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the release goes on in the background.
    ///
    /// # Errors
    ///
    /// If the store did not answer for one of them, its release goes on in the background.
    pub async fn release(self) -> Result<Released> {
        let releases: Vec<_> = self
            .leases
            .into_iter()
            .map(|(_, lease)| Box::pin(lease.release()))
            .collect();
        let mut outcome = Ok(Released::WasHeld);
        for released in join_all(releases).await {
            match released {
                Ok(Released::WasHeld) => {}
                Ok(other) => outcome = outcome.map(|_| other),
                Err(e) => outcome = Err(e),
            }
        }
        outcome
    }
}

impl fmt::Debug for LocksGuard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map()
            .entries(self.leases.iter().map(|(name, lease)| (name, lease)))
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use crate::connect;

    #[tokio::test]
    async fn none_is_acquired_for_a_moment_while_another_owner_holds_one() {
        let w = connect("memory:").await.unwrap();
        let fence = async || {
            let held = w.lock("a").acquire().await.unwrap();
            let fence = held.fence().get();
            assert!(held.release().await.unwrap().was_held());
            fence
        };
        let other = w.lock("b").acquire().await.unwrap();
        let both = w.locks(["a", "b"]).owner("me");
        let before = fence().await;
        assert!(both.try_acquire().await.unwrap().is_busy());
        assert_eq!(fence().await, before + 1, "each grant has a fence");
        assert!(other.release().await.unwrap().was_held());
        // What the same owner holds is no obstacle.
        let mine = w.lock("a").owner("me").acquire().await.unwrap();
        let acquired = both.try_acquire().await.unwrap().acquired();
        assert_eq!(acquired.unwrap().fence("a"), Some(mine.fence()));
    }
}
