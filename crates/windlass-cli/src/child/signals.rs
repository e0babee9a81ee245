//! Which signals are passed on to the command, and which were ignored from the start.

use std::future::poll_fn;
use std::io;
use std::sync::OnceLock;
use std::task::Poll;

use rustix::process::Signal;
use tokio::signal::unix::{Signal as Listener, SignalKind, signal};

/// The signals that windlass passes on to its command.
const FORWARDED: [Signal; 6] = [
    Signal::INT,
    Signal::TERM,
    Signal::HUP,
    Signal::QUIT,
    Signal::USR1,
    Signal::USR2,
];

/// The signals to pass on, one after the other.
///
/// Those that were ignored when this process started stay ignored, and are never reported: `nohup windlass run`
/// must leave its command deaf to HUP, and a handler of ours would undo that (see [`ignored_at_start`]).
#[derive(Debug)]
pub(crate) struct Signals {
    listeners: Vec<(Signal, Listener)>,
}

impl Signals {
    /// Takes over these signals for the rest of the process: they no longer end it, even when this is dropped.
    ///
    /// Handlers rather than "ignore", because `exec` resets the former: the command starts with a clean slate.
    /// Must be called inside a tokio runtime.
    pub(crate) fn listen() -> io::Result<Signals> {
        let listeners = FORWARDED
            .into_iter()
            .filter(|wanted| !ignored_at_start(*wanted))
            .map(|wanted| {
                let listener = signal(SignalKind::from_raw(wanted.as_raw()))?;
                Ok((wanted, listener))
            })
            .collect::<io::Result<_>>()?;
        Ok(Signals { listeners })
    }

    /// The next signal. Several of one kind that arrive together count as one, as everywhere in Unix.
    ///
    /// # Cancel safety
    ///
    /// Cancelling loses no signal.
    pub(crate) async fn next(&mut self) -> Signal {
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

    /// Forgets all signals that have come so far.
    pub(super) async fn forget(&mut self) {
        // Signals reach their listeners only when the runtime looks at its events, which this has it do.
        tokio::task::yield_now().await;
        poll_fn(|context| {
            for (_, listener) in &mut self.listeners {
                while listener.poll_recv(context).is_ready() {}
            }
            Poll::Ready(())
        })
        .await;
    }
}

/// Whether whoever started this process had it ignore this signal, as `nohup` does with HUP and a shell
/// without job control with INT and QUIT of what it starts in the background.
///
/// Ignoring is inherited through `exec`, handling is not: whoever installs a handler for such a signal takes from
/// the command what its user had arranged. Outside Linux there is no safe way to ask, and the answer is no.
pub(crate) fn ignored_at_start(signal: Signal) -> bool {
    // Asked once: later, our own handlers would be in the picture.
    static IGNORED: OnceLock<u64> = OnceLock::new();
    let ignored = IGNORED.get_or_init(|| {
        std::fs::read_to_string("/proc/self/status")
            .ok()
            .and_then(|status| parse_ignored(&status))
            .unwrap_or(0)
    });
    has(*ignored, signal)
}

/// The `SigIgn` mask of a `/proc/PID/status`, see proc_pid_status(5).
fn parse_ignored(status: &str) -> Option<u64> {
    let mask = status
        .lines()
        .find_map(|line| line.strip_prefix("SigIgn:"))?;
    u64::from_str_radix(mask.trim(), 16).ok()
}

fn has(mask: u64, signal: Signal) -> bool {
    // Signals count from one, bits from zero.
    mask >> (signal.as_raw() - 1) & 1 == 1
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn the_mask_of_ignored_signals_is_read() {
        // What a Rust program under nohup shows: HUP (1), and PIPE (13), which the runtime ignores.
        let status =
            "Name:\twindlass\nSigBlk:\tffffffffffffffff\nSigIgn:\t0000000000001001\nSigCgt:\t0\n";
        let mask = parse_ignored(status).unwrap();
        assert!(has(mask, Signal::HUP));
        assert!(has(mask, Signal::PIPE));
        assert!(!has(mask, Signal::INT));
        assert!(!has(mask, Signal::TERM));
        assert_eq!(parse_ignored("Name:\twindlass\n"), None);
    }

    #[tokio::test]
    async fn a_signal_is_heard_unless_forgotten() {
        let mut signals = Signals::listen().unwrap();
        rustix::process::kill_process(rustix::process::getpid(), Signal::USR2).unwrap();
        assert_eq!(signals.next().await, Signal::USR2);

        let mut witness = Signals::listen().unwrap();
        rustix::process::kill_process(rustix::process::getpid(), Signal::USR2).unwrap();
        // In a test, any thread may get the signal, and at leisure.
        assert_eq!(witness.next().await, Signal::USR2);
        signals.forget().await;
        let silence = tokio::time::timeout(Duration::from_millis(50), signals.next());
        assert!(silence.await.is_err());
    }
}
