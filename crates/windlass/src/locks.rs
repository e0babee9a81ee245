//! Several locks at once: all or none.

use std::collections::BTreeSet;
use std::fmt;
use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use crate::acquirer::Acquirer;
use crate::coordinator::Coordinator;
use crate::lease::{
    AcquireOutcome, CancelGuard, Fence, Lease, LeaseLost, Request, WaitPolicy, acknowledge,
    note_option, request_options,
};
use crate::lock::Attempt;
use windlass_core::error::{Error, ErrorKind, Result};
use windlass_core::join::join_all;
use windlass_core::store::{AcquireRequest, AcquiredAll, Kind, OnBusy, Released, Share};

/// The most locks that can be acquired at once.
pub const MAX_LOCKS: usize = 1000;

/// Several locks to be acquired together.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> windlass::Result<()> {
/// let w = windlass::connect("memory:").await?;
/// let both = w.locks(["account/7", "account/12"]).acquire().await?;
/// // … move money, and hand each account its own fence …
/// let (from, to) = (both.fence("account/7"), both.fence("account/12"));
/// # assert!(from.is_some() && to.is_some());
/// both.release().await?;
/// # Ok(()) }
/// ```
///
/// # Guarantees
///
/// - All or none. If all are free, they are granted in one decision. (In a Redis Cluster that takes locks
///   of one hash slot, as `{account}:7` and `{account}:12` are; others are acquired as below.)
/// - If not, and the caller waits, they are acquired one after the other in the order of their names,
///   each in its own line: so two that want the same locks, named in any order, cannot wait for each
///   other. Whoever waits holds those that come first in that order.
/// - Whatever fails or is cancelled on the way, all are released.
/// - They are ordinary locks: whoever asks for one of them alone is kept out too.
#[derive(Clone, Debug)]
#[must_use = "locks do nothing until they are acquired"]
pub struct Locks {
    coordinator: Coordinator,
    names: BTreeSet<String>,
    request: Request,
}

/// Several held locks, with one signal of loss. Dropping it releases them all in the background.
#[must_use = "dropping the guard releases the locks"]
pub struct LocksGuard {
    leases: Vec<(String, Lease)>,
}

impl Locks {
    pub(crate) fn new(coordinator: Coordinator, names: BTreeSet<String>) -> Locks {
        Locks {
            coordinator,
            names,
            request: Request::new(),
        }
    }

    request_options!();
    note_option!();

    /// Asks once: the answer comes at once.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future leaves nothing behind.
    pub async fn try_acquire(&self) -> Result<Attempt<LocksGuard>> {
        match self.at_once().await? {
            None => self.in_order(WaitPolicy::None).await,
            // Somebody who comes as an owner may have some of them already.
            Some(Attempt::Busy(_)) if self.request.owner.is_some() => {
                self.in_order(WaitPolicy::None).await
            }
            Some(answered) => Ok(answered),
        }
    }

    /// Waits until all are ours.
    ///
    /// # Errors
    ///
    /// If a patience was set with [`wait`](Locks::wait) and it ran out, the error's kind is
    /// [`WaitElapsed`](ErrorKind::WaitElapsed), and none is held.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future leaves nothing behind.
    pub async fn acquire(&self) -> Result<LocksGuard> {
        let patience = WaitPolicy::of(self.request.wait, self.coordinator.keeper());
        match self.acquire_with(patience).await? {
            Attempt::Acquired(guard) => Ok(guard),
            Attempt::Busy(holder) => {
                let by = holder.map_or("somebody else".to_owned(), |h| h.owner);
                let waited = self.request.wait.unwrap_or_default();
                let message = format!("one of them was still held by {by} after {waited:?}");
                let error = Error::new(ErrorKind::WaitElapsed, "acquire", message);
                Err(self.coordinator.describe(error.with_name(&self.shown())))
            }
        }
    }

    /// Waits until all are ours, but no longer than `wait`.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future leaves nothing behind.
    pub async fn acquire_within(&self, wait: Duration) -> Result<Attempt<LocksGuard>> {
        let patience = WaitPolicy::of(Some(wait), self.coordinator.keeper());
        self.acquire_with(patience).await
    }

    async fn acquire_with(&self, patience: WaitPolicy) -> Result<Attempt<LocksGuard>> {
        match self.at_once().await {
            Ok(None | Some(Attempt::Busy(_))) => {}
            Ok(Some(acquired)) => return Ok(acquired),
            // Asked one by one, each is tried again as often as the request says.
            Err(e) if e.is_retryable() => {}
            Err(e) => return Err(e),
        }
        self.in_order(patience).await
    }

    /// Asks for one after the other, in the order of their names.
    async fn in_order(&self, patience: WaitPolicy) -> Result<Attempt<LocksGuard>> {
        let mut leases = Vec::with_capacity(self.names.len());
        for name in &self.names {
            match self.asking(name).attempt(patience).await? {
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
                Err(self.coordinator.describe(error.with_name(&self.shown())))
            }
        }
    }

    /// Asks for all of them in one decision; `None` if the store cannot take it.
    async fn at_once(&self) -> Result<Option<Attempt<LocksGuard>>> {
        self.check()?;
        let keeper = self.coordinator.keeper();
        keeper.check_alive()?;
        let mut undos = Vec::with_capacity(self.names.len());
        let mut asks = Vec::with_capacity(self.names.len());
        for name in &self.names {
            let name = self.asking(name).checked_name("acquire")?;
            let store = self.coordinator.claims();
            let terms = self.request.terms("acquire", store, Kind::Lock, name)?;
            let claim = keeper.new_claim(terms);
            asks.push(AcquireRequest {
                kind: Kind::Lock,
                name: claim.terms.name.clone(),
                owner: claim.terms.owner.clone(),
                share: Share::ONLY,
                ttl: claim.terms.ttl,
                on_busy: OnBusy::Return,
                note: claim.terms.note.clone(),
                heal_missing_ttl: false,
                record_now: self.request.record_now(),
                again: false,
                renewed: claim.terms.is_renewed_for_ever(),
                wake: claim.wake,
            });
            // From here on, being dropped leaves something to clean up.
            undos.push(CancelGuard::arm(Arc::clone(keeper), claim));
        }
        let sent = keeper.clock().now();
        let answer = self.coordinator.claims().acquire_all(asks);
        match self
            .coordinator
            .call("acquire", &self.shown(), answer)
            .await
        {
            Ok(AcquiredAll::Granted(fences)) => {
                let mut held = true;
                for (undo, fence) in undos.iter().zip(fences) {
                    let recorded = self.request.record_now();
                    held &= keeper.hold(undo.claim(), sent, fence, recorded);
                }
                if !held {
                    let late = "the store's answer came after the claims would have expired";
                    let error = Error::new(ErrorKind::OutcomeUnknown, "acquire", late);
                    return Err(self.coordinator.describe(error.with_name(&self.shown())));
                }
                let own = self.request.replicas.as_deref().copied();
                let replicas = own.or(self.coordinator.replicas());
                let leases = undos.into_iter().map(Lease::new);
                // If one is not acknowledged, the others are dropped, and so given up.
                let leases = leases.map(|lease| Box::pin(acknowledge(lease, replicas)));
                let leases: Result<Vec<Lease>> =
                    join_all(leases.collect()).await.into_iter().collect();
                let leases = leases.map_err(|e| self.coordinator.describe(e))?;
                let leases = self.names.iter().cloned().zip(leases).collect();
                Ok(Some(Attempt::Acquired(LocksGuard { leases })))
            }
            Ok(AcquiredAll::Busy { holder, .. }) => {
                forget(&mut undos);
                Ok(Some(Attempt::Busy(holder)))
            }
            Ok(AcquiredAll::Apart) => {
                forget(&mut undos);
                Ok(None)
            }
            Err(e) => {
                match e.may_have_happened() {
                    true => undos.iter().for_each(|undo| undo.claim().set_unanswered()),
                    false => forget(&mut undos),
                }
                Err(e)
            }
        }
    }

    fn check(&self) -> Result<()> {
        let invalid = |message: String| Err(Error::invalid("acquire", message));
        match self.names.len() {
            0 => invalid("no lock was named".into()),
            n if n > MAX_LOCKS => invalid(format!("{n} locks are more than {MAX_LOCKS}")),
            _ => Ok(()),
        }
    }

    /// The names, for people.
    fn shown(&self) -> String {
        let names: Vec<&str> = self.names.iter().map(String::as_str).collect();
        names.join(", ")
    }

    fn asking<'a>(&'a self, name: &'a str) -> Acquirer<'a> {
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

/// Nothing was granted, so nothing is to be undone.
fn forget(undos: &mut [CancelGuard]) {
    for undo in undos {
        undo.defuse();
        undo.keeper().forget(undo.claim());
    }
}

impl LocksGuard {
    /// The fence of one of the locks: each resource gets that of its own lock. `None` if it is not
    /// among them.
    pub fn fence(&self, name: &str) -> Option<Fence> {
        let lease = self.leases.iter().find(|(known, _)| known == name);
        lease.map(|(_, lease)| lease.fence())
    }

    /// The locks' names, without the namespace, in the order in which they are acquired.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.leases.iter().map(|(name, _)| name.as_str())
    }

    /// How long all of them are certain to be held, should no renewal succeed any more.
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
    /// Dropping it costs nothing.
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

    /// Runs `work` while all leases last; drops it, at its next await, when one is lost.
    ///
    /// # Cancel safety
    ///
    /// Dropping this future drops the work; the guard lives on.
    pub async fn run<F: Future>(&self, work: F) -> Result<F::Output, LeaseLost> {
        tokio::select! {
            biased;
            () = self.lost() => Err(LeaseLost),
            output = work => Ok(output),
        }
    }

    /// Releases all of them, and tells whether all were held until now.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the release goes on in the background.
    ///
    /// # Errors
    ///
    /// If the store did not answer for one of them, it is released in the background.
    pub async fn release(self) -> Result<Released> {
        // All are asked for at once; the answers are awaited one by one.
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
