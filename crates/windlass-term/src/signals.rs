//! The signals that windlass handles, and which of them were ignored when it started.

use std::future::poll_fn;
use std::io;
use std::sync::OnceLock;
use std::task::Poll;

use rustix::process::{Pid, Signal};
use tokio::signal::unix::{Signal as Listener, SignalKind, signal};

use crate::exit::Exit;
use crate::failure::Failure;

/// The signals that windlass forwards to its command.
const FORWARDED: [Signal; 6] = [
    Signal::INT,
    Signal::TERM,
    Signal::HUP,
    Signal::QUIT,
    Signal::USR1,
    Signal::USR2,
];

/// A stream of the signals that windlass handles.
///
/// Signals that were ignored when this process started stay ignored and are never reported: `nohup windlass run`
/// must keep HUP ignored in its command, and installing a handler would undo that (see `ignored_at_start`).
#[derive(Debug)]
pub struct Signals {
    listeners: Vec<(Signal, Listener)>,
}

impl Signals {
    /// Handles these signals from now on; a failure is reported as an internal error.
    ///
    /// Must be called inside a tokio runtime.
    pub fn listen() -> Result<Signals, Failure> {
        Signals::install()
            .map_err(|error| Failure::internal(format!("cannot listen for signals: {error}")))
    }

    /// Installs handlers for the rest of the process: the signals no longer end it, even when this is dropped.
    ///
    /// Handlers rather than "ignore", because `exec` resets handlers: the command starts with the defaults.
    /// Must be called inside a tokio runtime.
    pub fn install() -> io::Result<Signals> {
        Signals::install_for(&FORWARDED)
    }

    /// [Installs](Signals::install) handlers for other signals than those that windlass forwards.
    pub fn install_for(signals: &[Signal]) -> io::Result<Signals> {
        let listeners = signals
            .iter()
            .filter(|signal| !ignored_at_start(**signal))
            .map(|name| {
                let listener = signal(SignalKind::from_raw(name.as_raw()))?;
                Ok((*name, listener))
            })
            .collect::<io::Result<_>>()?;
        Ok(Signals { listeners })
    }

    /// The next signal. Several of one kind that arrive together count as one, as usual in Unix.
    ///
    /// # Cancel safety
    ///
    /// Cancelling loses no signal.
    pub async fn next(&mut self) -> Signal {
        poll_fn(|context| {
            for (name, listener) in &mut self.listeners {
                if listener.poll_recv(context).is_ready() {
                    return Poll::Ready(*name);
                }
            }
            Poll::Pending
        })
        .await
    }

    /// The signals that have arrived so far, also if the runtime has not noticed them yet.
    pub async fn take_pending(&mut self) -> Vec<Signal> {
        // Listeners see a signal only after the runtime has polled its events, which yielding makes it do.
        tokio::task::yield_now().await;
        poll_fn(|context| {
            let mut pending = Vec::new();
            for (name, listener) in &mut self.listeners {
                while listener.poll_recv(context).is_ready() {
                    pending.push(*name);
                }
            }
            Poll::Ready(pending)
        })
        .await
    }
}

/// Whether this signal was ignored when the process started, as `nohup` arranges for HUP, and a shell without job
/// control for INT and QUIT of background processes.
///
/// `exec` inherits ignored signals but not handlers, so a handler here would make the command receive the signal
/// against its user's wish. Outside Linux there is no safe way to find out, and the answer is no.
fn ignored_at_start(signal: Signal) -> bool {
    // Read once: later, the handlers of this process would show.
    static IGNORED: OnceLock<u64> = OnceLock::new();
    let ignored = IGNORED.get_or_init(|| {
        std::fs::read_to_string("/proc/self/status")
            .ok()
            .and_then(|status| parse_mask(&status, "SigIgn:"))
            .unwrap_or(0)
    });
    has(*ignored, signal)
}

/// Whether a process has a handler for this signal, as far as `/proc` tells.
pub fn catches(pid: Pid, signal: Signal) -> bool {
    let status = std::fs::read_to_string(format!("/proc/{}/status", pid.as_raw_nonzero()));
    let mask = status.ok().and_then(|text| parse_mask(&text, "SigCgt:"));
    mask.is_some_and(|mask| has(mask, signal))
}

/// A signal mask of a `/proc/PID/status`, see proc_pid_status(5).
fn parse_mask(status: &str, label: &str) -> Option<u64> {
    let mask = status.lines().find_map(|line| line.strip_prefix(label))?;
    u64::from_str_radix(mask.trim(), 16).ok()
}

fn has(mask: u64, signal: Signal) -> bool {
    // Signals count from one, bits from zero.
    mask >> (signal.as_raw() - 1) & 1 == 1
}

/// Does `work` unless a signal arrives first; then `work` is dropped, and the exit code of the signal returned.
pub async fn unless_interrupted<T>(
    signals: &mut Signals,
    work: impl Future<Output = T>,
) -> Result<T, Exit> {
    tokio::select! {
        biased;
        signal = signals.next() => Err(Exit::by_signal(signal)),
        done = work => Ok(done),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn mask_of_ignored_signals_is_parsed() {
        // What a Rust program under nohup shows: HUP (1), and PIPE (13), which the runtime ignores.
        let status =
            "Name:\twindlass\nSigBlk:\tffffffffffffffff\nSigIgn:\t0000000000001001\nSigCgt:\t0\n";
        let mask = parse_mask(status, "SigIgn:").unwrap();
        assert!(has(mask, Signal::HUP));
        assert!(has(mask, Signal::PIPE));
        assert!(!has(mask, Signal::INT));
        assert!(!has(mask, Signal::TERM));
        assert_eq!(parse_mask("Name:\twindlass\n", "SigIgn:"), None);
    }

    #[tokio::test]
    async fn handlers_of_a_process_are_seen() {
        let own = rustix::process::getpid();
        assert!(!catches(own, Signal::WINCH));
        let _signals = Signals::install_for(&[Signal::WINCH]).unwrap();
        assert!(catches(own, Signal::WINCH));
    }

    #[tokio::test]
    async fn signal_is_reported_once() {
        let mut signals = Signals::install().unwrap();
        rustix::process::kill_process(rustix::process::getpid(), Signal::USR2).unwrap();
        assert_eq!(signals.next().await, Signal::USR2);

        let mut other = Signals::install().unwrap();
        rustix::process::kill_process(rustix::process::getpid(), Signal::USR2).unwrap();
        // In a test, any thread may receive the signal, at any time.
        assert_eq!(other.next().await, Signal::USR2);
        assert_eq!(signals.take_pending().await, [Signal::USR2]);
        let silence = tokio::time::timeout(Duration::from_millis(50), signals.next());
        assert!(silence.await.is_err());
    }
}
