//! Does not ask a store that does not answer.
//!
//! While it is open, nobody waits for the store: one call in the background finds out whether it
//! answers again, at first soon, then at longer intervals.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::lease::Moment;

/// Until the store is first asked again.
const SHORTEST: Duration = Duration::from_millis(100);
/// No longer than this in between.
const LONGEST: Duration = Duration::from_secs(5);

#[derive(Debug)]
pub(super) struct Breaker {
    /// What everybody looks at.
    open: AtomicBool,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    pause: Duration,
    next_probe: Moment,
    probing: bool,
}

/// What to do now.
#[derive(Debug, PartialEq)]
pub(super) enum Advice {
    /// AcquireRequest the store.
    AcquireRequest,
    /// Do without, for so long at least.
    DoWithout(Duration),
    /// Do without, and find out in the background whether it answers again.
    Probe(Duration),
}

impl Breaker {
    pub(super) fn new() -> Breaker {
        Breaker {
            open: AtomicBool::new(false),
            state: Mutex::new(State {
                pause: SHORTEST,
                next_probe: Moment::NEVER,
                probing: false,
            }),
        }
    }

    pub(super) fn advice(&self, now: impl FnOnce() -> Moment) -> Advice {
        if !self.open.load(Ordering::Relaxed) {
            return Advice::AcquireRequest;
        }
        let mut state = self.state();
        let left = state.next_probe.since(now());
        if !left.is_zero() {
            return Advice::DoWithout(left);
        }
        if std::mem::replace(&mut state.probing, true) {
            return Advice::DoWithout(state.pause);
        }
        Advice::Probe(state.pause)
    }

    /// The store failed somebody. Says for how long it will not be asked.
    pub(super) fn failed(&self, now: Moment) -> Duration {
        let mut state = self.state();
        if self.open.swap(true, Ordering::Relaxed) && !state.probing {
            // One of many calls that were under way together.
            return state.next_probe.since(now);
        }
        state.next_probe = now + state.pause;
        let pause = state.pause;
        state.pause = (pause * 2).min(LONGEST);
        state.probing = false;
        pause
    }

    /// The store answered.
    pub(super) fn answered(&self) {
        if self.open.load(Ordering::Relaxed) {
            let mut state = self.state();
            state.pause = SHORTEST;
            state.probing = false;
            self.open.store(false, Ordering::Relaxed);
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_probe_at_a_time_and_longer_pauses() {
        let breaker = Breaker::new();
        let start = Moment::from_nanos(1_000_000_000);
        let at = |ms| start + Duration::from_millis(ms);
        assert_eq!(breaker.advice(|| unreachable!()), Advice::AcquireRequest);
        assert_eq!(breaker.failed(start), Duration::from_millis(100));
        breaker.failed(start); // of the same volley
        assert_eq!(
            breaker.advice(|| at(60)),
            Advice::DoWithout(Duration::from_millis(40))
        );
        assert!(matches!(breaker.advice(|| at(100)), Advice::Probe(_)));
        assert!(matches!(breaker.advice(|| at(100)), Advice::DoWithout(_)));
        assert_eq!(breaker.failed(at(110)), Duration::from_millis(200));
        assert!(matches!(breaker.advice(|| at(300)), Advice::DoWithout(_)));
        assert!(matches!(breaker.advice(|| at(310)), Advice::Probe(_)));
        breaker.answered();
        assert_eq!(breaker.advice(|| at(311)), Advice::AcquireRequest);
        assert_eq!(breaker.failed(at(312)), Duration::from_millis(100));
    }
}
