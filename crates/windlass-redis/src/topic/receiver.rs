//! Receives the messages of a topic: reports gaps in the numbers of each publisher, and drops
//! messages that come twice.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::{Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use super::message::{Header, Received};
use windlass_core::store::Subscriber;

/// Publishers that are remembered; beyond that, the ones that were silent for longest are forgotten.
const MAX_PUBLISHERS: usize = 4096;

/// A message may be on its way for that long.
const MAX_DELAY: Duration = Duration::from_secs(1);

/// Stands between the connection and a subscriber.
pub(super) struct TopicReceiver {
    subscriber: Weak<dyn Subscriber>,
    state: Mutex<ReceiverState>,
}

struct ReceiverState {
    /// All messages since then should arrive.
    complete_since: Instant,
    publishers: HashMap<u64, KnownPublisher>,
}

struct KnownPublisher {
    /// The highest number received.
    last: u64,
    /// A gap after that number was reported already.
    gap_reported: bool,
    heard: Instant,
}

impl TopicReceiver {
    pub(super) fn new(subscriber: Weak<dyn Subscriber>) -> TopicReceiver {
        TopicReceiver {
            subscriber,
            state: Mutex::new(ReceiverState {
                complete_since: Instant::now(),
                publishers: HashMap::new(),
            }),
        }
    }

    /// All messages from now on should arrive.
    pub(super) fn subscribed(&self) {
        self.state().complete_since = Instant::now();
    }

    fn state(&self) -> MutexGuard<'_, ReceiverState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ReceiverState {
    /// How many messages are missing before this one, where that was not reported; `None` if it came
    /// before. `is_message` is false for a repeated number: then that message is missing, too.
    fn missing(&mut self, header: Header, is_message: bool) -> Option<u64> {
        let now = Instant::now();
        let up_to = header.number.saturating_sub(u64::from(is_message));
        let missing = match self.publishers.entry(header.publisher) {
            Entry::Occupied(mut known) => {
                let known = known.get_mut();
                known.heard = now;
                if header.number <= known.last {
                    return None;
                }
                let missing = up_to - known.last;
                known.last = header.number;
                match std::mem::take(&mut known.gap_reported) {
                    true => 0,
                    false => missing,
                }
            }
            Entry::Vacant(entry) => {
                entry.insert(KnownPublisher {
                    last: header.number,
                    gap_reported: false,
                    heard: now,
                });
                // A publisher that began to count after the subscriber subscribed has sent it all
                // its messages. Others have usually published before.
                let subscribed_for = now.saturating_duration_since(self.complete_since);
                match subscribed_for > header.age + MAX_DELAY {
                    true => up_to,
                    false => 0,
                }
            }
        };
        if self.publishers.len() > MAX_PUBLISHERS {
            self.forget_silent();
        }
        Some(missing)
    }

    /// Forgets the half of the publishers that were silent for longest.
    fn forget_silent(&mut self) {
        let mut heard: Vec<Instant> = self.publishers.values().map(|p| p.heard).collect();
        heard.sort_unstable();
        let middle = heard[heard.len() / 2];
        self.publishers
            .retain(|_, publisher| publisher.heard >= middle);
    }
}

impl Subscriber for TopicReceiver {
    fn notify(&self, bytes: &[u8]) {
        let Some(subscriber) = self.subscriber.upgrade() else {
            return;
        };
        let received = Received::read(bytes);
        // Locked until the message is delivered: two connections may deliver at once.
        let mut state = self.state();
        let missing = match received {
            Received::Plain(_) => Some(0),
            Received::Numbered(header, _) => state.missing(header, true),
            Received::Last(header) => state.missing(header, false),
        };
        if let Some(count) = missing.filter(|count| *count > 0) {
            subscriber.lost(count);
        }
        match received {
            Received::Plain(message) => subscriber.notify(message),
            Received::Numbered(_, message) if missing.is_some() => subscriber.notify(message),
            _ => {}
        }
    }

    fn missed(&self) {
        let mut state = self.state();
        state.complete_since = Instant::now();
        for publisher in state.publishers.values_mut() {
            publisher.gap_reported = true;
        }
        if let Some(subscriber) = self.subscriber.upgrade() {
            subscriber.missed();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    #[derive(Default)]
    struct Log(Mutex<String>);

    impl Subscriber for Log {
        fn notify(&self, message: &[u8]) {
            let text = std::str::from_utf8(message).unwrap();
            self.0.lock().unwrap().push_str(text);
        }

        fn missed(&self) {
            self.0.lock().unwrap().push('?');
        }

        fn lost(&self, count: u64) {
            self.0.lock().unwrap().push_str(&format!("<{count}>"));
        }
    }

    fn header(publisher: u64, number: u64, age: Duration) -> Header {
        Header {
            publisher,
            number,
            age,
        }
    }

    /// Publishes letters: a number that is repeated, skipped or goes back, by several publishers.
    fn received(steps: &[(u64, u64, &str)]) -> String {
        let log = Arc::new(Log::default());
        let weak: Weak<Log> = Arc::downgrade(&log);
        let receiver = TopicReceiver::new(weak);
        for (publisher, number, text) in steps {
            let header = header(*publisher, *number, Duration::ZERO);
            match *text {
                "?" => receiver.missed(),
                "" => receiver.notify(&header.as_last()),
                text => receiver.notify(&header.with_message(text.as_bytes())),
            }
        }
        let text = log.0.lock().unwrap();
        text.clone()
    }

    #[test]
    fn missing_numbers_are_gaps_and_repeated_ones_are_dropped() {
        assert_eq!(received(&[(1, 1, "a"), (1, 2, "b"), (2, 7, "x")]), "abx");
        assert_eq!(received(&[(1, 1, "a"), (1, 4, "d"), (1, 5, "e")]), "a<2>de");
        assert_eq!(received(&[(1, 2, "b"), (1, 2, "b"), (1, 1, "a")]), "b");
        // The last messages are missing.
        assert_eq!(received(&[(1, 1, "a"), (1, 1, ""), (1, 3, "")]), "a<2>");
        assert_eq!(received(&[(1, 1, "a"), (1, 3, ""), (1, 4, "d")]), "a<2>d");
        // A gap that was reported by the connection is not reported again.
        let steps = [(1, 1, "a"), (0, 0, "?"), (1, 4, "d"), (1, 6, "f")];
        assert_eq!(received(&steps), "a?d<1>f");
    }

    #[test]
    fn first_messages_of_a_new_publisher_are_missed() {
        let log = Arc::new(Log::default());
        let weak: Weak<Log> = Arc::downgrade(&log);
        let receiver = TopicReceiver::new(weak);
        let minute = Duration::from_secs(60);
        receiver.state().complete_since = Instant::now().checked_sub(minute).unwrap();
        receiver.notify(&header(1, 4, minute - 2 * MAX_DELAY).with_message(b"d"));
        receiver.notify(&header(2, 4, 2 * minute).with_message(b"D"));
        assert_eq!(*log.0.lock().unwrap(), "<3>dD");
    }

    #[test]
    fn memory_is_bounded() {
        let log = Arc::new(Log::default());
        let weak: Weak<Log> = Arc::downgrade(&log);
        let receiver = TopicReceiver::new(weak);
        for publisher in 0..3 * MAX_PUBLISHERS as u64 {
            receiver.notify(&header(publisher, 1, Duration::ZERO).with_message(b""));
        }
        assert!(receiver.state().publishers.len() <= MAX_PUBLISHERS);
    }
}
