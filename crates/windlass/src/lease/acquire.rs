//! The one acquisition path: every primitive that is held acquires through [`acquire`].
//!
//! 1. The claim and its [`CancelGuard`] exist before the first request is sent, so that dropping the future at any
//!    await releases whatever the store may have granted.
//! 2. A waiter is registered for wake-ups before the request is sent: the wake-up may overtake the reply.
//! 3. A request without a reply may have been granted. Retrying is safe because the owner is the same; giving up
//!    releases by owner.
//! 4. A waiter whose ticket expired requests again.

use std::sync::Arc;
use std::time::Duration;

use super::{CancelGuard, Claim, ClaimPhase, Keeper, Lease, Moment, RequestOptions};
use crate::telemetry::Acquisition;
use windlass_core::Fence;
use windlass_core::error::{Error, ErrorKind, Result};
use windlass_core::name::Name;
use windlass_core::store::{
    AcquireRequest, Acquired, ClaimStore, Holder, Kind, OnBusy, Refusal, Renewed, Share,
};

/// How long a caller waits in the queue.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum WaitPolicy {
    None,
    Until(Moment),
    Forever,
}

impl WaitPolicy {
    /// Until `wait` has passed, or for ever.
    pub(crate) fn of(wait: Option<Duration>, keeper: &Keeper) -> WaitPolicy {
        match wait {
            Some(wait) => WaitPolicy::Until(keeper.clock().now() + wait),
            None => WaitPolicy::Forever,
        }
    }

    pub(crate) fn end(self) -> Moment {
        match self {
            WaitPolicy::None => Moment::from_nanos(0),
            WaitPolicy::Until(moment) => moment,
            WaitPolicy::Forever => Moment::NEVER,
        }
    }
}

/// What to acquire, and how.
pub(crate) struct AcquireParams<'a> {
    pub(crate) keeper: &'a Arc<Keeper>,
    pub(crate) store: &'a Arc<dyn ClaimStore>,
    pub(crate) kind: Kind,
    pub(crate) name: Name,
    pub(crate) share: Share,
    pub(crate) request: &'a RequestOptions,
    pub(crate) heal_missing_ttl: bool,
    pub(crate) acquisition: &'a Acquisition,
}

pub(crate) enum AcquireOutcome {
    Held(Lease),
    /// The holder in the way, where it is still known.
    Busy(Option<Holder>),
}

/// How long leaving the queue, and inspecting the holder afterwards, may each delay the caller.
const GIVE_UP_LIMIT: Duration = Duration::from_millis(250);

pub(crate) async fn acquire(params: AcquireParams<'_>, wait: WaitPolicy) -> Result<AcquireOutcome> {
    let AcquireParams { keeper, store, .. } = params;
    let spec = params
        .request
        .spec("acquire", store, params.kind, params.name)?;
    keeper.check_alive()?;
    let clock = keeper.clock();
    let claim = keeper.new_claim(spec);
    let mut cancel_guard = CancelGuard::arm(Arc::clone(keeper), Arc::clone(&claim));
    let on_busy = match wait {
        WaitPolicy::None => OnBusy::Return,
        _ => OnBusy::Enqueue,
    };
    let record_now = params.request.record_now();
    let mut request = AcquireRequest {
        heal_missing_ttl: params.heal_missing_ttl,
        ..acquire_request(&claim, params.share, on_busy, record_now)
    };
    if request.on_busy == OnBusy::Enqueue {
        keeper.register(&claim);
    }

    let mut tries = 0;
    let mut maybe_sent = false;
    // Not later than the request is sent, which is all that validity needs.
    let mut started = params.acquisition.started();
    loop {
        claim.mark_requested();
        if request.again {
            // An earlier request may have enqueued the claim.
            claim.mark_recorded();
        }
        let sent = started.take().unwrap_or_else(|| clock.now());
        let reply = claim.spec.store.acquire(request.clone());
        request.again = true;
        let (reply, received) = keeper
            .call_since(Some(sent), "acquire", request.name.as_str(), reply)
            .await;
        let error = match reply {
            Ok(Acquired::Granted { fence, recorded }) => {
                if keeper.hold(&claim, sent, fence, recorded, received) {
                    return lease_of(cancel_guard).map(AcquireOutcome::Held);
                }
                maybe_sent = true;
                granted_too_late()
            }
            Ok(Acquired::Busy(holder)) => {
                cancel_guard.defuse_unless_unanswered();
                return Ok(AcquireOutcome::Busy(Some(holder)));
            }
            Ok(Acquired::Refused(refusal)) => {
                cancel_guard.defuse_unless_unanswered();
                return Err(refused(&request, refusal));
            }
            Ok(Acquired::Queued {
                ticket,
                recheck_after,
            }) => {
                tries = 0;
                maybe_sent = true;
                keeper.enqueue(&claim, sent, ticket, recheck_after);
                check_fence(&claim)?;
                let waiting = params.acquisition.waiting();
                let waited = wait_for_grant(keeper, &claim, wait).await?;
                drop(waiting);
                match waited {
                    Waited::Granted => return lease_of(cancel_guard).map(AcquireOutcome::Held),
                    Waited::Dequeued => continue,
                    // Boxed, so that a waiter's future does not reserve space for it.
                    Waited::Elapsed => return Box::pin(give_up(cancel_guard)).await,
                }
            }
            Err(e) => {
                if e.may_have_happened() {
                    maybe_sent = true;
                    claim.mark_unanswered();
                }
                e
            }
        };
        tries += 1;
        let pause = params.request.retry.pause_after(tries);
        match pause {
            Some(pause) if error.is_retryable() && clock.now() + pause < wait.end() => {
                clock.sleep(pause).await;
            }
            _ => {
                if !maybe_sent {
                    cancel_guard.defuse();
                    keeper.forget(&claim);
                }
                return Err(error);
            }
        }
    }
}

/// The lease of a granted claim. A claim whose fence is too high is released when the guard is
/// dropped.
pub(super) fn lease_of(cancel_guard: CancelGuard) -> Result<Lease> {
    check_fence(cancel_guard.claim())?;
    Ok(Lease::new(cancel_guard))
}

/// Refuses a fence that another grant may have too.
fn check_fence(claim: &Claim) -> Result<()> {
    match claim.state().fence {
        Some(fence) if fence > Fence::MAX => {
            let message = format!(
                "the store issues fence {fence}, above the highest that is exact everywhere ({})",
                Fence::MAX
            );
            let error = Error::new(ErrorKind::Store, "acquire", message);
            Err(error.with_name(claim.spec.name.as_str()).with_hint(
                "the clock of the store is far ahead, or another program has changed its fence \
                 counter: windlass doctor shows both",
            ))
        }
        _ => Ok(()),
    }
}

pub(super) fn acquire_request(
    claim: &Claim,
    share: Share,
    on_busy: OnBusy,
    record_now: bool,
) -> AcquireRequest {
    AcquireRequest {
        kind: claim.spec.kind,
        name: claim.spec.name.clone(),
        owner: claim.spec.owner.clone(),
        share,
        ttl: claim.spec.ttl,
        on_busy,
        note: claim.spec.note().cloned(),
        heal_missing_ttl: false,
        record_now,
        again: false,
        renewed: claim.spec.is_renewed_for_ever(),
        wake: claim.wake,
    }
}

enum Waited {
    Granted,
    Dequeued,
    Elapsed,
}

async fn wait_for_grant(keeper: &Keeper, claim: &Arc<Claim>, wait: WaitPolicy) -> Result<Waited> {
    let clock = keeper.clock();
    let grant = claim.wait_for(|state| match state.phase {
        ClaimPhase::Held if clock.now() < claim.held_until() => Some(Waited::Granted),
        ClaimPhase::Dequeued | ClaimPhase::Lost | ClaimPhase::Ended => Some(Waited::Dequeued),
        _ => None,
    });
    match clock.until(wait.end(), grant).await {
        Some(Waited::Granted) if !claim.spec.renews => {
            // Validity counts from the last heartbeat. A claim that is not renewed gets a whole TTL.
            Ok(match Box::pin(keeper.renew_now(claim)).await? {
                Renewed::Held { .. } if clock.now() < claim.held_until() => Waited::Granted,
                _ => Waited::Dequeued,
            })
        }
        Some(waited) => Ok(waited),
        None => Ok(Waited::Elapsed),
    }
}

/// The wait is over: leaves the queue, and reports the holder.
async fn give_up(mut cancel_guard: CancelGuard) -> Result<AcquireOutcome> {
    let keeper = Arc::clone(cancel_guard.keeper());
    let claim = Arc::clone(cancel_guard.claim());
    keeper.forget(&claim);
    // If the release is slow, it goes on in the background when the guard is dropped.
    let released = keeper
        .clock()
        .within(GIVE_UP_LIMIT, keeper.release(&claim, None))
        .await;
    if !matches!(released, Some(Ok(_))) {
        return Ok(AcquireOutcome::Busy(None));
    }
    cancel_guard.defuse_unless_unanswered();
    let spec = &claim.spec;
    let reply = spec.store.holders(spec.kind, spec.name.clone(), 1);
    let holders = keeper.measured("inspect", GIVE_UP_LIMIT, reply).await;
    let holder = holders.and_then(|holders| holders.ok()?.pop());
    Ok(AcquireOutcome::Busy(holder))
}

pub(super) fn granted_too_late() -> Error {
    Error::new(
        ErrorKind::OutcomeUnknown,
        "acquire",
        "the store's answer came after the claim would have expired",
    )
    .with_hint("a longer ttl leaves more time for slow answers")
}

fn refused(request: &AcquireRequest, refusal: Refusal) -> Error {
    let share = request.share;
    let (kind, message, hint) = match refusal {
        Refusal::OtherSize { stored } => (
            ErrorKind::Mismatch,
            format!("it has a size of {stored}, not {}", share.size),
            "use the same size everywhere, or change it with resize",
        ),
        Refusal::TooHeavy { stored } => (
            ErrorKind::InvalidInput,
            format!("{} is more than its size of {stored}", share.weight),
            "acquire less, or enlarge it with resize",
        ),
        Refusal::OtherWeight { claimed } => (
            ErrorKind::Mismatch,
            format!(
                "this owner has a claim to {claimed} of it, not {}",
                share.weight
            ),
            "release that claim first, or use another owner",
        ),
    };
    Error::new(kind, "acquire", message)
        .with_name(request.name.as_str())
        .with_hint(hint)
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};

    use windlass_core::Owner;
    use windlass_core::store::{AcquiredAll, Occupancy, Pending, Released, Renewal, WakeAddress};

    use super::*;
    use crate::{Coordinator, connect};

    /// A store whose fences are higher by a number that no store reaches in a test.
    #[derive(Debug)]
    struct HighFences {
        store: Arc<dyn ClaimStore>,
        added: Arc<AtomicU64>,
    }

    impl HighFences {
        fn raised(added: &AtomicU64, fence: Fence) -> Fence {
            Fence::new(fence.get() + added.load(Ordering::Relaxed))
        }
    }

    impl ClaimStore for HighFences {
        fn acquire(&self, request: AcquireRequest) -> Pending<'_, Acquired> {
            Box::pin(async move {
                Ok(match self.store.acquire(request).await? {
                    Acquired::Granted { fence, recorded } => Acquired::Granted {
                        fence: HighFences::raised(&self.added, fence),
                        recorded,
                    },
                    Acquired::Queued {
                        ticket,
                        recheck_after,
                    } => Acquired::Queued {
                        ticket: HighFences::raised(&self.added, ticket),
                        recheck_after,
                    },
                    other => other,
                })
            })
        }

        fn acquire_all(&self, requests: Vec<AcquireRequest>) -> Pending<'_, AcquiredAll> {
            Box::pin(async move {
                Ok(match self.store.acquire_all(requests).await? {
                    AcquiredAll::Granted(fences) => {
                        let raised = |fence| HighFences::raised(&self.added, fence);
                        AcquiredAll::Granted(fences.into_iter().map(raised).collect())
                    }
                    other => other,
                })
            })
        }

        fn renew(&self, claims: Vec<Renewal>) -> Pending<'_, Vec<Result<Renewed>>> {
            self.store.renew(claims)
        }

        fn release(
            &self,
            kind: Kind,
            name: Name,
            owner: Owner,
            claim: Option<WakeAddress>,
        ) -> Pending<'static, Released> {
            self.store.release(kind, name, owner, claim)
        }

        fn shrink(
            &self,
            kind: Kind,
            name: Name,
            owner: Owner,
            claim: WakeAddress,
            weight: u32,
        ) -> Pending<'_, bool> {
            self.store.shrink(kind, name, owner, claim, weight)
        }

        fn resize(&self, kind: Kind, name: Name, size: u32) -> Pending<'_, Option<u32>> {
            self.store.resize(kind, name, size)
        }

        fn inspect(&self, kind: Kind, name: Name, most: usize) -> Pending<'_, Occupancy> {
            self.store.inspect(kind, name, most)
        }

        fn list(
            &self,
            kinds: &'static [Kind],
            pattern: String,
            most: usize,
        ) -> Pending<'_, Vec<Occupancy>> {
            self.store.list(kinds, pattern, most)
        }

        fn break_lock(&self, name: Name) -> Pending<'_, Option<Holder>> {
            self.store.break_lock(name)
        }
    }

    async fn is_free(w: &Coordinator, name: &str) -> bool {
        let state = w.lock(name).inspect().await.unwrap();
        state.holder.is_none() && state.waiters == 0
    }

    /// Every store goes through here: also those that count up by one from zero (memory), or whose
    /// revision no test can raise (etcd).
    #[tokio::test]
    async fn fences_too_high_to_be_exact_are_refused_on_any_store() {
        let added = Arc::new(AtomicU64::new(0));
        let w = connect("memory:").await.unwrap().with_claims(|store| {
            let added = Arc::clone(&added);
            Arc::new(HighFences { store, added })
        });
        let held = w.lock("stock").acquire().await.unwrap();
        // The next fence is the highest.
        added.store(Fence::MAX.get() - held.fence().get() - 1, Ordering::Relaxed);
        let highest = w.lock("last").acquire().await.unwrap();
        assert_eq!(highest.fence(), Fence::MAX);
        let waiting = w.lock("stock").acquire_within(Duration::from_secs(5)).await;
        let semaphore = w.semaphore("jobs", 2).acquire().await.map(drop);
        let writer = w.rwlock("table").write().await.map(drop);
        let all = w.locks(["a", "b"]).acquire().await.map(drop);
        let tried = w.lock("other").try_acquire().await.map(drop);
        let one = w.lock("other").acquire().await.map(drop);
        for refused in [waiting.map(drop), semaphore, writer, all, tried, one] {
            let e = refused.unwrap_err();
            assert_eq!(e.kind(), ErrorKind::Store, "{e}");
            assert!(e.to_string().contains("above the highest"), "{e}");
            assert!(e.hint().is_some());
        }
        for name in ["a", "b", "other"] {
            while !is_free(&w, name).await {
                tokio::task::yield_now().await;
            }
        }
        assert!(held.release().await.unwrap().was_held());
    }
}
