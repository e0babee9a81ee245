//! The process between windlass and its command.
//!
//! It waits for its children, the channel and its own signals, and has two rules. When the command ends by itself, the
//! warden reports that and exits: processes in the background are meant to stay. When all descendants must die, because
//! of an order or because the channel was closed, it stays until none is left.
//!
//! The warden adopts all orphaned descendants, so "none is left" means that it has no children.

use std::ffi::OsString;
use std::io::{self, Write as _};
use std::process::{Command, ExitCode};
use std::time::Duration;

use rustix::io::Errno;
use rustix::process::{Pid, Signal, WaitOptions, getpgid, getpgrp, kill_process, wait};
use tokio::signal::unix::{Signal as Listener, SignalKind, signal};
use tokio::time::{Instant, sleep_until};
use windlass_term::Signals;

use super::child_exit::ChildExit;
use super::forwarding::Forwarding;
use super::handover;
use super::protocol::{WardenChannel, WardenOrder, WardenReport, shared_clock};
use super::tree;

/// The hidden first argument that makes this binary a warden.
pub(crate) const NAME: &str = "__warden";

/// The process name of the warden. Not "windlass", so that it survives `pkill -KILL windlass` and cleans up.
pub(super) const ALIAS: &str = "lock-warden";

/// First and longest pause between two searches for processes to kill. Deaths are reported at once; the searches are for
/// processes that were forked unnoticed, and for those that die slowly.
const RECHECK: Duration = Duration::from_millis(5);
const MAX_RECHECK: Duration = Duration::from_millis(200);

/// Number of futile searches after which to leave processes that cannot be killed, when windlass is gone too.
const GIVE_UP_AFTER: u32 = 20;

/// Runs the warden. `args` are the command and its arguments.
///
/// Called before anything else in `main`: until it handles signals, a Ctrl-C would end it.
pub(crate) fn main(args: impl Iterator<Item = OsString>) -> ExitCode {
    // One thread is enough, and starts faster than a pool.
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    match runtime.and_then(|runtime| runtime.block_on(run(args))) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // If this cannot be written, the exit code must suffice.
            let _ = writeln!(
                io::stderr(),
                "windlass: the warden of a command failed: {error}"
            );
            ExitCode::from(125)
        }
    }
}

async fn run(mut args: impl Iterator<Item = OsString>) -> io::Result<()> {
    let mut signals = Signals::install()?;
    // Works on Linux only; a failure does not matter.
    let _ = std::fs::write("/proc/self/comm", ALIAS);
    let deaths = signal(SignalKind::child())?;
    tree::adopt_orphans()?;
    let (stream, stdin) = handover::accept()?;
    let channel = WardenChannel::new(stream)?;
    let program = args.next().unwrap_or_default();
    // The builder is dropped at once, and with it this copy of stdin: a process that writes to the command must notice
    // when the command stops reading.
    let started = Command::new(program).args(args).stdin(stdin).spawn();
    let command = match started {
        Ok(child) => Pid::from_child(&child),
        Err(error) => {
            let errno = error.raw_os_error().unwrap_or(Errno::INVAL.raw_os_error());
            return channel.send(&WardenReport::Refused(errno));
        }
    };
    // If windlass is gone already, reading the channel will show it.
    let _ = channel.send(&WardenReport::Started(command));
    // A Ctrl-C from before the command existed did not reach it, so it must not suppress forwarding.
    signals.discard_pending().await;
    Warden {
        channel: Some(channel),
        signals,
        deaths,
        command,
        ended: None,
        kill_at: None,
        deadline: None,
        grace: None,
        stop_signals: Vec::new(),
        forwarding: Forwarding::default(),
        pause: RECHECK,
        futile: 0,
    }
    .watch()
    .await
}

struct Warden {
    /// `None` once windlass is gone.
    channel: Option<WardenChannel>,
    signals: Signals,
    deaths: Listener,
    command: Pid,
    ended: Option<ChildExit>,
    /// Set when all descendants must die: those left at this instant are killed.
    kill_at: Option<Instant>,
    /// Set when all descendants must die at this instant unless windlass extends it.
    deadline: Option<Instant>,
    /// Time between TERM and KILL for the descendants of a command that a forwarded signal ended.
    grace: Option<Duration>,
    /// The signals that asked the command to end.
    stop_signals: Vec<Signal>,
    forwarding: Forwarding,
    /// Pause until the next search.
    pause: Duration,
    /// Number of consecutive searches that found nothing to kill.
    futile: u32,
}

impl Warden {
    async fn watch(mut self) -> io::Result<()> {
        loop {
            let childless = self.reap()?;
            if !childless {
                self.end_descendants();
            }
            if let Some(ended) = self.ended
                && (self.kill_at.is_none() || childless)
            {
                self.report(&WardenReport::Ended(ended));
                return Ok(());
            }
            let now = Instant::now();
            if self.deadline.is_some_and(|at| at <= now) {
                self.kill_by(now);
            }
            while let Some(signal) = self.forwarding.due(now) {
                self.signal_command(signal);
            }
            let mut next = [self.deadline, self.forwarding.next_due(), self.kill_at];
            if self.kill_at.is_some_and(|at| at <= now) {
                self.kill_all();
                if self.futile >= GIVE_UP_AFTER && self.channel.is_none() {
                    return Ok(());
                }
                next[2] = Some(now + self.pause);
                self.pause = MAX_RECHECK.min(self.pause * 2);
            }
            self.wait_for_event(next.into_iter().flatten().min()).await;
        }
    }

    /// Waits for the death of a child, a signal, an order, or the instant.
    async fn wait_for_event(&mut self, alarm: Option<Instant>) {
        let order = async {
            match &mut self.channel {
                Some(channel) => channel.receive::<WardenOrder>().await,
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
            // A signal to the whole group also kills the command, and must be handled first: it is the reason.
            biased;
            signal = self.signals.next() => {
                self.note_stop_signal(signal);
                self.forwarding.received(signal, Instant::now());
            }
            _ = self.deaths.recv() => {}
            order = order => match order {
                Ok(Some(order)) => self.execute(order),
                // A failed channel counts as closed: no order could arrive any more.
                Ok(None) | Err(_) => {
                    self.channel = None;
                    self.kill_by(Instant::now());
                }
            },
            () = alarm => {}
        }
    }

    fn execute(&mut self, order: WardenOrder) {
        let now = Instant::now();
        if let WardenOrder::Forward(signal) = order {
            self.note_stop_signal(signal);
        }
        match order {
            WardenOrder::Forward(signal)
                if Forwarding::deduplicates(signal) && self.command_shares_our_group() =>
            {
                self.forwarding.requested(signal, now);
            }
            WardenOrder::Forward(signal) => self.signal_command(signal),
            WardenOrder::Tree(Signal::KILL) => self.kill_by(now),
            WardenOrder::Tree(signal) => self.signal_all(&[signal]),
            WardenOrder::End(within) => {
                if self.kill_at.is_none() {
                    // A stopped process handles TERM only when it is continued.
                    self.signal_all(&[Signal::TERM, Signal::CONT]);
                }
                self.kill_by(later(now, within));
            }
            WardenOrder::Deadline(at) => {
                let left = |at: Duration| at.saturating_sub(shared_clock());
                self.deadline = at.map(|at| later(now, left(at)));
            }
            WardenOrder::Grace(within) => self.grace = Some(within),
        }
    }

    /// Remembers that the command was asked to end.
    fn note_stop_signal(&mut self, signal: Signal) {
        let stops = matches!(
            signal,
            Signal::INT | Signal::TERM | Signal::HUP | Signal::QUIT
        );
        if stops && !self.stop_signals.contains(&signal) {
            self.stop_signals.push(signal);
        }
    }

    /// If a stop signal has ended the command, ends its remaining descendants.
    fn end_descendants(&mut self) {
        let (Some(ended), Some(grace)) = (self.ended, self.grace) else {
            return;
        };
        // A shell whose child a signal killed, and a program that caught the signal, exit with the same code.
        let caused =
            |signal: &Signal| ended.exit_code() == ChildExit::Signal(signal.as_raw()).exit_code();
        if self.kill_at.is_none() && self.stop_signals.iter().any(caused) {
            self.signal_all(&[Signal::TERM, Signal::CONT]);
            self.kill_by(later(Instant::now(), grace));
        }
    }

    /// Never later than already planned.
    fn kill_by(&mut self, at: Instant) {
        self.kill_at = [Some(at), self.kill_at, self.deadline.take()]
            .into_iter()
            .flatten()
            .min();
    }

    /// Reaps dead children, including adopted ones. Returns whether no child is left.
    fn reap(&mut self) -> io::Result<bool> {
        loop {
            match wait(WaitOptions::NOHANG) {
                Ok(Some((pid, status))) => {
                    if pid == self.command {
                        self.ended = ChildExit::from_status(status).or(self.ended);
                    }
                }
                Ok(None) => return Ok(false),
                Err(Errno::CHILD) => return Ok(true),
                Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }

    fn kill_all(&mut self) {
        let swept = tree::kill(|| self.all_descendants());
        match swept.only_denied() {
            Some(stuck) => {
                self.report(&WardenReport::Stuck(stuck));
                self.futile += 1;
            }
            // They have died since the last reaping, or they are hidden.
            None if swept.found.is_empty() => self.futile += 1,
            None => self.futile = 0,
        }
    }

    fn signal_all(&self, signals: &[Signal]) {
        for pid in self.all_descendants() {
            for signal in signals {
                // It may have ended, or belong to another user.
                let _ = kill_process(pid, *signal);
            }
        }
    }

    /// All descendants; at least the command, if `/proc` does not show it.
    fn all_descendants(&self) -> Vec<Pid> {
        let mut descendants = tree::descendants(&[]);
        if self.ended.is_none() && !descendants.contains(&self.command) {
            descendants.push(self.command);
        }
        descendants
    }

    /// The id is not reused before the status is collected, so this cannot hit another process.
    fn signal_command(&self, signal: Signal) {
        if self.ended.is_none() {
            let _ = kill_process(self.command, signal);
        }
    }

    fn command_shares_our_group(&self) -> bool {
        getpgid(Some(self.command)).is_ok_and(|group| group == getpgrp())
    }

    fn report(&self, report: &WardenReport) {
        if let Some(channel) = &self.channel {
            // Windlass may be gone.
            let _ = channel.send(report);
        }
    }
}

/// `now + within`, capped at a year to avoid overflow.
fn later(now: Instant, within: Duration) -> Instant {
    const YEAR: Duration = Duration::from_secs(365 * 24 * 3600);
    now + within.min(YEAR)
}
