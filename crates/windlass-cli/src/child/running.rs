//! The handle on a started command: signal it, wait for it, end it.

use std::io;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, WaitOptions, kill_process, waitpid};
use tokio::process::Child;
use tokio::time::{sleep, timeout_at};

use super::ended::Ended;
use super::protocol::{Channel, Order, Report, on_shared_clock};
use super::tree;

/// How long to wait for killed processes to die before looking again.
const LOOK_AGAIN: Duration = Duration::from_millis(5);

/// How long a warden that has nothing left to do may take to leave. It takes a millisecond; only one that somebody
/// stopped takes longer, and nobody should wait for that one for ever.
const LEAVING: Duration = Duration::from_secs(5);

/// A command that runs below a warden.
///
/// Dropping this kills the command and everything it started, without waiting for them to be gone, unless the
/// command has ended by itself: what it left in the background then stays.
#[derive(Debug)]
#[must_use = "dropping it kills the command"]
pub(crate) struct Running {
    channel: Channel,
    warden: Child,
    pid: Pid,
    /// Children that this process had before, and that must survive whatever happens to the command.
    strangers: Vec<Pid>,
    /// How it ended, and when we heard of it.
    ended: Option<(Ended, Instant)>,
}

impl Running {
    pub(super) fn new(channel: Channel, warden: Child, pid: Pid, strangers: Vec<Pid>) -> Running {
        Running {
            channel,
            warden,
            pid,
            strangers,
            ended: None,
        }
    }

    /// The process number of the command (not of the warden).
    pub(crate) fn pid(&self) -> u32 {
        self.pid.as_raw_pid().unsigned_abs()
    }

    /// Passes on a signal that windlass received.
    ///
    /// Except for an INT or QUIT that went to the whole process group, as Ctrl-C does: the command has got it, and
    /// passing it on would double it. The warden can tell, being in the group itself: it waits some milliseconds
    /// for the same signal.
    ///
    /// # Errors
    ///
    /// `BrokenPipe` when there is no warden to send it any more; [`wait`](Self::wait) says what became of the command.
    pub(crate) fn forward(&self, signal: Signal) -> io::Result<()> {
        self.order(Order::Forward(signal))
    }

    /// Sends a signal to the command and everything it started. After KILL, [`wait`](Self::wait) returns
    /// once all of them are gone.
    ///
    /// # Errors
    ///
    /// As for [`forward`](Self::forward).
    pub(crate) fn signal_tree(&self, signal: Signal) -> io::Result<()> {
        self.order(Order::Tree(signal))
    }

    /// Has the warden kill everything at this instant unless this is called again before; `None` takes it back.
    ///
    /// For when windlass itself cannot act in time, because it was stopped or gets no processor. Renewed with the
    /// lease, it keeps the command from outliving the lease even then.
    ///
    /// # Errors
    ///
    /// As for [`forward`](Self::forward).
    pub(crate) fn set_deadline(&self, at: Option<Instant>) -> io::Result<()> {
        self.order(Order::Deadline(at.map(on_shared_clock)))
    }

    /// From now on, if a [forwarded](Self::forward) INT, TERM, HUP or QUIT ends the command, what it left in the background ends
    /// too: TERM at once, KILL after `grace`. Whoever wanted the command to stop wanted all of it to stop.
    ///
    /// # Errors
    ///
    /// As for [`forward`](Self::forward).
    pub(crate) fn set_grace(&self, grace: Duration) -> io::Result<()> {
        self.order(Order::Grace(grace))
    }

    /// Waits until the command has ended. What it left in the background is not waited for.
    ///
    /// If the warden was killed, this kills what is left of the command before it returns.
    ///
    /// # Cancel safety
    ///
    /// Cancelling loses nothing; call it again.
    pub(crate) async fn wait(&mut self) -> io::Result<Ended> {
        loop {
            match self.report().await? {
                Outcome::Ended(ended) => return Ok(ended),
                Outcome::Stuck(_) => {}
            }
        }
    }

    /// Ends the command and everything it started: TERM now, KILL at `term_until` to what is left of them. Returns once
    /// all are gone, however long that takes after the KILL: a process inside a system call may have to finish it first.
    ///
    /// If the command has already ended by itself, what it left in the background stays.
    ///
    /// # Cancel safety
    ///
    /// Cancelling stops the waiting, not the killing. Calling it again can only bring the KILL forward.
    ///
    /// # Errors
    ///
    /// `PermissionDenied` when a process is left that we may not kill, such as one started with `sudo`.
    pub(crate) async fn end_by(&mut self, term_until: Instant) -> io::Result<Ended> {
        // An error means that there is no warden any more, which is found out below.
        let _ = self.order(Order::End(time_until(term_until)));
        match self.report().await? {
            Outcome::Ended(ended) => Ok(ended),
            Outcome::Stuck(pid) => Err(denied(pid)),
        }
    }

    async fn report(&mut self) -> io::Result<Outcome> {
        if let Some((ended, at)) = self.ended {
            collect(&mut self.warden, at).await;
            return Ok(Outcome::Ended(ended));
        }
        let ended = loop {
            match self.channel.receive().await? {
                Some(Report::Ended(ended)) => break ended,
                Some(Report::Stuck(pid)) => return Ok(Outcome::Stuck(pid)),
                Some(Report::Started(_) | Report::Refused(_)) => {}
                None => break self.bury().await?,
            }
        };
        // Before the next await: who cancels this must find the news when asking again.
        let now = Instant::now();
        self.ended = Some((ended, now));
        collect(&mut self.warden, now).await;
        Ok(Outcome::Ended(ended))
    }

    /// After the death of the warden: its children have become ours, so do what it would have done.
    async fn bury(&mut self) -> io::Result<Ended> {
        let mut fate = None;
        loop {
            let swept = self.kill_all();
            // These by name, never "any child": others may be waiting for theirs.
            fate = reap(self.pid).or(fate);
            for pid in &swept.found {
                if *pid != self.pid {
                    reap(*pid);
                }
            }
            if let Some(denied_pid) = swept.only_denied() {
                return Err(denied(denied_pid));
            }
            if swept.found.is_empty() {
                return Ok(fate.unwrap_or(Ended::KILLED));
            }
            sleep(LOOK_AGAIN).await;
        }
    }

    fn kill_all(&self) -> tree::Swept {
        tree::kill(|| {
            if cfg!(target_os = "linux") {
                tree::descendants(&self.strangers)
            } else {
                vec![self.pid]
            }
        })
    }

    fn order(&self, order: Order) -> io::Result<()> {
        self.channel.send(&order)?;
        self.wake_warden();
        Ok(())
    }

    /// A stopped warden (Ctrl-Z stops the whole group) would sleep through its orders.
    fn wake_warden(&self) {
        // While we have not collected its status, the number cannot have passed to another process.
        if let Some(pid) = self.warden.id().and_then(|id| Pid::from_raw(id as i32)) {
            let _ = kill_process(pid, Signal::CONT);
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if self.ended.is_some() {
            // Collects it, should it not have left in time before.
            let _ = self.warden.try_wait();
            return;
        }
        // Closing the channel tells the warden, if there is one. It ends with success only when its work is done.
        match self.warden.try_wait() {
            Ok(Some(status)) if !status.success() => drop(self.kill_all()),
            _ => self.wake_warden(),
        }
    }
}

/// Collects the status of a warden that is about to leave, so that no zombie of it is left to whoever inherits our
/// children: in a container that is often somebody who collects nothing.
///
/// `since` is when it had nothing left to do.
///
/// # Cancel safety
///
/// Cancelling loses nothing; call it again.
pub(super) async fn collect(warden: &mut Child, since: Instant) {
    let _ = timeout_at((since + LEAVING).into(), warden.wait()).await;
}

/// What came of waiting.
enum Outcome {
    Ended(Ended),
    Stuck(Pid),
}

fn reap(pid: Pid) -> Option<Ended> {
    let (_, status) = waitpid(Some(pid), WaitOptions::NOHANG).ok()??;
    Ended::from_status(status)
}

fn time_until(instant: Instant) -> Duration {
    instant.saturating_duration_since(Instant::now())
}

fn denied(pid: Pid) -> io::Error {
    io::Error::new(
        io::ErrorKind::PermissionDenied,
        format!(
            "process {} was started by the command but may not be killed by us; end it by hand",
            pid.as_raw_pid()
        ),
    )
}
