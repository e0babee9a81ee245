//! What is known of one lease.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use tokio::sync::Mutex as AsyncMutex;

use windlass_core::Moment;

/// For how long after a request went unanswered it may still arrive, and leave a key that nobody knows of.
const LATE: Duration = Duration::from_secs(600);

/// One lease.
#[derive(Debug)]
pub(super) struct Lease {
    pub(super) id: i64,
    pub(super) ttl: Duration,
    /// Whether it is a class.
    pub(super) shared: bool,
    /// When the last renewal that counts was sent.
    confirmed: AtomicU64,
    ended: AtomicBool,
    /// Somebody renews it early.
    pub(super) renewing: AtomicBool,
    /// One renewal at a time serves all who need it.
    pub(super) turn: AsyncMutex<()>,
    /// Until when keys may turn up on it that nobody here knows of.
    unsure_until: AtomicU64,
    /// When such keys were last looked for.
    swept: AtomicU64,
}

impl Lease {
    /// One that was granted by a request sent at that moment.
    pub(super) fn granted(id: i64, ttl: Duration, shared: bool, sent: Moment) -> Lease {
        Lease {
            id,
            ttl,
            shared,
            confirmed: AtomicU64::new(sent.as_nanos()),
            ended: AtomicBool::new(false),
            renewing: AtomicBool::new(false),
            turn: AsyncMutex::new(()),
            unsure_until: AtomicU64::new(0),
            swept: AtomicU64::new(sent.as_nanos()),
        }
    }

    /// Whether it is certain to live for `ttl` from `now` on.
    pub(super) fn covers(&self, now: Moment, ttl: Duration) -> bool {
        !self.has_ended() && self.lives_until() >= now + ttl
    }

    pub(super) fn lives_until(&self) -> Moment {
        self.confirmed() + self.ttl
    }

    /// When the last renewal that counts was sent.
    pub(super) fn confirmed(&self) -> Moment {
        Moment::from_nanos(self.confirmed.load(Ordering::SeqCst))
    }

    /// Notes that it is gone. True if that was not known.
    pub(super) fn end(&self) -> bool {
        !self.ended.swap(true, Ordering::SeqCst)
    }

    pub(super) fn has_ended(&self) -> bool {
        self.ended.load(Ordering::SeqCst)
    }

    pub(super) fn confirm(&self, sent: Moment) {
        self.confirmed.fetch_max(sent.as_nanos(), Ordering::SeqCst);
    }

    /// A request to put a key on it went unanswered.
    pub(super) fn set_unsure(&self, now: Moment) {
        let until = (now + LATE).as_nanos();
        self.unsure_until.fetch_max(until, Ordering::SeqCst);
    }

    pub(super) fn is_unsure(&self, now: Moment) -> bool {
        self.shared && now.as_nanos() < self.unsure_until.load(Ordering::SeqCst)
    }

    /// Whether it is time again to look for keys that nobody here knows of: as often as claims are renewed.
    pub(super) fn is_to_be_swept(&self, now: Moment) -> bool {
        let last = self.swept.load(Ordering::SeqCst);
        let next = (Moment::from_nanos(last) + self.ttl / 3).as_nanos();
        let (order, now) = (Ordering::SeqCst, now.as_nanos());
        now >= next && self.swept.compare_exchange(last, now, order, order).is_ok()
    }
}
