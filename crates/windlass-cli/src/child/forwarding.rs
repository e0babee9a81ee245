//! Whether a Ctrl-C that windlass wants passed on has reached the command already.
//!
//! A terminal sends INT and QUIT to a whole process group, and so does `kill -INT -PGID`: windlass, warden and command
//! all get it. `kill -INT PID` reaches windlass alone. A handler is not told which of the two it was, but the
//! warden makes a witness: it is in the same group and nobody signals it on purpose, so what it hears, the
//! command has heard.
//!
//! Only INT and QUIT are weighed like this, because a second Ctrl-C means "at once, without cleaning up" to many
//! programs. Other signals are always passed on: one TERM too many does little harm, one too few does.

use std::time::Duration;

use rustix::process::Signal;
use tokio::time::Instant;

/// How long to wait for the witness before passing a signal on. A group gets its signal within microseconds, but
/// `timeout -s INT` signals its child first and then the group.
const PATIENCE: Duration = Duration::from_millis(10);

/// How long a testimony stands, should windlass be slow to ask.
const MEMORY: Duration = Duration::from_millis(250);

/// Signals heard, and signals to pass on unless they are heard in time.
#[derive(Debug, Default)]
pub(super) struct Forwarding {
    heard: Vec<(Signal, Instant)>,
    waiting: Vec<(Signal, Instant)>,
}

impl Forwarding {
    /// Whether this signal is one that keyboards send, and that must not be doubled.
    pub(super) fn weighs(signal: Signal) -> bool {
        matches!(signal, Signal::INT | Signal::QUIT)
    }

    /// The warden itself got this signal.
    pub(super) fn heard(&mut self, signal: Signal, now: Instant) {
        self.waiting.retain(|(asked, _)| *asked != signal);
        self.heard.retain(|(known, _)| *known != signal);
        self.heard.push((signal, now));
    }

    /// Windlass got this signal and wants it passed on.
    pub(super) fn asked(&mut self, signal: Signal, now: Instant) {
        let known = |(heard, at): &(Signal, Instant)| *heard == signal && now < *at + MEMORY;
        if !self.heard.iter().any(known) {
            self.waiting.push((signal, now + PATIENCE));
        }
    }

    /// Takes out a signal that nobody else delivered.
    pub(super) fn due(&mut self, now: Instant) -> Option<Signal> {
        let index = self.waiting.iter().position(|(_, at)| *at <= now)?;
        Some(self.waiting.remove(index).0)
    }

    /// When to ask [`due`](Self::due) again.
    pub(super) fn next_due(&self) -> Option<Instant> {
        self.waiting.iter().map(|(_, at)| *at).min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_signal_to_windlass_alone_is_passed_on() {
        let mut forwarding = Forwarding::default();
        let now = Instant::now();
        forwarding.asked(Signal::INT, now);
        assert_eq!(forwarding.due(now), None);
        assert_eq!(forwarding.next_due(), Some(now + PATIENCE));
        assert_eq!(forwarding.due(now + PATIENCE), Some(Signal::INT));
        assert_eq!(forwarding.due(now + PATIENCE), None);
        assert_eq!(forwarding.next_due(), None);
    }

    #[test]
    fn a_signal_to_the_group_is_not_passed_on_whichever_is_noticed_first() {
        let now = Instant::now();
        let mut asked_first = Forwarding::default();
        asked_first.asked(Signal::INT, now);
        asked_first.asked(Signal::QUIT, now);
        asked_first.heard(Signal::INT, now + PATIENCE / 2);
        assert_eq!(asked_first.due(now + PATIENCE), Some(Signal::QUIT));
        assert_eq!(asked_first.due(now + PATIENCE), None);

        let mut heard_first = Forwarding::default();
        heard_first.heard(Signal::INT, now);
        heard_first.asked(Signal::INT, now + MEMORY / 2);
        assert_eq!(heard_first.next_due(), None);
    }

    #[test]
    fn old_testimony_is_worth_nothing() {
        let now = Instant::now();
        let mut forwarding = Forwarding::default();
        forwarding.heard(Signal::INT, now);
        forwarding.asked(Signal::INT, now + MEMORY);
        let later = now + MEMORY + PATIENCE;
        assert_eq!(forwarding.due(later), Some(Signal::INT));
    }
}
