//! The parent of the command.
//!
//! It waits for its children, the channel to the watchdog and its own signals, and has two rules. When the command ends
//! by itself, the warden reports that and exits: processes in the background are meant to stay. When all descendants
//! must die, because of an order or because the channel was closed, it stays until none is left.
//!
//! The warden adopts all orphaned descendants, so "none is left" means that it has no children.
//!
//! It is in the process group of windlass and the command, and so it knows which signals the command has received from
//! the terminal.

use std::ffi::OsString;
use std::io;
use std::process::Command;
use std::time::Duration;

use rustix::io::Errno;
use rustix::process::{Pid, Signal, kill_process};
use tokio::signal::unix::{Signal as Listener, SignalKind, signal};
use tokio::time::{Instant, sleep_until};
use windlass_term::{Signals, catches};

use super::child_exit::ChildExit;
use super::forwarding::Forwarding;
use super::kill_loop::KillLoop;
use super::protocol::{self, WardenChannel, WardenOrder, WardenReport};
use super::tree;

/// The hidden first argument that makes this binary a warden.
pub(crate) const NAME: &str = "__warden";

/// The process name of the warden. Not "windlass", so that it survives `pkill -KILL windlass` and cleans up.
pub(super) const ALIAS: &str = "lock-warden";

/// Runs the warden. `args` are the command and its arguments.
///
/// Called before anything else in `main`: until it handles signals, a Ctrl-C would end it.
pub(crate) async fn run(mut args: impl Iterator<Item = OsString>) -> io::Result<()> {
    let mut signals = Signals::install()?;
    // Ctrl-Z must stop the command, but not this process: it has to act if the watchdog dies.
    let _stops = Signals::install_for(&[Signal::TSTP, Signal::TTIN, Signal::TTOU])?;
    // The name that `ps` and `pkill` use. Works on Linux only; a failure does not matter.
    let _ = std::fs::write("/proc/self/comm", ALIAS);
    let deaths = signal(SignalKind::child())?;
    tree::adopt_orphans()?;
    let (stream, stdin) = protocol::accept_stdin()?;
    let channel = WardenChannel::new(stream)?;
    let program = args.next().unwrap_or_default();
    // The builder is dropped at once, and with it this copy of stdin: a process that writes to the command must notice
    // when the command stops reading.
    let spawn = || Command::new(program).args(args).stdin(stdin).spawn();
    let (command, early) = match start(&mut signals, spawn).await {
        Ok((child, early)) => (Pid::from_child(&child), early),
        Err(error) => {
            let errno = error.raw_os_error().unwrap_or(Errno::INVAL.raw_os_error());
            return channel.send(&WardenReport::Refused(errno));
        }
    };
    // If windlass is gone already, reading the channel will show it.
    let _ = channel.send(&WardenReport::Started(command));
    let mut warden = Warden {
        channel: Some(channel),
        signals,
        deaths,
        command,
        ended: None,
        kill_at: None,
        grace: None,
        stop_signals: Vec::new(),
        forwarding: Forwarding::default(),
        kill_loop: KillLoop::default(),
    };
    for signal in early {
        if catches(command, signal) {
            warden.received(signal);
        }
    }
    warden.watch().await
}

/// Starts the command. Returns the signals that arrived meanwhile, and forgets earlier ones: a Ctrl-C from before the
/// command existed did not reach it, so it must not suppress forwarding.
///
/// The system does not tell whether a signal came just before or just after the fork. But a command that received it
/// before it had installed a handler is dead. So if it has a handler by now, the signal probably came after that, and
/// has reached it; otherwise it has not.
async fn start<T>(
    signals: &mut Signals,
    spawn: impl FnOnce() -> io::Result<T>,
) -> io::Result<(T, Vec<Signal>)> {
    signals.take_pending().await;
    let started = spawn()?;
    Ok((started, signals.take_pending().await))
}

struct Warden {
    /// `None` once the watchdog is gone.
    channel: Option<WardenChannel>,
    signals: Signals,
    deaths: Listener,
    command: Pid,
    ended: Option<ChildExit>,
    /// Set when all descendants must die: those left at this instant are killed.
    kill_at: Option<Instant>,
    /// Time between TERM and KILL for the descendants of a command that a forwarded signal ended.
    grace: Option<Duration>,
    /// The signals that asked the command to end.
    stop_signals: Vec<Signal>,
    forwarding: Forwarding,
    kill_loop: KillLoop,
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
            self.forward_due(now).await;
            let mut next = [self.forwarding.next_due(), self.kill_at];
            if self.kill_at.is_some_and(|at| at <= now) {
                self.kill_all();
                if self.kill_loop.is_futile() && self.channel.is_none() {
                    return Ok(());
                }
                next[1] = Some(self.kill_loop.next_sweep());
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
            signal = self.signals.next() => self.received(signal),
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

    /// The group, and so the command, received this signal.
    fn received(&mut self, signal: Signal) {
        self.note_stop_signal(signal);
        self.forwarding.received(signal, Instant::now());
    }

    fn execute(&mut self, order: WardenOrder) {
        let now = Instant::now();
        if let WardenOrder::Forward(signal) = order {
            self.note_stop_signal(signal);
        }
        match order {
            WardenOrder::Forward(signal)
                if Forwarding::deduplicates(signal) && tree::shares_group(self.command) =>
            {
                // Not `now`: finding out the group takes time, and the warden may receive the same signal after it.
                self.forwarding.requested(signal, Instant::now());
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
            // The watchdog enforces it.
            WardenOrder::Deadline(_) => {}
            WardenOrder::Grace(within) => self.grace = Some(within),
        }
    }

    /// Forwards the signals that were requested long enough ago and did not go to the whole group.
    async fn forward_due(&mut self, now: Instant) {
        if self.forwarding.next_due().is_none_or(|at| at > now) {
            return;
        }
        // On a busy machine the wait may have passed without this process running: the signal may be here, unnoticed.
        for signal in self.signals.take_pending().await {
            self.received(signal);
        }
        while let Some(signal) = self.forwarding.due(now) {
            self.signal_command(signal);
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
        self.kill_at = Some(self.kill_at.map_or(at, |planned| planned.min(at)));
    }

    /// Reaps dead children. Returns whether no child is left.
    fn reap(&mut self) -> io::Result<bool> {
        let (command, ended) = (self.command, &mut self.ended);
        tree::reap(|pid, status| {
            if pid == command {
                *ended = ChildExit::from_status(status).or(*ended);
            }
        })
    }

    fn kill_all(&mut self) {
        let mut kill_loop = std::mem::take(&mut self.kill_loop);
        if let Some(stuck) = kill_loop.sweep(|| self.all_descendants()) {
            self.report(&WardenReport::Stuck(stuck));
        }
        self.kill_loop = kill_loop;
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

    fn report(&self, report: &WardenReport) {
        if let Some(channel) = &self.channel {
            // The watchdog may be gone.
            let _ = channel.send(report);
        }
    }
}

/// `now + within`, capped at a year to avoid overflow.
fn later(now: Instant, within: Duration) -> Instant {
    const YEAR: Duration = Duration::from_secs(365 * 24 * 3600);
    now + within.min(YEAR)
}

#[cfg(test)]
mod tests {
    use rustix::process::getpid;

    use super::*;

    /// A signal during the start is separated from an earlier and a later one. No shell lets a background
    /// job ignore this one.
    #[tokio::test]
    async fn signals_during_the_start_are_returned() {
        let mut signals = Signals::install_for(&[Signal::USR2]).unwrap();
        // Any thread of the tests may receive the signal. Once one of them has noticed it, all have.
        let spawn = || {
            let received = std::thread::spawn(|| {
                let runtime = tokio::runtime::Builder::new_current_thread()
                    .enable_all()
                    .build()?;
                runtime.block_on(async {
                    let mut signals = Signals::install_for(&[Signal::USR2])?;
                    kill_process(getpid(), Signal::USR2)?;
                    Ok(signals.next().await)
                })
            });
            received.join().unwrap()
        };
        let started: io::Result<(Signal, Vec<Signal>)> = start(&mut signals, spawn).await;
        assert_eq!(started.unwrap(), (Signal::USR2, vec![Signal::USR2]));
        assert_eq!(signals.take_pending().await, []);
        // Later ones have reached the command.
        kill_process(getpid(), Signal::USR2).unwrap();
        assert_eq!(signals.next().await, Signal::USR2);
    }
}
