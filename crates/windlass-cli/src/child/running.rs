//! The handle of a started command: signal it, wait for it, end it.

use std::io;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, WaitOptions, kill_process, waitpid};
use tokio::process::Child;
use tokio::time::{sleep, timeout_at};
use windlass::Moment;

use super::child_exit::ChildExit;
use super::protocol::{WardenChannel, WardenOrder, WardenReport};
use super::tree;

/// Pause between checks whether killed processes are gone.
const RECHECK: Duration = Duration::from_millis(5);

/// How long to wait for a watchdog to exit after its work is done. It takes a millisecond, unless the watchdog was
/// stopped, and then windlass must not wait forever.
const WATCHDOG_EXIT_TIMEOUT: Duration = Duration::from_secs(5);

/// A command that runs under a watchdog.
///
/// Dropping this kills the command and its descendants without waiting for them. If the command has already ended,
/// processes that it left in the background stay.
#[derive(Debug)]
#[must_use = "dropping it kills the command"]
pub(crate) struct RunningChild {
    channel: WardenChannel,
    watchdog: Child,
    pid: Pid,
    /// Children that this process had before, which do not belong to the command.
    unrelated: Vec<Pid>,
    /// How it ended, and when that was reported.
    ended: Option<(ChildExit, Instant)>,
}

impl RunningChild {
    pub(super) fn new(
        channel: WardenChannel,
        watchdog: Child,
        pid: Pid,
        unrelated: Vec<Pid>,
    ) -> RunningChild {
        RunningChild {
            channel,
            watchdog,
            pid,
            unrelated,
            ended: None,
        }
    }

    /// The process id of the command (not of the watchdog or the warden).
    pub(crate) fn pid(&self) -> u32 {
        self.pid.as_raw_pid().unsigned_abs()
    }

    /// Forwards a signal that windlass received.
    ///
    /// An INT or QUIT that went to the whole process group, as Ctrl-C does, is not forwarded, because the command has
    /// received it. The warden detects this: it is in the group too, and waits some milliseconds for the same signal.
    ///
    /// # Errors
    ///
    /// `BrokenPipe` if the watchdog has died; [`wait`](Self::wait) then returns how the command ended.
    pub(crate) fn forward(&self, signal: Signal) -> io::Result<()> {
        self.order(WardenOrder::Forward(signal))
    }

    /// Sends a signal to the command and its descendants. After KILL, [`wait`](Self::wait) returns once all of them are
    /// gone.
    ///
    /// # Errors
    ///
    /// As for [`forward`](Self::forward).
    pub(crate) fn signal_tree(&self, signal: Signal) -> io::Result<()> {
        self.order(WardenOrder::Tree(signal))
    }

    /// Makes the watchdog kill everything at this moment of the system clock unless this is called again before; `None` cancels it.
    ///
    /// For the case that windlass itself cannot act in time, because it was suspended or gets no CPU. Extended with each
    /// renewal, the deadline keeps the command from outliving the lease even then.
    ///
    /// # Errors
    ///
    /// As for [`forward`](Self::forward).
    pub(crate) fn set_deadline(&self, at: Option<Moment>) -> io::Result<()> {
        self.order(WardenOrder::Deadline(at))
    }

    /// From now on, if a [forwarded](Self::forward) INT, TERM, HUP or QUIT ends the command, its remaining descendants
    /// are ended too: TERM at once, KILL after `grace`.
    ///
    /// # Errors
    ///
    /// As for [`forward`](Self::forward).
    pub(crate) fn set_grace(&self, grace: Duration) -> io::Result<()> {
        self.order(WardenOrder::Grace(grace))
    }

    /// Waits until the command has ended. Processes that it left in the background are not waited for.
    ///
    /// If the watchdog was killed, this kills what is left of the command before it returns.
    ///
    /// # Cancel safety
    ///
    /// Cancelling loses nothing; call it again.
    pub(crate) async fn wait(&mut self) -> io::Result<ChildExit> {
        loop {
            match self.report().await? {
                WaitOutcome::Ended(ended) => return Ok(ended),
                WaitOutcome::Stuck(_) => {}
            }
        }
    }

    /// Ends the command and its descendants: TERM now, KILL at `term_until` to those that are left. Returns once all are
    /// gone, which can take longer than the KILL: a process in a system call may have to finish it first.
    ///
    /// If the command has already ended, processes that it left in the background stay.
    ///
    /// # Cancel safety
    ///
    /// Cancelling stops the waiting, not the killing. Calling it again can only make the KILL earlier.
    ///
    /// # Errors
    ///
    /// `PermissionDenied` if a process is left that windlass may not kill, such as one started with `sudo`.
    pub(crate) async fn end_by(&mut self, term_until: Instant) -> io::Result<ChildExit> {
        // An error means that the watchdog has died, which is handled below.
        let _ = self.order(WardenOrder::End(time_until(term_until)));
        match self.report().await? {
            WaitOutcome::Ended(ended) => Ok(ended),
            WaitOutcome::Stuck(pid) => Err(denied(pid)),
        }
    }

    async fn report(&mut self) -> io::Result<WaitOutcome> {
        if let Some((ended, at)) = self.ended {
            reap_watchdog(&mut self.watchdog, at).await;
            return Ok(WaitOutcome::Ended(ended));
        }
        let ended = loop {
            match self.channel.receive().await? {
                Some(WardenReport::Ended(ended)) => break ended,
                Some(WardenReport::Stuck(pid)) => return Ok(WaitOutcome::Stuck(pid)),
                Some(WardenReport::Started(_) | WardenReport::Refused(_) | WardenReport::Late) => {}
                None => break self.kill_orphans().await?,
            }
        };
        // Set before the next await, so that the result survives cancellation.
        let now = Instant::now();
        self.ended = Some((ended, now));
        reap_watchdog(&mut self.watchdog, now).await;
        Ok(WaitOutcome::Ended(ended))
    }

    /// After the watchdog has died, its children are children of this process: kills and reaps them in its place.
    async fn kill_orphans(&mut self) -> io::Result<ChildExit> {
        let mut exit = None;
        loop {
            let swept = self.kill_all();
            // By id, never "any child": other code may wait for its own children.
            exit = reap(self.pid).or(exit);
            for pid in &swept.found {
                if *pid != self.pid {
                    reap(*pid);
                }
            }
            if let Some(denied_pid) = swept.only_denied() {
                return Err(denied(denied_pid));
            }
            if swept.found.is_empty() {
                return Ok(exit.unwrap_or(ChildExit::KILLED));
            }
            sleep(RECHECK).await;
        }
    }

    fn kill_all(&self) -> tree::KillSweep {
        tree::kill(|| {
            if cfg!(target_os = "linux") {
                tree::descendants(&self.unrelated)
            } else {
                vec![self.pid]
            }
        })
    }

    fn order(&self, order: WardenOrder) -> io::Result<()> {
        self.channel.send(&order)?;
        self.wake_watchdog();
        Ok(())
    }

    /// Continues a stopped watchdog, so that it reads its orders.
    fn wake_watchdog(&self) {
        // Its status was not collected yet, so the id cannot belong to another process.
        if let Some(pid) = self.watchdog.id().and_then(|id| Pid::from_raw(id as i32)) {
            let _ = kill_process(pid, Signal::CONT);
        }
    }
}

impl Drop for RunningChild {
    fn drop(&mut self) {
        if self.ended.is_some() {
            // Reaps it, in case it exits only now.
            let _ = self.watchdog.try_wait();
            return;
        }
        // Closing the channel makes the watchdog kill everything. It exits with success only when that is done.
        match self.watchdog.try_wait() {
            Ok(Some(status)) if !status.success() => drop(self.kill_all()),
            _ => self.wake_watchdog(),
        }
    }
}

/// Reaps a watchdog that is about to exit, so that no zombie remains when windlass exits: in containers, the init process
/// often reaps nothing.
///
/// `since` is when its work was done.
///
/// # Cancel safety
///
/// Cancelling loses nothing; call it again.
pub(super) async fn reap_watchdog(watchdog: &mut Child, since: Instant) {
    let _ = timeout_at((since + WATCHDOG_EXIT_TIMEOUT).into(), watchdog.wait()).await;
}

/// The result of waiting.
enum WaitOutcome {
    Ended(ChildExit),
    Stuck(Pid),
}

fn reap(pid: Pid) -> Option<ChildExit> {
    let (_, status) = waitpid(Some(pid), WaitOptions::NOHANG).ok()??;
    ChildExit::from_status(status)
}

fn time_until(instant: Instant) -> Duration {
    instant.saturating_duration_since(Instant::now())
}

fn denied(pid: Pid) -> io::Error {
    io::Error::new(
        io::ErrorKind::PermissionDenied,
        format!(
            "process {} was started by the command, but windlass has no permission to kill it; end it manually",
            pid.as_raw_pid()
        ),
    )
}
