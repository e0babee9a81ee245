//! Releasing claims: once and awaited, or in the background until the store confirms.
//!
//! **Cancellation.** The [`CancelGuard`] of a claim exists from before the first request until the lease ends. Dropping
//! it at any point, in any state, starts a release in the background with a deadline of its own. The store releases by
//! owner, so it does not matter whether the claim was granted, queued, or not received yet.
//!
//! A background release starts in one of three ways. Memory decides at once, and there is nothing to wait for: a task for
//! each dropped guard would fill the memory of a program that drops many without awaiting anything. etcd and ZooKeeper
//! start without being awaited; there it has begun when this returns. On the other stores it begins when its task
//! runs, so a request that the program makes next may come first. That is safe: under an owner that the caller chose, only this
//! very claim is released. A program that ends before the release leaves the claim to its TTL, unless it waits for
//! [`Coordinator::finish_releases`](crate::Coordinator::finish_releases).
//!
//! A store that is slow or gone must not fill the memory with releases: a few thousand run at a time, and the others
//! wait their turn as what they are, a claim and a time. What exceeds that is left to its TTL.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;

use super::claim::EndedLease;
use super::{Claim, Keeper, Lease, Moment};
use windlass_core::error::{Error, ErrorKind, Result};
use windlass_core::store::{Pending, Released};

/// Releases that run at a time, each in a task.
const MAX_RUNNING: usize = 2_000;
/// Releases that wait for one of these to end.
const MAX_WAITING: usize = 50_000;
/// Releases that are repeated later.
const MAX_DELAYED: usize = 10_000;

/// Releases its claim in the background when dropped, unless defused.
#[derive(Debug)]
pub(crate) struct CancelGuard {
    keeper: Arc<Keeper>,
    claim: Arc<Claim>,
    armed: bool,
    /// The claim is not released before this time.
    not_before: Option<Moment>,
}

impl CancelGuard {
    pub(crate) fn arm(keeper: Arc<Keeper>, claim: Arc<Claim>) -> CancelGuard {
        CancelGuard {
            keeper,
            claim,
            armed: true,
            not_before: None,
        }
    }

    /// Holds the claim at least for this long from now on: also when the guard is dropped earlier.
    pub(crate) fn hold_for(&mut self, time: Duration) {
        self.not_before = Some(self.keeper.clock.now() + time);
    }

    /// Nothing is left to release.
    pub(crate) fn defuse(&mut self) {
        self.armed = false;
    }

    /// The store replied that nothing was granted. The guard stays armed if an earlier request got no reply:
    /// that one may still be granted.
    pub(crate) fn defuse_unless_unanswered(&mut self) {
        if !self.claim.was_unanswered() {
            self.defuse();
            self.keeper.forget(&self.claim);
        }
    }

    pub(crate) fn claim(&self) -> &Arc<Claim> {
        &self.claim
    }

    pub(crate) fn keeper(&self) -> &Arc<Keeper> {
        &self.keeper
    }
}

impl Drop for CancelGuard {
    fn drop(&mut self) {
        if self.armed {
            let is_early = |end: &Moment| *end > self.keeper.clock.now();
            match self.not_before.filter(is_early) {
                None => self.keeper.release_in_background(&self.claim),
                Some(end) => self.release_at(end),
            }
        }
    }
}

impl CancelGuard {
    /// Releases in the background at this time. The claim is renewed until then, as any that is not
    /// forgotten.
    fn release_at(&self, end: Moment) {
        let later = CancelGuard::arm(Arc::clone(&self.keeper), Arc::clone(&self.claim));
        self.keeper.runtime.spawn(async move {
            let lost = later.claim.lost_token();
            later.keeper.clock.until(end, lost.cancelled()).await;
            drop(later);
        });
    }
}

impl Lease {
    /// See [`Lock::min_hold`](crate::Lock::min_hold).
    pub(crate) fn held_at_least(mut self, time: Option<Duration>) -> Lease {
        if let Some(time) = time {
            self.cancel_guard.hold_for(time);
        }
        self
    }

    /// See [`LockGuard::release`](crate::LockGuard::release).
    pub(crate) async fn release(mut self) -> Result<Released> {
        if let Some(end) = self.cancel_guard.not_before {
            let lost = self.lost_token();
            self.keeper().clock().until(end, lost.cancelled()).await;
        }
        let (keeper, claim) = (Arc::clone(self.keeper()), Arc::clone(self.claim()));
        let since = keeper.forget(&claim);
        let may_still_arrive = claim.may_still_arrive();
        let released = keeper.release(&claim, since).await?;
        if !may_still_arrive {
            self.cancel_guard.defuse();
        }
        Ok(released)
    }
}

impl Keeper {
    /// Stops renewing a claim that is being released. Returns when that was, if it was read from the clock.
    pub(crate) fn forget(&self, claim: &Arc<Claim>) -> Option<Moment> {
        let ended = {
            let mut table = self.table();
            table.claims.remove(&claim.wake.claim);
            let mut state = claim.state();
            table.unschedule(claim.wake.claim, &mut state);
            claim.mark_ended(&mut state, &self.clock)
        };
        let at = ended.as_ref().map(EndedLease::at);
        claim.record(ended);
        at
    }

    /// Releases a claim once, measured from `since`.
    pub(crate) async fn release(&self, claim: &Claim, since: Option<Moment>) -> Result<Released> {
        let reply = send_release(claim);
        let name = claim.spec.name.as_str();
        self.call_since(since, "release", name, reply).await.0
    }

    /// Releases a claim in the background, in whatever state it is, until the store confirms or the claim must
    /// have expired.
    pub(crate) fn release_in_background(self: &Arc<Keeper>, claim: &Arc<Claim>) {
        let may_still_arrive = claim.may_still_arrive();
        self.forget(claim);
        if claim.spec.store.decides_immediately() {
            drop(send_release(claim));
            return;
        }
        self.start_release(QueuedRelease {
            claim: Arc::clone(claim),
            deadline: self.clock.now() + claim.spec.ttl + self.call_timeout,
            may_still_arrive,
        });
    }

    /// Waits until no background release runs.
    pub(crate) async fn finish_releases(&self) {
        let mut ended = std::pin::pin!(self.releases.ended.notified());
        loop {
            // Before the check, so that an end between the two is noticed.
            ended.as_mut().enable();
            if self.releases.entries().running == 0 {
                return;
            }
            ended.as_mut().await;
            ended.set(self.releases.ended.notified());
        }
    }

    fn start_release(self: &Arc<Keeper>, release: QueuedRelease) {
        let Some(mut release) = self.releases.admit(release) else {
            return;
        };
        let keeper = Arc::clone(self);
        let mut reply = send_release(&release.claim);
        self.runtime.spawn(async move {
            loop {
                if let Some(again) = keeper.finish_release(release, reply).await {
                    keeper.delay_release(again);
                }
                let Some(next) = keeper.releases.next() else {
                    return;
                };
                reply = send_release(&next.claim);
                release = next;
            }
        });
    }

    /// Repeats a release until it is confirmed. Returns it if it must be repeated later nevertheless.
    async fn finish_release(
        &self,
        release: QueuedRelease,
        mut reply: Pending<'static, Released>,
    ) -> Option<QueuedRelease> {
        let mut pause = Duration::from_millis(50);
        loop {
            let name = release.claim.spec.name.as_str();
            match self.call("release", name, reply).await {
                // The request that is being undone may still be on its way, on an abandoned
                // connection: release once more later.
                Ok(Released::WasGone) if release.may_still_arrive => {
                    return Some(QueuedRelease {
                        may_still_arrive: false,
                        ..release
                    });
                }
                Ok(_) => return None,
                Err(e) if is_final(&e) => {
                    tracing::warn!(error = %e, "could not release; the claim will expire");
                    return None;
                }
                Err(_) => self.clock.sleep(pause).await,
            }
            if self.clock.now() >= release.deadline {
                return None;
            }
            pause = (pause * 2).min(Duration::from_secs(1));
            reply = send_release(&release.claim);
        }
    }

    /// Releases once more when the call timeout has passed, or sooner if too many wait for that.
    fn delay_release(self: &Arc<Keeper>, release: QueuedRelease) {
        let (first, has_timer) = {
            let mut entries = self.releases.entries();
            let due = self.clock.now() + self.call_timeout;
            entries.delayed.push_back((due, release));
            let first = match entries.delayed.len() > MAX_DELAYED {
                true => entries.delayed.pop_front(),
                false => None,
            };
            (first, std::mem::replace(&mut entries.has_timer, true))
        };
        if let Some((_, first)) = first {
            self.start_release(first);
        }
        if !has_timer {
            let keeper = Arc::clone(self);
            self.runtime.spawn(keeper.start_delayed_releases());
        }
    }

    async fn start_delayed_releases(self: Arc<Keeper>) {
        loop {
            let next = {
                let mut entries = self.releases.entries();
                let next = entries.delayed.front().map(|(due, _)| *due);
                entries.has_timer = next.is_some();
                next
            };
            let Some(next) = next else {
                return;
            };
            self.clock.sleep_until(next).await;
            let now = self.clock.now();
            while let Some(release) = self.releases.take_due(now) {
                self.start_release(release);
            }
        }
    }
}

/// The background releases of a keeper.
#[derive(Default)]
pub(super) struct ReleaseQueue {
    entries: Mutex<QueuedReleases>,
    /// The last running one has ended.
    ended: Notify,
}

#[derive(Default)]
struct QueuedReleases {
    running: usize,
    waiting: VecDeque<QueuedRelease>,
    /// In the order in which they are due.
    delayed: VecDeque<(Moment, QueuedRelease)>,
    /// A task waits for the first of `delayed`.
    has_timer: bool,
}

/// A claim to release, until a deadline.
struct QueuedRelease {
    claim: Arc<Claim>,
    deadline: Moment,
    /// The request that is being undone may still be on its way.
    may_still_arrive: bool,
}

impl ReleaseQueue {
    fn entries(&self) -> MutexGuard<'_, QueuedReleases> {
        // No code that holds this lock can panic.
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether the release may run now. If not, it waits, and is returned to a task that ends.
    fn admit(&self, release: QueuedRelease) -> Option<QueuedRelease> {
        let mut entries = self.entries();
        if entries.running < MAX_RUNNING {
            entries.running += 1;
            return Some(release);
        }
        if entries.waiting.len() < MAX_WAITING {
            entries.waiting.push_back(release);
        } else {
            let name = &release.claim.spec.name;
            tracing::warn!(%name, "too many releases are pending; the claim will expire");
        }
        None
    }

    /// A delayed release that is due.
    fn take_due(&self, now: Moment) -> Option<QueuedRelease> {
        let mut entries = self.entries();
        let (due, _) = entries.delayed.front()?;
        match *due <= now {
            true => entries.delayed.pop_front().map(|(_, release)| release),
            false => None,
        }
    }

    /// The next release for a task whose last one has ended. Without one, the task ends.
    fn next(&self) -> Option<QueuedRelease> {
        let mut entries = self.entries();
        let next = entries.waiting.pop_front();
        if next.is_none() {
            entries.running -= 1;
            if entries.running == 0 {
                self.ended.notify_waiters();
            }
        }
        next
    }
}

fn send_release(claim: &Claim) -> Pending<'static, Released> {
    let spec = &claim.spec;
    if spec.random_owner && claim.is_unrecorded() {
        let (name, owner) = (spec.name.clone(), spec.owner.clone());
        return spec.store.release_unrecorded(spec.kind, name, owner);
    }
    // Under an owner that the caller chose, a later claim may have replaced this one.
    let only = (!spec.random_owner).then_some(claim.wake);
    let (name, owner) = (spec.name.clone(), spec.owner.clone());
    spec.store.release(spec.kind, name, owner, only)
}

/// Whether a retry cannot change the reply.
fn is_final(e: &Error) -> bool {
    matches!(
        e.kind(),
        ErrorKind::AccessDenied | ErrorKind::WrongType | ErrorKind::InvalidInput
    )
}
