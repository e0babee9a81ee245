//! The process between windlass and the warden: it enforces the deadline.
//!
//! The warden, the command and windlass share a process group, so one signal to the group can stop or kill them all
//! (Ctrl-Z, `kill -KILL -PGID`). The watchdog has a session of its own: no terminal and no group signal reaches it. It
//! passes orders to the warden and reports to windlass, and kills all its descendants when
//!
//! - the deadline passes, because windlass is stopped, gets no CPU or has lost its store,
//! - windlass dies,
//! - the warden dies before it has reported the end of the command.
//!
//! The warden watches the watchdog in turn: its channel closes when the watchdog dies.

use std::ffi::OsString;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt as _;
use std::process::Command;
use std::time::Duration;

use rustix::process::{Pid, Signal, WaitStatus, kill_process, setsid};
use tokio::signal::unix::{Signal as Listener, SignalKind, signal};
use tokio::time::{Instant, sleep_until};
use windlass::{Clock, Moment};
use windlass_term::Signals;

use self::deadline_timer::DeadlineTimer;
use super::child_exit::ChildExit;
use super::kill_loop::KillLoop;
use super::protocol::{self, WardenChannel, WardenOrder, WardenReport};
use super::tree;
use super::warden;

/// The hidden first argument that makes this binary a watchdog.
pub(crate) const NAME: &str = "__watchdog";

/// The process name. Not "windlass", so that it survives `pkill -KILL windlass` and cleans up.
pub(super) const ALIAS: &str = "lock-watchdog";

/// How long to wait for the warden to exit after its last report. It takes a millisecond.
const WARDEN_EXIT_TIMEOUT: Duration = Duration::from_secs(2);

/// Runs the watchdog. `args` are the command and its arguments.
///
/// Called before anything else in `main`: until it handles signals, a Ctrl-C would end it.
pub(crate) async fn run(args: impl Iterator<Item = OsString>) -> io::Result<()> {
    // The handlers keep signals from ending this process before it has left the group. What arrives is ignored: the
    // command gets its signals from its group and from the warden.
    let _signals = Signals::install()?;
    // The name that `ps` and `pkill` use. Works on Linux only; a failure does not matter.
    let _ = std::fs::write("/proc/self/comm", ALIAS);
    let deaths = signal(SignalKind::child())?;
    tree::adopt_orphans()?;
    let (above, stdin) = protocol::accept_stdin()?;
    let (below, theirs) = UnixStream::pair()?;
    let warden = start_warden(args, theirs.into())?;
    // The warden has inherited the group of windlass; from now on this process is out of its reach. The command starts
    // only when the warden has received its stdin, so it never runs without this protection.
    setsid()?;
    let mut above = WardenChannel::new(above)?;
    let deadline = DeadlineTimer::new()?;
    // A signal to the group may have stopped this process before it had left the group, past the end of the lease.
    match above.receive().await? {
        Some(WardenOrder::Deadline(at)) if at.is_none_or(|at| Clock::system().now() < at) => {
            deadline.set(at)?;
        }
        // The warden ends without a command when its channel closes.
        Some(WardenOrder::Deadline(_)) => return above.send(&WardenReport::Late),
        _ => return Ok(()),
    }
    match protocol::send_stdin(&below, &stdin) {
        // A Ctrl-C has ended the warden before it handled signals. Its exit status is reported below.
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => {}
        sent => sent?,
    }
    // A process that writes to the command must notice when the command stops reading.
    drop(stdin);
    Watchdog {
        above: Some(above),
        below: Some(WardenChannel::new(below)?),
        deaths,
        deadline,
        warden,
        warden_exit: None,
        last_report: None,
        started: false,
        killing: None,
    }
    .watch()
    .await
}

/// Drops the channel on return: only the warden may hold its end, or its death would go unnoticed.
fn start_warden(args: impl Iterator<Item = OsString>, channel: OwnedFd) -> io::Result<Pid> {
    let mut process = Command::new(protocol::own_executable()?);
    process.arg0(warden::ALIAS).arg(warden::NAME).args(args);
    let child = process.stdin(channel).spawn()?;
    Ok(Pid::from_child(&child))
}

struct Watchdog {
    /// To windlass; `None` once it is gone.
    above: Option<WardenChannel>,
    /// To the warden; `None` once it is gone or must end.
    below: Option<WardenChannel>,
    deaths: Listener,
    deadline: DeadlineTimer,
    warden: Pid,
    warden_exit: Option<WaitStatus>,
    /// The final report of the warden, and until when to wait for its exit.
    last_report: Option<(WardenReport, Instant)>,
    /// Whether the command runs.
    started: bool,
    /// Set when all descendants must die.
    killing: Option<KillLoop>,
}

impl Watchdog {
    async fn watch(mut self) -> io::Result<()> {
        loop {
            let warden = self.warden;
            let warden_exit = &mut self.warden_exit;
            let childless = tree::reap(|pid, status| {
                if pid == warden {
                    *warden_exit = Some(status);
                }
            })?;
            let mut alarm = None;
            if let Some(kill_loop) = &mut self.killing {
                if childless {
                    self.report_death();
                    return Ok(());
                }
                let stuck = kill_loop.sweep(|| tree::descendants(&[]));
                if kill_loop.is_futile() && self.above.is_none() {
                    return Ok(());
                }
                alarm = Some(kill_loop.next_sweep());
                if let Some(stuck) = stuck {
                    self.report(&WardenReport::Stuck(stuck));
                }
            } else if let Some((_, until)) = self.last_report {
                // Reaped here, because in containers the init process often reaps nothing.
                if self.warden_exit.is_some() || until <= Instant::now() {
                    return Ok(());
                }
                alarm = Some(until);
            }
            self.wait_for_event(alarm).await;
        }
    }

    /// Waits for an order, a report, the death of a child, the deadline, or the instant.
    async fn wait_for_event(&mut self, alarm: Option<Instant>) {
        let order = async {
            match &mut self.above {
                Some(channel) => channel.receive::<WardenOrder>().await,
                None => std::future::pending().await,
            }
        };
        let report = async {
            match &mut self.below {
                Some(channel) => channel.receive::<WardenReport>().await,
                None => std::future::pending().await,
            }
        };
        let alarm = async {
            match alarm {
                Some(alarm) => sleep_until(alarm).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            // Orders before the deadline: one of them may extend it.
            biased;
            order = order => match order {
                Ok(Some(order)) => self.execute(order),
                // A failed channel counts as closed: no order could arrive any more.
                Ok(None) | Err(_) => {
                    self.above = None;
                    self.kill_all();
                }
            },
            report = report => match report {
                Ok(Some(report)) => self.relay(report),
                Ok(None) | Err(_) => {
                    self.below = None;
                    self.kill_all();
                }
            },
            _ = self.deaths.recv() => {}
            () = self.deadline.passed() => self.kill_all(),
            () = alarm => {}
        }
    }

    fn execute(&mut self, order: WardenOrder) {
        match (order, &self.below) {
            (WardenOrder::Deadline(at), _) => {
                if self.deadline.set(at).is_err() {
                    self.kill_all();
                }
            }
            (order, Some(below)) => {
                // If this fails, the warden has died, and its channel will show it.
                let _ = below.send(&order);
                // A signal to the group may have stopped the warden.
                if self.warden_exit.is_none() {
                    let _ = kill_process(self.warden, Signal::CONT);
                }
            }
            (_, None) => {}
        }
    }

    fn relay(&mut self, report: WardenReport) {
        self.started |= matches!(report, WardenReport::Started(_));
        if matches!(report, WardenReport::Refused(_) | WardenReport::Ended(_)) {
            self.last_report = Some((report, Instant::now() + WARDEN_EXIT_TIMEOUT));
            self.below = None;
        }
        self.report(&report);
    }

    /// From now on, kills all descendants, unless the command has ended by itself: processes that it left in the
    /// background are meant to stay.
    fn kill_all(&mut self) {
        if self.last_report.is_none() {
            // The warden kills its children too when its channel closes.
            self.below = None;
            self.killing.get_or_insert_default();
        }
    }

    /// Reports the end of a command that was killed, or why the warden could not start it.
    fn report_death(&self) {
        let ended = match self.warden_exit.and_then(ChildExit::from_status) {
            Some(warden) if !self.started => warden,
            _ => ChildExit::KILLED,
        };
        self.report(&WardenReport::Ended(ended));
    }

    fn report(&self, report: &WardenReport) {
        if let Some(channel) = &self.above {
            // Windlass may be gone.
            let _ = channel.send(report);
        }
    }
}

#[cfg(target_os = "linux")]
mod deadline_timer {
    use std::os::fd::OwnedFd;
    use std::time::Duration;

    use rustix::io::Errno;
    use rustix::time::{
        Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create,
        timerfd_settime,
    };
    use tokio::io::unix::AsyncFd;

    use super::{Moment, io};

    /// A timer on the clock of leases, which runs while the machine sleeps.
    ///
    /// tokio's timers stop while a machine is suspended, so after it resumes they fire late by the time of the sleep. A
    /// `timerfd` on `CLOCK_BOOTTIME` fires as soon as the machine resumes.
    #[derive(Debug)]
    pub(super) struct DeadlineTimer(AsyncFd<OwnedFd>);

    impl DeadlineTimer {
        /// A timer that is not set. Must be called inside a tokio runtime.
        pub(super) fn new() -> io::Result<DeadlineTimer> {
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
        pub(super) fn set(&self, at: Option<Moment>) -> io::Result<()> {
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
        pub(super) async fn passed(&self) {
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
mod deadline_timer {
    use windlass::Clock;

    use super::{Moment, io};

    /// A timer on the clock of leases.
    #[derive(Debug)]
    pub(super) struct DeadlineTimer(Moment);

    impl DeadlineTimer {
        /// A timer that is not set.
        pub(super) fn new() -> io::Result<DeadlineTimer> {
            Ok(DeadlineTimer(Moment::NEVER))
        }

        /// Replaces the deadline; `None` removes it.
        pub(super) fn set(&mut self, at: Option<Moment>) -> io::Result<()> {
            self.0 = at.unwrap_or(Moment::NEVER);
            Ok(())
        }

        /// Returns when the deadline has passed.
        pub(super) async fn passed(&self) {
            Clock::system().sleep_until(self.0).await;
        }
    }
}
