//! The circuit breaker: skips a store that does not answer.
//!
//! While it is open, no caller waits for the store. One task in the background checks whether the store answers again,
//! at first soon, then at longer intervals, so that the first call after the store is back is decided by it.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::lease::Moment;

/// The pause before the first probe.
const SHORTEST: Duration = Duration::from_millis(100);
/// The longest pause between probes: for so long a store may be back and not be used.
const LONGEST: Duration = Duration::from_secs(1);

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
    /// Whether a task probes the store.
    probed: bool,
}

/// What to do with a call.
#[derive(Debug, PartialEq)]
pub(super) enum BreakerDecision {
    /// Call the store.
    Call,
    /// Skip the store, for at least this long.
    Skip(Duration),
}

impl Breaker {
    pub(super) fn new() -> Breaker {
        Breaker {
            open: AtomicBool::new(false),
            state: Mutex::new(BreakerState {
                pause: SHORTEST,
                next_probe: Moment::NEVER,
                probed: false,
            }),
        }
    }

    pub(super) fn advice(&self, now: impl FnOnce() -> Moment) -> BreakerDecision {
        if !self.open.load(Ordering::Relaxed) {
            return BreakerDecision::Call;
        }
        let state = self.state();
        match state.next_probe.since(now()) {
            left if !left.is_zero() => BreakerDecision::Skip(left),
            _ if state.probed => BreakerDecision::Skip(state.pause),
            // The task ended with its runtime.
            _ => BreakerDecision::Call,
        }
    }

    /// A call failed. Returns for how long the store is skipped, and whether the caller must start a task that probes it.
    pub(super) fn failed(&self, now: Moment) -> (Duration, bool) {
        let mut state = self.state();
        let was_open = self.open.swap(true, Ordering::Relaxed);
        if was_open && state.probed {
            // One of several calls that were in flight together.
            return (state.next_probe.since(now), false);
        }
        state.probed = true;
        (state.pause_from(now), true)
    }

    /// A probe failed. Returns the pause before the next one.
    pub(super) fn probe_failed(&self, now: Moment) -> Duration {
        self.state().pause_from(now)
    }

    /// A call or a probe succeeded.
    pub(super) fn succeeded(&self) {
        if self.open.load(Ordering::Relaxed) {
            let mut state = self.state();
            state.pause = SHORTEST;
            self.open.store(false, Ordering::Relaxed);
        }
    }

    pub(super) fn is_open(&self) -> bool {
        self.open.load(Ordering::Relaxed)
    }

    /// The task that probed the store has ended.
    pub(super) fn not_probed(&self) {
        self.state().probed = false;
    }

    fn state(&self) -> MutexGuard<'_, BreakerState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl BreakerState {
    fn pause_from(&mut self, now: Moment) -> Duration {
        let pause = self.pause;
        self.next_probe = now + pause;
        self.pause = (pause * 2).min(LONGEST);
        pause
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_task_probes_at_longer_and_longer_intervals() {
        let breaker = Breaker::new();
        let start = Moment::from_nanos(1_000_000_000);
        let at = |ms| start + Duration::from_millis(ms);
        let pause = Duration::from_millis;
        assert_eq!(breaker.advice(|| unreachable!()), BreakerDecision::Call);
        assert_eq!(breaker.failed(start), (pause(100), true));
        assert_eq!(
            breaker.failed(start),
            (pause(100), false),
            "in flight together"
        );
        assert_eq!(breaker.advice(|| at(60)), BreakerDecision::Skip(pause(40)));
        assert!(matches!(
            breaker.advice(|| at(100)),
            BreakerDecision::Skip(_)
        ));
        assert_eq!(breaker.probe_failed(at(110)), pause(200));
        assert!(matches!(
            breaker.advice(|| at(310)),
            BreakerDecision::Skip(_)
        ));
        assert_eq!(breaker.probe_failed(at(310)), pause(400));
        assert_eq!(breaker.probe_failed(at(710)), pause(800));
        assert_eq!(breaker.probe_failed(at(1_510)), LONGEST);
        breaker.succeeded();
        assert_eq!(breaker.advice(|| at(1_600)), BreakerDecision::Call);
        assert!(!breaker.is_open());
        breaker.not_probed();
        assert_eq!(breaker.failed(at(1_700)), (pause(100), true));
        // Its task is gone, with its runtime: a caller tries.
        breaker.not_probed();
        assert!(matches!(
            breaker.advice(|| at(1_750)),
            BreakerDecision::Skip(_)
        ));
        assert_eq!(breaker.advice(|| at(1_800)), BreakerDecision::Call);
        assert_eq!(breaker.failed(at(1_800)), (pause(200), true));
    }
}
