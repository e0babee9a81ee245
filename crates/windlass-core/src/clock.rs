//! The clock of leases.
//!
//! `CLOCK_BOOTTIME` on Linux: [`std::time::Instant`] stops while a machine is suspended, and a
//! lease does not. Tests use a manual clock.

mod counter;

use std::fmt;
use std::ops::{Add, Sub};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::sync::Notify;

/// A point on a [`Clock`], in nanoseconds since an unspecified start.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Moment(u64);

impl Moment {
    /// Later than the end of any lease.
    pub const NEVER: Moment = Moment(u64::MAX);

    /// A moment from its nanoseconds.
    pub const fn from_nanos(nanos: u64) -> Moment {
        Moment(nanos)
    }

    /// Its nanoseconds since the start of the clock.
    #[inline]
    pub fn as_nanos(self) -> u64 {
        self.0
    }

    /// The time from `earlier` to this moment; zero if `earlier` is later.
    pub fn since(self, earlier: Moment) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}

impl Add<Duration> for Moment {
    type Output = Moment;

    #[inline]
    fn add(self, d: Duration) -> Moment {
        let nanos = u64::try_from(d.as_nanos()).unwrap_or(u64::MAX);
        Moment(self.0.saturating_add(nanos))
    }
}

impl Sub<Duration> for Moment {
    type Output = Moment;

    #[inline]
    fn sub(self, d: Duration) -> Moment {
        let nanos = u64::try_from(d.as_nanos()).unwrap_or(u64::MAX);
        Moment(self.0.saturating_sub(nanos))
    }
}

/// A clock to read and to sleep on. Cheap to clone.
#[derive(Clone)]
pub struct Clock(TimeSource);

#[derive(Clone)]
enum TimeSource {
    Boot,
    Manual(Arc<Manual>),
}

struct Manual {
    nanos: AtomicU64,
    moved: Notify,
}

/// Sleepers check the clock at least this often, so that a suspended machine notices a lost lease
/// soon after it resumes: tokio's timers stop while it is suspended.
const MAX_SLEEP: Duration = Duration::from_secs(1);

impl Clock {
    /// The machine's clock.
    pub fn system() -> Clock {
        Clock(TimeSource::Boot)
    }

    /// A clock that moves only when [`advance`](Clock::advance) is called, for tests.
    pub fn manual() -> Clock {
        Clock(TimeSource::Manual(Arc::new(Manual {
            // Not zero, so that subtracting a little stays meaningful.
            nanos: AtomicU64::new(1_000_000_000_000),
            moved: Notify::new(),
        })))
    }

    /// The present moment.
    #[inline]
    pub fn now(&self) -> Moment {
        match &self.0 {
            TimeSource::Boot => Moment(boot_nanos()),
            TimeSource::Manual(m) => Moment(m.nanos.load(Ordering::SeqCst)),
        }
    }

    /// The present moment, within [`QUICK_ERROR`](Clock::QUICK_ERROR): for decisions that take less time than reading the
    /// clock. Two threads may differ by as much.
    #[inline]
    pub fn quick_now(&self) -> Moment {
        match &self.0 {
            TimeSource::Boot => Moment(counter::boot_nanos()),
            TimeSource::Manual(_) => self.now(),
        }
    }

    /// How far [`quick_now`](Clock::quick_now) is from [`now`](Clock::now) at most.
    pub const QUICK_ERROR: Duration = counter::MAX_ERROR;

    /// Advances a manual clock, and wakes its sleepers; does nothing to the system clock.
    pub fn advance(&self, by: Duration) {
        if let TimeSource::Manual(m) = &self.0 {
            m.nanos.fetch_add(by.as_nanos() as u64, Ordering::SeqCst);
            m.moved.notify_waiters();
        }
    }

    /// Sleeps until `moment`. Cancel safe.
    pub async fn sleep_until(&self, moment: Moment) {
        if moment == Moment::NEVER {
            return std::future::pending().await;
        }
        loop {
            match &self.0 {
                TimeSource::Boot => {
                    let left = moment.since(self.now());
                    if left.is_zero() {
                        return;
                    }
                    tokio::time::sleep(left.min(MAX_SLEEP)).await;
                }
                TimeSource::Manual(m) => {
                    let moved = m.moved.notified();
                    tokio::pin!(moved);
                    // Subscribe before reading the clock, or an advance in between is missed.
                    moved.as_mut().enable();
                    if self.now() >= moment {
                        return;
                    }
                    moved.await;
                }
            }
        }
    }

    /// Sleeps for `d`. Cancel safe.
    pub async fn sleep(&self, d: Duration) {
        self.sleep_until(self.now() + d).await;
    }

    /// Runs `future` until `moment`; `None` if the moment came first. Cancel safe if the future is.
    pub async fn until<F: Future>(&self, moment: Moment, future: F) -> Option<F::Output> {
        tokio::select! {
            biased;
            output = future => Some(output),
            () = self.sleep_until(moment) => None,
        }
    }

    /// Runs `future` for at most `limit`; `None` if that passed first. Does not read the clock if
    /// the future is ready at once.
    pub async fn within<F: Future>(&self, limit: Duration, future: F) -> Option<F::Output> {
        tokio::select! {
            biased;
            output = future => Some(output),
            () = self.sleep(limit) => None,
        }
    }
}

impl fmt::Debug for Clock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.0 {
            TimeSource::Boot => "Clock(system)",
            TimeSource::Manual(_) => "Clock(manual)",
        })
    }
}

#[inline]
fn boot_nanos() -> u64 {
    #[cfg(target_os = "linux")]
    let id = rustix::time::ClockId::Boottime;
    #[cfg(not(target_os = "linux"))]
    let id = rustix::time::ClockId::Monotonic;
    let t = rustix::time::clock_gettime(id);
    t.tv_sec as u64 * 1_000_000_000 + t.tv_nsec as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_manual_clock_moves_only_when_advanced() {
        let clock = Clock::manual();
        let start = clock.now();
        let sleeper = tokio::spawn({
            let clock = clock.clone();
            async move { clock.sleep_until(start + Duration::from_secs(60)).await }
        });
        clock.advance(Duration::from_secs(59));
        tokio::task::yield_now().await;
        assert!(!sleeper.is_finished());
        clock.advance(Duration::from_secs(1));
        sleeper.await.unwrap();
        assert_eq!(clock.now().since(start), Duration::from_secs(60));
    }

    #[test]
    fn the_system_clock_advances() {
        let clock = Clock::system();
        let a = clock.now();
        assert!(clock.now() >= a);
        assert_eq!(
            a.since(clock.now() + Duration::from_secs(1)),
            Duration::ZERO
        );
    }
}
