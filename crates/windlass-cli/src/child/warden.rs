//! The process between windlass and its command.
//!
//! It watches three things at once, its children, the channel and its own signals, and lives by two rules. When
//! the command ends by itself, report and leave: what it left in the background is meant to stay. When the tree
//! must die, because of an order or because the channel closed, stay until nothing of it is left.
//!
//! The warden has adopted all orphans below it, so "nothing is left" is simply "I have no children".

use std::ffi::OsString;
use std::io::{self, Write as _};
use std::process::{Command, ExitCode};
use std::time::Duration;

use rustix::io::Errno;
use rustix::process::{Pid, Signal, WaitOptions, getpgid, getpgrp, kill_process, wait};
use tokio::signal::unix::{Signal as Listener, SignalKind, signal};
use tokio::time::{Instant, sleep_until};

use super::ended::Ended;
use super::forwarding::Forwarding;
use super::handover;
use super::protocol::{Channel, Order, Report, shared_clock};
use super::signals::Signals;
use super::tree;

/// The hidden first argument that makes this binary a warden.
pub(crate) const NAME: &str = "__warden";

/// What the warden calls itself. Not "windlass", so that `pkill -KILL windlass` leaves somebody to clean up.
pub(super) const ALIAS: &str = "lock-warden";

/// How long to wait for killed processes to die before looking for more, at first and at most. A death is noticed at
/// once; this is for those that were born unnoticed, and those that take their time.
const LOOK_AGAIN: Duration = Duration::from_millis(5);
const LOOK_AGAIN_AT_MOST: Duration = Duration::from_millis(200);

/// How often to look in vain before leaving to themselves processes that we may not kill, with nobody left to tell.
const GIVE_UP_AFTER: u32 = 20;

/// Runs the warden. `args` are the command and its arguments.
///
/// To be called before anything else in `main`: until it handles signals, a Ctrl-C would end it.
pub(crate) fn main(args: impl Iterator<Item = OsString>) -> ExitCode {
    // One thread is enough, and starts faster than a pool.
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    match runtime.and_then(|runtime| runtime.block_on(run(args))) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // Where this cannot be written, the code has to do.
            let _ = writeln!(
                io::stderr(),
                "windlass: the warden of a command failed: {error}"
            );
            ExitCode::from(125)
        }
    }
}

async fn run(mut args: impl Iterator<Item = OsString>) -> io::Result<()> {
    let mut signals = Signals::listen()?;
    // Linux only, and a mere precaution.
    let _ = std::fs::write("/proc/self/comm", ALIAS);
    let deaths = signal(SignalKind::child())?;
    tree::adopt_orphans()?;
    let (stream, stdin) = handover::accept()?;
    let channel = Channel::new(stream)?;
    let program = args.next().unwrap_or_default();
    // The builder is dropped at once, and our copy of stdin with it: whoever writes to the command must notice
    // when the command stops reading.
    let started = Command::new(program).args(args).stdin(stdin).spawn();
    let command = match started {
        Ok(child) => Pid::from_child(&child),
        Err(error) => {
            let errno = error.raw_os_error().unwrap_or(Errno::INVAL.raw_os_error());
            return channel.send(&Report::Refused(errno));
        }
    };
    // If windlass is gone already, the channel is about to say so.
    let _ = channel.send(&Report::Started(command));
    // A Ctrl-C from before the command existed did not reach it, and is no testimony that it did.
    signals.forget().await;
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
        pause: LOOK_AGAIN,
        in_vain: 0,
    }
    .watch()
    .await
}

struct Warden {
    /// `None` once windlass is gone.
    channel: Option<Channel>,
    signals: Signals,
    deaths: Listener,
    command: Pid,
    ended: Option<Ended>,
    /// Set when the whole tree has to go: what is left at this instant is killed.
    kill_at: Option<Instant>,
    /// Set when the tree has to go at this instant unless windlass says otherwise before.
    deadline: Option<Instant>,
    /// How long the rest of a command that was ended by a forwarded signal has to follow it.
    grace: Option<Duration>,
    /// The signals by which the command was asked to end.
    stop_signals: Vec<Signal>,
    forwarding: Forwarding,
    /// Until the next look at who is left to kill.
    pause: Duration,
    /// How often in a row there was nobody left that we could kill.
    in_vain: u32,
}

impl Warden {
    async fn watch(mut self) -> io::Result<()> {
        loop {
            let childless = self.reap()?;
            if !childless {
                self.end_rest();
            }
            if let Some(ended) = self.ended
                && (self.kill_at.is_none() || childless)
            {
                self.tell(&Report::Ended(ended));
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
                if self.in_vain >= GIVE_UP_AFTER && self.channel.is_none() {
                    return Ok(());
                }
                next[2] = Some(now + self.pause);
                self.pause = LOOK_AGAIN_AT_MOST.min(self.pause * 2);
            }
            self.something_happens(next.into_iter().flatten().min())
                .await;
        }
    }

    /// Waits for a death, a signal, an order, or that instant.
    async fn something_happens(&mut self, alarm: Option<Instant>) {
        let order = async {
            match &mut self.channel {
                Some(channel) => channel.receive::<Order>().await,
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
            // A signal to the whole group kills the command as we hear of it, and must be heard first: it says why.
            biased;
            signal = self.signals.next() => {
                self.told_to_stop(signal);
                self.forwarding.heard(signal, Instant::now());
            }
            _ = self.deaths.recv() => {}
            order = order => match order {
                Ok(Some(order)) => self.obey(order),
                // A channel that fails is as good as closed: nobody could tell us to stop.
                Ok(None) | Err(_) => {
                    self.channel = None;
                    self.kill_by(Instant::now());
                }
            },
            () = alarm => {}
        }
    }

    fn obey(&mut self, order: Order) {
        let now = Instant::now();
        if let Order::Forward(signal) = order {
            self.told_to_stop(signal);
        }
        match order {
            Order::Forward(signal)
                if Forwarding::weighs(signal) && self.command_is_in_our_group() =>
            {
                self.forwarding.asked(signal, now);
            }
            Order::Forward(signal) => self.signal_command(signal),
            Order::Tree(Signal::KILL) => self.kill_by(now),
            Order::Tree(signal) => self.signal_all(&[signal]),
            Order::End(within) => {
                if self.kill_at.is_none() {
                    // A stopped process gets to see its TERM only when it is continued.
                    self.signal_all(&[Signal::TERM, Signal::CONT]);
                }
                self.kill_by(later(now, within));
            }
            Order::Deadline(at) => {
                let left = |at: Duration| at.saturating_sub(shared_clock());
                self.deadline = at.map(|at| later(now, left(at)));
            }
            Order::Grace(within) => self.grace = Some(within),
        }
    }

    /// Remembers that the command was asked to end.
    fn told_to_stop(&mut self, signal: Signal) {
        let stops = matches!(
            signal,
            Signal::INT | Signal::TERM | Signal::HUP | Signal::QUIT
        );
        if stops && !self.stop_signals.contains(&signal) {
            self.stop_signals.push(signal);
        }
    }

    /// If the command has ended as it was told to, the rest of it follows.
    fn end_rest(&mut self) {
        let (Some(ended), Some(grace)) = (self.ended, self.grace) else {
            return;
        };
        // A shell whose child died of a signal, and a program that caught it, say so by their code.
        let told =
            |signal: &Signal| ended.exit_code() == Ended::Signal(signal.as_raw()).exit_code();
        if self.kill_at.is_none() && self.stop_signals.iter().any(told) {
            self.signal_all(&[Signal::TERM, Signal::CONT]);
            self.kill_by(later(Instant::now(), grace));
        }
    }

    /// Never later than already planned: who asked first was promised that time.
    fn kill_by(&mut self, at: Instant) {
        self.kill_at = [Some(at), self.kill_at, self.deadline.take()]
            .into_iter()
            .flatten()
            .min();
    }

    /// Collects the dead, adopted ones included. True when no child is left, dead or alive.
    fn reap(&mut self) -> io::Result<bool> {
        loop {
            match wait(WaitOptions::NOHANG) {
                Ok(Some((pid, status))) => {
                    if pid == self.command {
                        self.ended = Ended::from_status(status).or(self.ended);
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
        let swept = tree::kill(|| self.everyone());
        match swept.only_denied() {
            Some(stuck) => {
                self.tell(&Report::Stuck(stuck));
                self.in_vain += 1;
            }
            // They have died since we last reaped, or they are hidden from us.
            None if swept.found.is_empty() => self.in_vain += 1,
            None => self.in_vain = 0,
        }
    }

    fn signal_all(&self, signals: &[Signal]) {
        for pid in self.everyone() {
            for signal in signals {
                // It may have ended meanwhile, or belong to somebody else.
                let _ = kill_process(pid, *signal);
            }
        }
    }

    /// Everything below us; at least the command, should `/proc` not show it.
    fn everyone(&self) -> Vec<Pid> {
        let mut everyone = tree::descendants(&[]);
        if self.ended.is_none() && !everyone.contains(&self.command) {
            everyone.push(self.command);
        }
        everyone
    }

    /// Its number is its own until we have collected its status, so this cannot hit another process.
    fn signal_command(&self, signal: Signal) {
        if self.ended.is_none() {
            let _ = kill_process(self.command, signal);
        }
    }

    fn command_is_in_our_group(&self) -> bool {
        getpgid(Some(self.command)).is_ok_and(|group| group == getpgrp())
    }

    fn tell(&self, report: &Report) {
        if let Some(channel) = &self.channel {
            // Windlass may be gone, and then there is nobody to tell.
            let _ = channel.send(report);
        }
    }
}

/// A time too far to be represented is as good as a year.
fn later(now: Instant, within: Duration) -> Instant {
    const YEAR: Duration = Duration::from_secs(365 * 24 * 3600);
    now + within.min(YEAR)
}
