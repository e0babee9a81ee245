//! Acquires and holds a lock, permits or one side of a read-write lock: one interface to all of them. Waits in the queue
//! if needed, and leaves the queue when a signal arrives.

use std::ops::Deref;
use std::time::Duration;

use serde::Serialize;
use tokio::time::timeout;
use windlass::{
    Attempt, Coordinator, Detached, Holder, Lease, Lock, LockGuard, Permit, ReadGuard, Released,
    RetryPolicy, RwGuard, RwLock, Semaphore, WriteGuard,
};
use windlass_term::{Failure, Printer, Signal, Signals};

use super::several_locks::SeveralLocks;
use super::wait_report::{Blocker, WaitReport};
use crate::humanize;

/// Retries of a waiter while the store is unreachable: a server takes seconds to restart.
pub(super) const RETRY_WHILE_WAITING: RetryPolicy = RetryPolicy::tries(8);

/// Limit for leaving the queue, or undoing a failed acquire. If that fails, the claim expires with its TTL.
pub(super) const RELEASE_TIMEOUT: Duration = Duration::from_secs(1);

/// How long to wait for something that is held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WaitLimit {
    None,
    Within(Duration),
    Forever,
}

/// The result of trying to acquire.
#[derive(Debug)]
pub(super) enum Acquisition<H> {
    Held(H),
    Busy(Option<Holder>),
    /// A signal arrived first. Nothing is held, and no queue entry is left.
    Interrupted(Signal),
}

/// Something that can be acquired, waited for in a queue, and released.
pub(super) trait Acquirable: Clone {
    type Guard;

    /// Sets the retry policy for an unreachable store.
    fn retry(self, policy: RetryPolicy) -> Self;

    /// Tries once.
    async fn try_acquire(&self) -> windlass::Result<Attempt<Self::Guard>>;

    /// Waits in the queue for at most `wait`.
    async fn acquire_within(&self, wait: Duration) -> windlass::Result<Attempt<Self::Guard>>;

    /// Waits in the queue.
    async fn acquire(&self) -> windlass::Result<Self::Guard>;

    /// Who holds it, and how many wait.
    async fn blocker(&self) -> windlass::Result<Blocker>;

    /// Releases what `owner` holds, or removes its queue entry.
    async fn release_as(&self, owner: &str) -> windlass::Result<Released>;
}

/// Acquires `request`, which must be set up for `owner`. If it is held and `limit` allows to wait, `on_wait` is called
/// once, and the wait is reported.
pub(super) async fn acquire<A: Acquirable>(
    store: &Coordinator,
    request: &A,
    owner: &str,
    limit: WaitLimit,
    signals: &mut Signals,
    report: &WaitReport<'_>,
    on_wait: impl FnOnce(Option<&Holder>),
) -> Result<Acquisition<A::Guard>, Failure> {
    let attempt = async {
        // Tried first without queueing, so that the caller can report the holder before it waits.
        let holder = match request.try_acquire().await? {
            Attempt::Busy(holder) if limit != WaitLimit::None => holder,
            answered => return Ok(answered),
        };
        on_wait(holder.as_ref());
        let ask = async || request.blocker().await;
        report.announce(&ask).await;
        let patient = request.clone().retry(RETRY_WHILE_WAITING);
        let waiting = async {
            match limit {
                WaitLimit::Within(wait) => patient.acquire_within(wait).await,
                _ => patient.acquire().await.map(Attempt::Acquired),
            }
        };
        report.during(&ask, waiting).await
    };
    // A block, so that the attempt is dropped here.
    let attempt = {
        tokio::select! {
            biased;
            signal = signals.next() => Err(signal),
            attempt = attempt => Ok(attempt),
        }
    };
    match attempt {
        Ok(Ok(Attempt::Acquired(held))) => Ok(Acquisition::Held(held)),
        Ok(Ok(Attempt::Busy(holder))) => {
            // Of several locks, the first ones were held while the wait for the others went on.
            finish_releases(store).await;
            Ok(Acquisition::Busy(holder))
        }
        Ok(Err(error)) => {
            finish_releases(store).await;
            Err(error.into())
        }
        Err(signal) => {
            // Dropping the attempt releases it in the background, which this process would not outlive: release it
            // again, and wait for that.
            let _ = timeout(RELEASE_TIMEOUT, request.release_as(owner)).await;
            Ok(Acquisition::Interrupted(signal))
        }
    }
}

/// Waits until the store has undone what a failed call may have done: this process would not outlive a release in the
/// background. That release is of the failed claim alone; one by owner would end an earlier claim of the same `--owner`.
pub(super) async fn finish_releases(store: &Coordinator) {
    let _ = timeout(RELEASE_TIMEOUT, store.finish_releases()).await;
}

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

#[derive(Serialize)]
struct BusyAnswer<'a> {
    /// `None` if it is not known which of several is held.
    name: Option<&'a str>,
    held_by: Option<&'a str>,
    remaining_ms: Option<u64>,
}

/// Reports that one of several locks is held, or was until now.
pub(super) async fn report_one_busy(locks: &SeveralLocks, names: &str, printer: &Printer) {
    // A failure does not matter: this is only information.
    match locks.first_held().await.ok().flatten() {
        Some((name, holder, _)) => report(Some(name), Some(&holder), printer, || {
            lock_text(name, &holder)
        }),
        None => report(None, None, printer, || {
            format!("one of {names} was held until now")
        }),
    }
}

/// Reports that it is held: a JSON answer on stdout, or a message on stderr.
pub(super) fn report_busy(
    request: &ClaimRequest,
    name: &str,
    holder: Option<&Holder>,
    printer: &Printer,
) {
    report(Some(name), holder, printer, || {
        busy_text(request, name, holder)
    });
}

/// Reports that a `once` key is already running.
pub(super) fn report_running(name: &str, holder: Option<&Holder>, printer: &Printer) {
    report(Some(name), holder, printer, || match holder {
        Some(holder) => lock_text(name, holder),
        None => format!("{name} was held until now"),
    });
}

/// Reports that another candidate leads.
pub(super) fn report_led(name: &str, leader: Option<&Holder>, printer: &Printer) {
    report(Some(name), leader, printer, || match leader {
        Some(leader) => {
            let (owner, remaining) = (humanize::holder(leader), humanize::remaining(leader));
            format!("{name} is led by {owner}, {remaining}")
        }
        None => format!("{name} was led by another candidate until now"),
    });
}

fn report(
    name: Option<&str>,
    holder: Option<&Holder>,
    printer: &Printer,
    text: impl FnOnce() -> String,
) {
    if printer.is_json() {
        let busy = BusyAnswer {
            name,
            held_by: holder.map(|holder| holder.owner.as_str()),
            remaining_ms: holder
                .and_then(|holder| holder.remaining)
                .map(humanize::millis),
        };
        printer.answer("busy", &busy, "");
    } else {
        printer.note(text());
    }
}

/// "backup is held by ann (nightly), expires in 12s unless renewed"
fn busy_text(request: &ClaimRequest, name: &str, holder: Option<&Holder>) -> String {
    let Some(holder) = holder else {
        return format!("{name} was held until now");
    };
    let (owner, remaining) = (humanize::holder(holder), humanize::remaining(holder));
    match request {
        ClaimRequest::Permit(..) => format!(
            "{name} has too few free permits; the first to expire belongs to {owner}, {remaining}"
        ),
        ClaimRequest::Read(_) | ClaimRequest::Write(_) if holder.weight > 1 => {
            format!("{name} is write-locked by {owner}, {remaining}")
        }
        // A reader blocks another one if a writer waits between them.
        ClaimRequest::Read(_) => {
            format!("{name} has a waiting writer, and is read-locked by {owner}, {remaining}")
        }
        ClaimRequest::Write(_) => format!("{name} is read-locked by {owner}, {remaining}"),
        ClaimRequest::Lock(_) => lock_text(name, holder),
    }
}

fn lock_text(name: &str, holder: &Holder) -> String {
    let (owner, remaining) = (humanize::holder(holder), humanize::remaining(holder));
    format!("{name} is held by {owner}, {remaining}")
}
