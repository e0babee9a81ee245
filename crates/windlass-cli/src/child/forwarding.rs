//! Decides whether a signal that windlass received must be forwarded, or has already reached the command.
//!
//! A terminal sends INT and QUIT to a whole process group, and so does `kill -INT -PGID`: windlass, warden and command
//! all receive it. `kill -INT PID` reaches windlass alone. A handler cannot tell the two apart, but the warden is in the
//! same group and is never signalled on its own: a signal that it receives has reached the command too.
//!
//! Only INT and QUIT are deduplicated like this, because many programs take a second Ctrl-C as "exit without cleaning
//! up". Other signals are always forwarded: a second TERM does little harm, a missing one does.

use std::time::Duration;

use rustix::process::Signal;
use tokio::time::Instant;

/// How long to wait for the warden to receive the same signal before forwarding it. A group receives a signal within
/// microseconds, but `timeout -s INT` signals its child first and then the group.
const DEDUP_WAIT: Duration = Duration::from_millis(10);

/// How long a signal that the warden received suppresses a request to forward it.
const DEDUP_WINDOW: Duration = Duration::from_millis(250);

/// Signals that the warden received, and signals to forward unless the warden receives them in time.
#[derive(Debug, Default)]
pub(super) struct Forwarding {
    received: Vec<(Signal, Instant)>,
    pending: Vec<(Signal, Instant)>,
}

impl Forwarding {
    /// Whether this signal must not reach the command twice.
    pub(super) fn deduplicates(signal: Signal) -> bool {
        matches!(signal, Signal::INT | Signal::QUIT)
    }

    /// The warden received this signal.
    pub(super) fn received(&mut self, signal: Signal, now: Instant) {
        self.pending.retain(|(requested, _)| *requested != signal);
        self.received.retain(|(known, _)| *known != signal);
        self.received.push((signal, now));
    }

    /// Windlass received this signal and requests to forward it.
    pub(super) fn requested(&mut self, signal: Signal, now: Instant) {
        let known =
            |(received, at): &(Signal, Instant)| *received == signal && now < *at + DEDUP_WINDOW;
        if !self.received.iter().any(known) {
            self.pending.push((signal, now + DEDUP_WAIT));
        }
    }

    /// Removes and returns a signal that has to be forwarded now.
    pub(super) fn due(&mut self, now: Instant) -> Option<Signal> {
        let index = self.pending.iter().position(|(_, at)| *at <= now)?;
        Some(self.pending.remove(index).0)
    }

    /// When to call [`due`](Self::due) again.
    pub(super) fn next_due(&self) -> Option<Instant> {
        self.pending.iter().map(|(_, at)| *at).min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signal_to_windlass_alone_is_forwarded() {
        let mut forwarding = Forwarding::default();
        let now = Instant::now();
        forwarding.requested(Signal::INT, now);
        assert_eq!(forwarding.due(now), None);
        assert_eq!(forwarding.next_due(), Some(now + DEDUP_WAIT));
        assert_eq!(forwarding.due(now + DEDUP_WAIT), Some(Signal::INT));
        assert_eq!(forwarding.due(now + DEDUP_WAIT), None);
        assert_eq!(forwarding.next_due(), None);
    }

    #[test]
    fn signal_to_the_group_is_not_forwarded_in_either_order() {
        let now = Instant::now();
        let mut requested_first = Forwarding::default();
        requested_first.requested(Signal::INT, now);
        requested_first.requested(Signal::QUIT, now);
        requested_first.received(Signal::INT, now + DEDUP_WAIT / 2);
        assert_eq!(requested_first.due(now + DEDUP_WAIT), Some(Signal::QUIT));
        assert_eq!(requested_first.due(now + DEDUP_WAIT), None);

        let mut received_first = Forwarding::default();
        received_first.received(Signal::INT, now);
        received_first.requested(Signal::INT, now + DEDUP_WINDOW / 2);
        assert_eq!(received_first.next_due(), None);
    }

    #[test]
    fn old_signal_does_not_suppress_a_new_one() {
        let now = Instant::now();
        let mut forwarding = Forwarding::default();
        forwarding.received(Signal::INT, now);
        forwarding.requested(Signal::INT, now + DEDUP_WINDOW);
        let later = now + DEDUP_WINDOW + DEDUP_WAIT;
        assert_eq!(forwarding.due(later), Some(Signal::INT));
    }
}
