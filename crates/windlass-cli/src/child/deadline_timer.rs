//! A timer on the clock of leases, which runs while the machine sleeps.
//!
//! tokio's timers stop while a machine is suspended, so after it resumes they fire late by the time of the sleep. A
//! `timerfd` on `CLOCK_BOOTTIME` fires as soon as the machine resumes.

use std::io;

use windlass::Moment;

#[cfg(target_os = "linux")]
pub(super) use self::linux::DeadlineTimer;
#[cfg(not(target_os = "linux"))]
pub(super) use self::other::DeadlineTimer;

#[cfg(target_os = "linux")]
mod linux {
    use std::os::fd::OwnedFd;
    use std::time::Duration;

    use rustix::io::Errno;
    use rustix::time::{
        Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create,
        timerfd_settime,
    };
    use tokio::io::unix::AsyncFd;

    use super::{Moment, io};

    /// See the module.
    #[derive(Debug)]
    pub(in crate::child) struct DeadlineTimer(AsyncFd<OwnedFd>);

    impl DeadlineTimer {
        /// A timer that is not set. Must be called inside a tokio runtime.
        pub(in crate::child) fn new() -> io::Result<DeadlineTimer> {
            let flags = TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK;
            let timer = timerfd_create(TimerfdClockId::Boottime, flags)?;
            #[expect(
                deprecated,
                reason = "sound for an OwnedFd, whose number never changes; its replacement is unsafe"
            )]
            let timer = AsyncFd::new(timer)?;
            Ok(DeadlineTimer(timer))
        }

        /// Replaces the deadline; `None` removes it.
        pub(in crate::child) fn set(&self, at: Option<Moment>) -> io::Result<()> {
            let zero = Timespec::default();
            let value = match at {
                // Zero would remove it.
                Some(at) => Duration::from_nanos(at.as_nanos().max(1)),
                None => Duration::ZERO,
            };
            let timer = Itimerspec {
                it_interval: zero,
                it_value: value.try_into().map_err(io::Error::other)?,
            };
            timerfd_settime(&self.0, TimerfdTimerFlags::ABSTIME, &timer)?;
            Ok(())
        }

        /// Returns when the deadline has passed.
        ///
        /// # Cancel safety
        ///
        /// Cancelling loses nothing.
        pub(in crate::child) async fn passed(&self) {
            loop {
                // An error means that the runtime shuts down.
                let Ok(mut ready) = self.0.readable().await else {
                    return;
                };
                let mut expirations = [0; 8];
                match rustix::io::read(&self.0, &mut expirations) {
                    // Extended in the meantime.
                    Err(Errno::AGAIN) => ready.clear_ready(),
                    Err(Errno::INTR) => {}
                    _ => return,
                }
            }
        }
    }
}

#[cfg(not(target_os = "linux"))]
mod other {
    use windlass::Clock;

    use super::{Moment, io};

    /// See the module.
    #[derive(Debug)]
    pub(in crate::child) struct DeadlineTimer(Moment);

    impl DeadlineTimer {
        /// A timer that is not set.
        pub(in crate::child) fn new() -> io::Result<DeadlineTimer> {
            Ok(DeadlineTimer(Moment::NEVER))
        }

        /// Replaces the deadline; `None` removes it.
        pub(in crate::child) fn set(&mut self, at: Option<Moment>) -> io::Result<()> {
            self.0 = at.unwrap_or(Moment::NEVER);
            Ok(())
        }

        /// Returns when the deadline has passed.
        pub(in crate::child) async fn passed(&self) {
            Clock::system().sleep_until(self.0).await;
        }
    }
}
