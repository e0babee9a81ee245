//! The state machine of one claim: requested, queued, held, lost.
//!
//! **Validity.** A claim counts as held until `confirmed + ttl - drift`, where `confirmed` is when the last
//! request that the store confirmed was *sent*. The store starts its TTL later than that, so the client
//! stops relying on the lock before the store can grant it to the next waiter.
//!
//! **Grants to waiters.** A queued claim is confirmed by its heartbeats. A grant comes after the last confirmed
//! heartbeat was sent, so its validity counts from that heartbeat and needs no further round trip.
//!
//! **Loss is final.** Once a caller may have seen `is_held() == false`, no late reply makes the claim held again.

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};
use std::time::Duration;

use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use super::{Clock, Drift, Fence, Moment, Owner};
use crate::telemetry::{Hold, Loss, log_loss};
use windlass_core::error::Error;
use windlass_core::name::Name;
use windlass_core::store::{ClaimStore, Kind, Renewal, SameOwner, WakeAddress};

/// The state of a claim, as far as this process knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ClaimPhase {
    /// The request is sent or about to be sent; no reply yet.
    Requested,
    /// In the wait queue.
    Queued,
    /// The ticket expired before the claim was granted.
    Dequeued,
    /// Held, for as long as the clock says that it is valid.
    Held,
    /// Was held, and is not any more.
    Lost,
    /// Released. Nothing more happens.
    Ended,
}

/// What a claim is for; does not change.
pub(crate) struct ClaimSpec {
    pub(crate) store: Arc<dyn ClaimStore>,
    pub(crate) kind: Kind,
    pub(crate) name: Name,
    pub(crate) owner: Owner,
    /// The owner was generated, so no other claim can have the same one.
    pub(crate) random_owner: bool,
    pub(crate) ttl: Duration,
    /// Whether the keeper renews the claim once it is held.
    pub(crate) renews: bool,
    /// Boxed, because there are many claims, and few have any of these.
    pub(crate) rare: Option<Box<RareOptions>>,
}

/// What most claims do not have.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct RareOptions {
    pub(crate) note: Option<Arc<str>>,
    /// The longest total hold.
    pub(crate) hold_cap: Option<Duration>,
}

impl RareOptions {
    /// `None` if there is none of them.
    pub(crate) fn of(
        note: Option<Arc<str>>,
        hold_cap: Option<Duration>,
    ) -> Option<Box<RareOptions>> {
        let any = note.is_some() || hold_cap.is_some();
        any.then(|| Box::new(RareOptions { note, hold_cap }))
    }
}

impl ClaimSpec {
    /// Whether renewals go on until the claim is released or lost.
    pub(crate) fn is_renewed_for_ever(&self) -> bool {
        self.renews && self.hold_cap().is_none()
    }

    pub(crate) fn note(&self) -> Option<&Arc<str>> {
        self.rare.as_ref()?.note.as_ref()
    }

    /// The longest total hold.
    pub(crate) fn hold_cap(&self) -> Option<Duration> {
        self.rare.as_ref()?.hold_cap
    }
}

pub(crate) struct Claim {
    pub(crate) spec: ClaimSpec,
    pub(crate) wake: WakeAddress,
    drift: Drift,
    /// Nanoseconds of the [`Moment`] at which the hold ends unless renewed; 0 when not held.
    /// Outside the mutex, so that `is_held` costs one load and one clock reading.
    held_until: AtomicU64,
    state: Mutex<LeaseState>,
    /// The store may have a record of the claim besides the grant itself.
    may_be_recorded: AtomicBool,
    /// Made by the first that waits: most claims are granted at once, and nobody waits for their loss.
    signals: OnceLock<Box<Signals>>,
}

/// What others wait for.
#[derive(Debug, Default)]
struct Signals {
    changed: Notify,
    lost: CancellationToken,
}

pub(crate) struct LeaseState {
    pub(crate) phase: ClaimPhase,
    /// While queued, the ticket: the fence that the grant will have.
    pub(crate) fence: Option<Fence>,
    /// When the last request that the store confirmed was sent. Validity counts from here.
    pub(crate) confirmed: Moment,
    /// When this process learned of the grant.
    pub(crate) granted: Moment,
    /// When the keeper checks this claim next: its key in the keeper's schedule. [`Moment::NEVER`] if it is not in it.
    pub(crate) next_check: Moment,
    /// A request got no reply and may still reach the store.
    unanswered: bool,
    /// The store shows the whole claim, age and note included.
    pub(crate) recorded: bool,
    /// A renewal is on its way.
    pub(crate) in_flight: bool,
    /// A check came due while a renewal was on its way, whose reply may be older than the reason for the check.
    pub(crate) check_again: bool,
    /// A wake-up overtook the reply that carries the ticket.
    pub(crate) woken_early: bool,
    /// Why the last renewal failed, unless one succeeded since. Shared by the claims of a batch.
    pub(crate) renewal_error: Option<Arc<Error>>,
    /// A caller has the lease, so that losing it is worth a record.
    leased: bool,
    /// Why the claim was lost.
    loss: Option<Loss>,
    /// What is recorded about the lease, if anything. Boxed, because there are many claims.
    hold: Option<Box<Hold>>,
}

/// A lease that has ended, to be [recorded](Claim::record) once no lock is held.
#[must_use = "it is not recorded yet"]
pub(crate) struct EndedLease {
    hold: Option<Box<Hold>>,
    fence: Option<Fence>,
    granted: Moment,
    ended: Moment,
    loss: Option<Loss>,
}

impl EndedLease {
    pub(crate) fn at(&self) -> Moment {
        self.ended
    }
}

impl Claim {
    pub(crate) fn new(spec: ClaimSpec, wake: WakeAddress, drift: Drift) -> Arc<Claim> {
        Arc::new(Claim {
            spec,
            wake,
            drift,
            held_until: AtomicU64::new(0),
            state: Mutex::new(LeaseState {
                phase: ClaimPhase::Requested,
                fence: None,
                confirmed: Moment::from_nanos(0),
                granted: Moment::from_nanos(0),
                next_check: Moment::NEVER,
                unanswered: false,
                recorded: false,
                in_flight: false,
                check_again: false,
                woken_early: false,
                renewal_error: None,
                leased: false,
                loss: None,
                hold: None,
            }),
            may_be_recorded: AtomicBool::new(false),
            signals: OnceLock::new(),
        })
    }

    pub(crate) fn state(&self) -> MutexGuard<'_, LeaseState> {
        self.state
            .lock()
            .expect("no code that holds this lock can panic")
    }

    /// When the hold ends, by what the store has confirmed.
    pub(crate) fn held_until(&self) -> Moment {
        Moment::from_nanos(self.held_until.load(Ordering::Acquire))
    }

    /// A request for the claim got no reply.
    pub(crate) fn mark_unanswered(&self) {
        self.mark_recorded();
        self.state().unanswered = true;
    }

    /// Every request for the claim got a reply after all.
    pub(crate) fn mark_answered(&self) {
        self.state().unanswered = false;
    }

    pub(crate) fn was_unanswered(&self) -> bool {
        self.state().unanswered
    }

    /// The store may record the claim, or has done so.
    pub(crate) fn mark_recorded(&self) {
        self.may_be_recorded.store(true, Ordering::Relaxed);
    }

    /// Whether the claim was granted to its only request, at once and without a record, and no
    /// renewal of it was sent since.
    pub(crate) fn is_unrecorded(&self) -> bool {
        !self.may_be_recorded.load(Ordering::Relaxed)
            && self.state().granted != Moment::from_nanos(0)
    }

    /// Whether a request for the claim may still reach the store.
    pub(crate) fn may_still_arrive(&self) -> bool {
        let state = self.state();
        state.unanswered || state.phase == ClaimPhase::Requested
    }

    /// A request is about to be sent (again): what was known before is void.
    pub(crate) fn mark_requested(&self) {
        let mut state = self.state();
        if state.phase != ClaimPhase::Ended {
            state.phase = ClaimPhase::Requested;
            self.held_until.store(0, Ordering::Release);
        }
    }

    /// Whether a grant received now would leave any time to hold.
    pub(crate) fn is_valid_if_granted(&self, state: &LeaseState, now: Moment) -> bool {
        now < self.drift.valid_until(state.confirmed, self.spec.ttl)
    }

    /// Continues an earlier claim of the same owner: same fence, same age.
    pub(crate) fn resume(&self, fence: Fence, granted: Moment) {
        self.mark_recorded();
        let mut state = self.state();
        state.fence = Some(fence);
        state.phase = ClaimPhase::Held;
        state.granted = granted;
    }

    /// The store confirms, for a request sent at `sent`, that the claim is queued.
    pub(crate) fn mark_queued(&self, state: &mut LeaseState, sent: Moment) {
        self.mark_recorded();
        state.confirmed = state.confirmed.max(sent);
        if matches!(state.phase, ClaimPhase::Requested | ClaimPhase::Dequeued) {
            state.phase = ClaimPhase::Queued;
        }
    }

    /// The store confirms, for a request sent at `sent`, that the claim is held.
    pub(crate) fn mark_held(&self, state: &mut LeaseState, sent: Moment, now: Moment) {
        if matches!(state.phase, ClaimPhase::Lost | ClaimPhase::Ended) {
            return;
        }
        // Expired by the clock before the reply came: loss is final. (An end of zero is a claim that
        // is being taken over.)
        let end = self.held_until();
        if state.phase == ClaimPhase::Held && end.as_nanos() != 0 && now >= end {
            return self.mark_lost(state, self.expiry(state));
        }
        state.confirmed = state.confirmed.max(sent);
        state.renewal_error = None;
        if state.phase != ClaimPhase::Held {
            state.phase = ClaimPhase::Held;
            state.granted = now;
        }
        let mut until = self.drift.valid_until(state.confirmed, self.spec.ttl);
        if let Some(cap) = self.spec.hold_cap() {
            until = until.min(state.granted + cap);
        }
        self.held_until.store(until.as_nanos(), Ordering::Release);
        self.notify_changed();
    }

    /// A wake-up says that the claim was granted: validity counts from the last confirmed heartbeat.
    pub(crate) fn mark_granted(&self, state: &mut LeaseState, now: Moment) {
        self.mark_recorded();
        let confirmed = state.confirmed;
        self.mark_held(state, confirmed, now);
    }

    /// The ticket is gone from the queue.
    pub(crate) fn mark_dequeued(&self, state: &mut LeaseState) {
        if state.phase == ClaimPhase::Queued {
            state.phase = ClaimPhase::Dequeued;
            self.notify_changed();
        }
    }

    /// The claim is not held any more, or cannot be relied upon any more.
    pub(crate) fn mark_lost(&self, state: &mut LeaseState, loss: Loss) {
        if state.phase == ClaimPhase::Held {
            state.phase = ClaimPhase::Lost;
            state.loss = Some(loss);
            self.end_hold();
        }
    }

    /// Why the claim is lost if its validity is over.
    pub(crate) fn expiry(&self, state: &LeaseState) -> Loss {
        let is_capped = |cap| self.held_until() >= state.granted + cap;
        if self.spec.hold_cap().is_some_and(is_capped) {
            Loss::MaxHold
        } else if !self.spec.renews {
            Loss::NotRenewed
        } else {
            Loss::Expired
        }
    }

    /// A caller gets the lease, with what is recorded about it.
    pub(crate) fn begin_hold(&self, hold: Option<Box<Hold>>) {
        let ended = {
            let mut state = self.state();
            state.leased = true;
            state.hold = hold;
            // Lost before the caller got it, for example because the process was suspended.
            let granted = state.granted;
            self.take_ended(&mut state, granted)
        };
        self.record(ended);
    }

    /// A renewal of a lease failed, and is retried.
    pub(crate) fn renewal_failed(&self, state: &mut LeaseState, error: Arc<Error>) {
        state.renewal_error = Some(error);
        if let Some(hold) = &state.hold {
            hold.renewal_failed();
        }
    }

    /// The lease of a caller, if it is lost and that is not recorded yet.
    pub(crate) fn take_ended(&self, state: &mut LeaseState, now: Moment) -> Option<EndedLease> {
        let lost = state.phase == ClaimPhase::Lost && std::mem::take(&mut state.leased);
        lost.then(|| EndedLease {
            hold: state.hold.take(),
            fence: state.fence,
            granted: state.granted,
            ended: now,
            loss: state.loss,
        })
    }

    /// Records the end of a lease. Called without locks: a subscriber may take its time, or fail.
    pub(crate) fn record(&self, ended: Option<EndedLease>) {
        let Some(ended) = ended else {
            return;
        };
        if let Some(loss) = ended.loss {
            let (kind, name) = (self.spec.kind, &self.spec.name);
            log_loss(ended.hold.as_deref(), kind, name, ended.fence, loss);
        }
        if let Some(hold) = ended.hold {
            hold.end(ended.granted, ended.ended, ended.loss);
        }
    }

    /// Loses the claim if its validity is over.
    pub(crate) fn expire(&self, now: Moment) {
        let ended = {
            let mut state = self.state();
            if now >= self.held_until() {
                let loss = self.expiry(&state);
                self.mark_lost(&mut state, loss);
            }
            self.take_ended(&mut state, now)
        };
        self.record(ended);
    }

    /// This process gives the claim up. Returns the lease that ended with it, to be recorded.
    pub(crate) fn mark_ended(&self, state: &mut LeaseState, clock: &Clock) -> Option<EndedLease> {
        let mut ended = None;
        if let Some(hold) = state.hold.take() {
            let now = clock.now();
            // Over before anybody noticed: the process was suspended, or its runtime has ended.
            let is_lost = state.phase == ClaimPhase::Held && now >= self.held_until();
            ended = Some(EndedLease {
                hold: Some(hold),
                fence: state.fence,
                granted: state.granted,
                ended: now,
                loss: match state.loss {
                    None if is_lost => Some(self.expiry(state)),
                    loss => loss,
                },
            });
        }
        state.leased = false;
        state.phase = ClaimPhase::Ended;
        self.end_hold();
        ended
    }

    fn end_hold(&self) {
        self.held_until.store(0, Ordering::Release);
        if let Some(signals) = self.signals.get() {
            signals.changed.notify_waiters();
            signals.lost.cancel();
        }
    }

    /// Called with the state locked: who waits makes the signals first and then looks at the state, so it sees the
    /// change, or this sees the signals.
    fn notify_changed(&self) {
        if let Some(signals) = self.signals.get() {
            signals.changed.notify_waiters();
        }
    }

    fn signals(&self) -> &Signals {
        self.signals.get_or_init(Box::default)
    }

    /// A token that is cancelled when the claim is lost or ended.
    pub(crate) fn lost_token(&self) -> CancellationToken {
        let token = self.signals().lost.clone();
        // Checked after the token is stored: either `end_hold` sees the token, or this sees the end.
        if matches!(self.state().phase, ClaimPhase::Lost | ClaimPhase::Ended) {
            token.cancel();
        }
        token
    }

    /// Waits until `decide` returns a value; it runs again at each change. Cancel safe.
    pub(crate) async fn wait_for<T>(
        &self,
        mut decide: impl FnMut(&mut LeaseState) -> Option<T>,
    ) -> T {
        loop {
            let changed = self.signals().changed.notified();
            tokio::pin!(changed);
            changed.as_mut().enable();
            if let Some(value) = decide(&mut self.state()) {
                return value;
            }
            changed.await;
        }
    }

    /// The request that keeps the claim alive; `None` before the store has assigned a fence or ticket.
    pub(crate) fn renewal(&self, state: &LeaseState, now: Moment) -> Option<Renewal> {
        let mut ttl = self.spec.ttl;
        let mut age = Duration::ZERO;
        if state.phase == ClaimPhase::Held {
            age = now.since(state.granted);
            if let Some(cap) = self.spec.hold_cap() {
                // The store must keep the claim until the cap, and not much longer.
                let left = cap.saturating_sub(age) + self.drift.over(ttl);
                ttl = ttl.min(left).max(Duration::from_millis(1));
            }
        }
        self.mark_recorded();
        Some(Renewal {
            kind: self.spec.kind,
            name: self.spec.name.clone(),
            owner: self.spec.owner.clone(),
            fence: state.fence?,
            ttl,
            age,
            note: self.spec.note().cloned(),
            wake: self.wake,
            same_owner: match self.spec.random_owner {
                true => SameOwner::Impossible,
                false => SameOwner::Respect,
            },
            rewrite_details: !state.recorded,
            renewed: self.spec.is_renewed_for_ever(),
        })
    }
}

impl fmt::Debug for Claim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = self.state();
        f.debug_struct("Claim")
            .field("name", &self.spec.name)
            .field("owner", &self.spec.owner)
            .field("phase", &state.phase)
            .field("fence", &state.fence)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lease::Clock;
    use windlass_core::memory::MemoryStore;

    const TTL: Duration = Duration::from_secs(10);

    fn claim() -> Arc<Claim> {
        let spec = ClaimSpec {
            store: MemoryStore::private(Clock::manual()),
            kind: Kind::Lock,
            name: Name::new("test", None, "stock").unwrap(),
            owner: Owner::random(),
            random_owner: true,
            ttl: TTL,
            renews: true,
            rare: None,
        };
        let wake = WakeAddress {
            client: 1,
            claim: 1,
        };
        Claim::new(spec, wake, Drift::default())
    }

    fn at(seconds: u64) -> Moment {
        Moment::from_nanos(1_000_000_000 * seconds)
    }

    #[test]
    fn renewal_answered_after_expiry_does_not_restore_the_hold() {
        let claim = claim();
        let lost = claim.lost_token();
        claim.mark_held(&mut claim.state(), at(1), at(2));
        // Sent in time and answered in time: the hold continues.
        claim.mark_held(&mut claim.state(), at(5), at(9));
        let end = claim.held_until();
        assert!(end > at(11) && !lost.is_cancelled());
        // Sent in time, answered late: a caller may have seen that the lock is not held.
        claim.mark_held(&mut claim.state(), at(14), at(16));
        assert_eq!(claim.state().phase, ClaimPhase::Lost);
        assert!(claim.held_until() < end && lost.is_cancelled());
        claim.mark_held(&mut claim.state(), at(17), at(17));
        assert_eq!(claim.state().phase, ClaimPhase::Lost, "loss is final");
    }

    /// Programs hold a hundred thousand of them.
    #[test]
    fn claim_is_small() {
        assert!(size_of::<Claim>() <= 200, "{}", size_of::<Claim>());
    }

    #[test]
    fn resumed_claim_is_held_from_its_first_renewal() {
        let claim = claim();
        claim.resume(Fence::new(7), at(1));
        claim.mark_held(&mut claim.state(), at(100), at(101));
        assert_eq!(claim.state().phase, ClaimPhase::Held);
        assert!(claim.held_until() > at(109));
    }
}
