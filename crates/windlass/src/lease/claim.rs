//! One claim to a name, from the moment it is made until it ends: in line, held, or lost.

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};
use std::time::Duration;

use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use super::{Drift, Fence, Moment, Owner};
use windlass_core::name::Name;
use windlass_core::store::{ClaimStore, Kind, Renewal, SameOwner, WakeAddress};

/// Where a claim stands, as far as this process knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    /// Sent, or about to be sent; no answer yet.
    Acquirer,
    /// In line.
    Waiting,
    /// Out of line without having been granted: the place expired.
    OutOfLine,
    /// Held, as long as the clock says that it is valid.
    Held,
    /// Was held; is not any more.
    Lost,
    /// Released or withdrawn: nothing more happens.
    Ended,
}

/// What a claim is made of, fixed for its life.
pub(crate) struct ClaimSpec {
    pub(crate) store: Arc<dyn ClaimStore>,
    pub(crate) kind: Kind,
    pub(crate) name: Name,
    pub(crate) owner: Owner,
    /// Whether nobody else can come as this owner.
    pub(crate) random_owner: bool,
    pub(crate) ttl: Duration,
    pub(crate) note: Option<Arc<str>>,
    /// Whether the keeper renews it once held.
    pub(crate) renews: bool,
    /// The longest it may be held in all.
    pub(crate) hold_cap: Option<Duration>,
}

impl ClaimSpec {
    /// Whether nothing but its loss ends the renewals of what is held.
    pub(crate) fn is_renewed_for_ever(&self) -> bool {
        self.renews && self.hold_cap.is_none()
    }
}

pub(crate) struct Claim {
    pub(crate) terms: ClaimSpec,
    pub(crate) wake: WakeAddress,
    drift: Drift,
    /// Nanoseconds of the [`Moment`] at which holding ends unless renewed; 0 when not held.
    /// Apart from the state so that `is_held` costs one load and a look at the clock.
    held_until: AtomicU64,
    state: Mutex<State>,
    /// A request for it went unanswered, and may still arrive.
    unanswered: AtomicBool,
    changed: Notify,
    lost: OnceLock<CancellationToken>,
}

pub(crate) struct State {
    pub(crate) phase: Phase,
    pub(crate) fence: Option<Fence>,
    /// When the last request that the store confirmed was sent. Validity counts from here.
    pub(crate) confirmed: Moment,
    /// When it was learned that the lock is held.
    pub(crate) granted: Moment,
    /// When the keeper looks at this claim next; its key in the keeper's schedule.
    pub(crate) next_look: Option<Moment>,
    /// What the store shows of the claim is complete and true.
    pub(crate) recorded: bool,
    /// A renewal is on its way.
    pub(crate) in_flight: bool,
    /// A reason to ask came up while a renewal was on its way.
    pub(crate) look_again: bool,
    /// A wake-up came before the answer that told of the place in line.
    pub(crate) woken_early: bool,
}

impl Claim {
    pub(crate) fn new(terms: ClaimSpec, wake: WakeAddress, drift: Drift) -> Arc<Claim> {
        Arc::new(Claim {
            terms,
            wake,
            drift,
            held_until: AtomicU64::new(0),
            state: Mutex::new(State {
                phase: Phase::Acquirer,
                fence: None,
                confirmed: Moment::from_nanos(0),
                granted: Moment::from_nanos(0),
                next_look: None,
                recorded: false,
                in_flight: false,
                look_again: false,
                woken_early: false,
            }),
            unanswered: AtomicBool::new(false),
            changed: Notify::new(),
            lost: OnceLock::new(),
        })
    }

    pub(crate) fn state(&self) -> MutexGuard<'_, State> {
        self.state
            .lock()
            .expect("no code that holds this lock can panic")
    }

    /// Until when the lock is held, going by what the store has confirmed.
    pub(crate) fn held_until(&self) -> Moment {
        Moment::from_nanos(self.held_until.load(Ordering::Acquire))
    }

    /// A request for the claim went unanswered.
    pub(crate) fn set_unanswered(&self) {
        self.unanswered.store(true, Ordering::Relaxed);
    }

    /// All requests for the claim were answered after all.
    pub(crate) fn set_answered(&self) {
        self.unanswered.store(false, Ordering::Relaxed);
    }

    /// Whether a request for the claim went unanswered, ever.
    pub(crate) fn was_unanswered(&self) -> bool {
        self.unanswered.load(Ordering::Relaxed)
    }

    /// Whether a request for the claim may still arrive at the store.
    pub(crate) fn is_unsure(&self) -> bool {
        self.was_unanswered() || self.state().phase == Phase::Acquirer
    }

    /// About to ask (again): whatever was known before is void.
    pub(crate) fn start_over(&self) {
        let mut state = self.state();
        if state.phase != Phase::Ended {
            state.phase = Phase::Acquirer;
            self.held_until.store(0, Ordering::Release);
        }
    }

    /// Whether a hand-over now would leave any time to hold.
    pub(crate) fn would_be_valid(&self, state: &State, now: Moment) -> bool {
        now < self.drift.valid_until(state.confirmed, self.terms.ttl)
    }

    /// Goes on from an earlier claim: same fence, same age.
    pub(crate) fn held_since(&self, fence: Fence, granted: Moment) {
        let mut state = self.state();
        state.fence = Some(fence);
        state.phase = Phase::Held;
        state.granted = granted;
    }

    /// The store says: in line, as of a request sent at `sent`.
    pub(crate) fn now_waiting(&self, state: &mut State, sent: Moment) {
        state.confirmed = state.confirmed.max(sent);
        if matches!(state.phase, Phase::Acquirer | Phase::OutOfLine) {
            state.phase = Phase::Waiting;
        }
    }

    /// The store says: held, as of a request sent at `sent`.
    pub(crate) fn now_held(&self, state: &mut State, sent: Moment, now: Moment) {
        if matches!(state.phase, Phase::Lost | Phase::Ended) {
            return;
        }
        // Over by the clock, though nobody was told yet: what was once not held is not held again. (Zero is
        // a claim that is being taken over.)
        let end = self.held_until();
        if state.phase == Phase::Held && end.as_nanos() != 0 && now >= end {
            return self.now_lost(state);
        }
        state.confirmed = state.confirmed.max(sent);
        if state.phase != Phase::Held {
            state.phase = Phase::Held;
            state.granted = now;
        }
        let mut until = self.drift.valid_until(state.confirmed, self.terms.ttl);
        if let Some(cap) = self.terms.hold_cap {
            until = until.min(state.granted + cap);
        }
        self.held_until.store(until.as_nanos(), Ordering::Release);
        self.changed.notify_waiters();
    }

    /// The wake-up says: held. It came after our last confirmed request was sent, so
    /// validity counts from there, without another round trip.
    pub(crate) fn handed_over(&self, state: &mut State, now: Moment) {
        let confirmed = state.confirmed;
        self.now_held(state, confirmed, now);
    }

    /// The place in line is gone.
    pub(crate) fn fell_out_of_line(&self, state: &mut State) {
        if state.phase == Phase::Waiting {
            state.phase = Phase::OutOfLine;
            self.changed.notify_waiters();
        }
    }

    /// Not held any more, or not to be relied upon any more.
    pub(crate) fn now_lost(&self, state: &mut State) {
        if state.phase == Phase::Held {
            state.phase = Phase::Lost;
            self.end_holding();
        }
    }

    /// Loses the claim if its time is over.
    pub(crate) fn expire(&self, now: Moment) {
        let mut state = self.state();
        if now >= self.held_until() {
            self.now_lost(&mut state);
        }
    }

    /// Given up by ourselves.
    pub(crate) fn now_ended(&self, state: &mut State) {
        state.phase = Phase::Ended;
        self.end_holding();
    }

    fn end_holding(&self) {
        self.held_until.store(0, Ordering::Release);
        self.changed.notify_waiters();
        if let Some(token) = self.lost.get() {
            token.cancel();
        }
    }

    /// Cancelled when the claim is lost or ended.
    pub(crate) fn lost_token(&self) -> CancellationToken {
        let token = self.lost.get_or_init(CancellationToken::new).clone();
        // Looked at after the token is in place: either the one who ends the claim sees the
        // token, or we see the end.
        if matches!(self.state().phase, Phase::Lost | Phase::Ended) {
            token.cancel();
        }
        token
    }

    /// Resolves when `decide` gives a value; asked again at each change. Cancel safe.
    pub(crate) async fn changed_to<T>(&self, mut decide: impl FnMut(&mut State) -> Option<T>) -> T {
        loop {
            let changed = self.changed.notified();
            tokio::pin!(changed);
            changed.as_mut().enable();
            if let Some(value) = decide(&mut self.state()) {
                return value;
            }
            changed.await;
        }
    }

    /// What to ask of the store to keep the claim alive.
    pub(crate) fn renewal(&self, state: &State, now: Moment) -> Option<Renewal> {
        let mut ttl = self.terms.ttl;
        let mut age = Duration::ZERO;
        if state.phase == Phase::Held {
            age = now.since(state.granted);
            if let Some(cap) = self.terms.hold_cap {
                // The store must not keep it much longer than the cap either, nor let go first.
                let left = cap.saturating_sub(age) + self.drift.over(ttl);
                ttl = ttl.min(left).max(Duration::from_millis(1));
            }
        }
        Some(Renewal {
            kind: self.terms.kind,
            name: self.terms.name.clone(),
            owner: self.terms.owner.clone(),
            fence: state.fence?,
            ttl,
            age,
            note: self.terms.note.clone(),
            wake: self.wake,
            same_owner: match self.terms.random_owner {
                true => SameOwner::Impossible,
                false => SameOwner::Respect,
            },
            write_anew: !state.recorded,
            renewed: self.terms.is_renewed_for_ever(),
        })
    }
}

impl fmt::Debug for Claim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = self.state();
        f.debug_struct("Claim")
            .field("name", &self.terms.name)
            .field("owner", &self.terms.owner)
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
        let terms = ClaimSpec {
            store: MemoryStore::private(Clock::manual()),
            kind: Kind::Lock,
            name: Name::new("test", None, "stock").unwrap(),
            owner: Owner::random(),
            random_owner: true,
            ttl: TTL,
            note: None,
            renews: true,
            hold_cap: None,
        };
        let wake = WakeAddress {
            client: 1,
            claim: 1,
        };
        Claim::new(terms, wake, Drift::default())
    }

    fn at(seconds: u64) -> Moment {
        Moment::from_nanos(1_000_000_000 * seconds)
    }

    #[test]
    fn a_renewal_that_is_answered_after_the_end_does_not_bring_the_hold_back() {
        let claim = claim();
        let lost = claim.lost_token();
        claim.now_held(&mut claim.state(), at(1), at(2));
        // Sent in time, and answered in time: it goes on.
        claim.now_held(&mut claim.state(), at(5), at(9));
        let end = claim.held_until();
        assert!(end > at(11) && !lost.is_cancelled());
        // Sent in time. But somebody may have looked at the clock since the end, and seen that it is over.
        claim.now_held(&mut claim.state(), at(14), at(16));
        assert_eq!(claim.state().phase, Phase::Lost);
        assert!(claim.held_until() < end && lost.is_cancelled());
        claim.now_held(&mut claim.state(), at(17), at(17));
        assert_eq!(claim.state().phase, Phase::Lost, "for good");
    }

    #[test]
    fn what_is_taken_over_is_held_from_then_on() {
        let claim = claim();
        claim.held_since(Fence::new(7), at(1));
        claim.now_held(&mut claim.state(), at(100), at(101));
        assert_eq!(claim.state().phase, Phase::Held);
        assert!(claim.held_until() > at(109));
    }
}
