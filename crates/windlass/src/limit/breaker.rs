//! The circuit breaker: skips a store that does not answer.
//!
//! While it is open, no caller waits for the store. One probe at a time checks in the background whether
//! the store answers again, at first soon, then at longer intervals.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::lease::Moment;

/// The pause before the first probe.
const SHORTEST: Duration = Duration::from_millis(100);
/// The longest pause between probes.
const LONGEST: Duration = Duration::from_secs(5);

#[derive(Debug)]
pub(super) struct Breaker {
    /// Outside the mutex, for the fast path.
    open: AtomicBool,
    state: Mutex<BreakerState>,
}

#[derive(Debug)]
struct BreakerState {
    pause: Duration,
    next_probe: Moment,
    probing: bool,
}

/// What to do with a call.
#[derive(Debug, PartialEq)]
pub(super) enum Advice {
    /// Call the store.
    Call,
    /// Skip the store, for at least this long.
    Skip(Duration),
    /// Skip the store, and probe it in the background.
    Probe(Duration),
}

impl Breaker {
    pub(super) fn new() -> Breaker {
        Breaker {
            open: AtomicBool::new(false),
            state: Mutex::new(BreakerState {
                pause: SHORTEST,
                next_probe: Moment::NEVER,
                probing: false,
            }),
        }
    }

    pub(super) fn advice(&self, now: impl FnOnce() -> Moment) -> Advice {
        if !self.open.load(Ordering::Relaxed) {
            return Advice::Call;
        }
        let mut state = self.state();
        let left = state.next_probe.since(now());
        if !left.is_zero() {
            return Advice::Skip(left);
        }
        if std::mem::replace(&mut state.probing, true) {
            return Advice::Skip(state.pause);
        }
        Advice::Probe(state.pause)
    }

    /// A call failed. Returns for how long the store is skipped.
    pub(super) fn failed(&self, now: Moment) -> Duration {
        let mut state = self.state();
        if self.open.swap(true, Ordering::Relaxed) && !state.probing {
            // One of several calls that were in flight together.
            return state.next_probe.since(now);
        }
        state.next_probe = now + state.pause;
        let pause = state.pause;
        state.pause = (pause * 2).min(LONGEST);
        state.probing = false;
        pause
    }

    /// A call succeeded.
    pub(super) fn succeeded(&self) {
        if self.open.load(Ordering::Relaxed) {
            let mut state = self.state();
            state.pause = SHORTEST;
            state.probing = false;
            self.open.store(false, Ordering::Relaxed);
        }
    }

    fn state(&self) -> MutexGuard<'_, BreakerState> {
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
        assert_eq!(breaker.advice(|| unreachable!()), Advice::Call);
        assert_eq!(breaker.failed(start), Duration::from_millis(100));
        breaker.failed(start); // in flight together with the first
        assert_eq!(
            breaker.advice(|| at(60)),
            Advice::Skip(Duration::from_millis(40))
        );
        assert!(matches!(breaker.advice(|| at(100)), Advice::Probe(_)));
        assert!(matches!(breaker.advice(|| at(100)), Advice::Skip(_)));
        assert_eq!(breaker.failed(at(110)), Duration::from_millis(200));
        assert!(matches!(breaker.advice(|| at(300)), Advice::Skip(_)));
        assert!(matches!(breaker.advice(|| at(310)), Advice::Probe(_)));
        breaker.succeeded();
        assert_eq!(breaker.advice(|| at(311)), Advice::Call);
        assert_eq!(breaker.failed(at(312)), Duration::from_millis(100));
    }
}
