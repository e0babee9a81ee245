//! Histories: what many processes observed, and when.
//!
//! Each client records [`HistoryEvent`]s. [`check`] decides whether a correct lock allows all of them
//! together; [`max_concurrent_weight`] does the same for semaphores and read-write locks.
//!
//! A killed holder cannot report when it stopped holding, and a frozen holder does not know. So a
//! client records only the time in which it certainly held the lock: from after the grant until the
//! last moment before it saw a valid lease. All times are of the machine's boot clock.

use std::io::{self, BufRead, BufReader, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread;

use rustix::time::{ClockId, clock_gettime};

mod check;
#[cfg(test)]
mod check_tests;
mod event;
mod verdict;

pub use check::{AdmittedWrite, Breach, LockAttempt, Recovery, Verdict, check};
pub use event::{HistoryEvent, Observation, load, save};

/// A time in which a claim was certainly held.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeldInterval {
    /// The name of the lock or semaphore, without spaces.
    pub what: String,
    /// The weight of the claim.
    pub weight: u64,
    /// The fence of the grant.
    pub fence: u64,
    /// A time at which the claim was already held: [`boot_nanos`].
    pub begin: u64,
    /// A time at which the claim was still held.
    pub end: u64,
}

/// Nanoseconds of the machine's boot clock. All processes share it, even if their time of day
/// differs.
pub fn boot_nanos() -> u64 {
    let now = clock_gettime(ClockId::Boottime);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

/// Collects events from processes on a loopback port.
#[derive(Debug)]
pub struct History {
    addr: SocketAddr,
    events: Arc<Mutex<Vec<HistoryEvent>>>,
}

impl History {
    /// Starts an empty history. It listens for the life of the process.
    pub fn start() -> io::Result<History> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let addr = listener.local_addr()?;
        let events = Arc::new(Mutex::new(Vec::new()));
        let shared = Arc::clone(&events);
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let events = Arc::clone(&shared);
                thread::spawn(move || {
                    for line in BufReader::new(stream).lines().map_while(Result::ok) {
                        // A kill can truncate the last line: ignore it.
                        events.lock().unwrap().extend(serde_json::from_str(&line));
                    }
                });
            }
        });
        Ok(History { addr, events })
    }

    /// The address for [`HistoryRecorder::connect`].
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// All events so far.
    pub fn events(&self) -> Vec<HistoryEvent> {
        self.events.lock().unwrap().clone()
    }

    /// How many events there are so far.
    pub fn len(&self) -> usize {
        self.events.lock().unwrap().len()
    }

    /// Whether there is none yet.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The client of the last grant after the first `known` events.
    pub fn last_grant(&self, known: usize) -> Option<String> {
        let events = self.events.lock().unwrap();
        let granted = |event: &&HistoryEvent| {
            matches!(
                event.seen,
                Observation::Granted { .. } | Observation::Running { .. }
            )
        };
        let last = events[known..].iter().rev().find(granted);
        last.map(|event| event.client.clone())
    }

    /// Adds an event of the test itself.
    pub fn add(&self, event: HistoryEvent) {
        self.events.lock().unwrap().push(event);
    }

    /// All intervals recorded so far for `what`.
    pub fn intervals_of(&self, what: &str) -> Vec<HeldInterval> {
        let events = self.events.lock().unwrap();
        events
            .iter()
            .filter(|event| event.what == what)
            .filter_map(|event| match event.seen {
                Observation::Share {
                    weight,
                    fence,
                    begin,
                } => Some(HeldInterval {
                    what: event.what.clone(),
                    weight,
                    fence,
                    begin,
                    end: event.at,
                }),
                _ => None,
            })
            .collect()
    }
}

/// Sends events to a [`History`].
#[derive(Debug)]
pub struct HistoryRecorder(TcpStream);

impl HistoryRecorder {
    /// Connects to a history.
    pub fn connect(addr: SocketAddr) -> io::Result<HistoryRecorder> {
        let stream = TcpStream::connect(addr)?;
        stream.set_nodelay(true)?;
        Ok(HistoryRecorder(stream))
    }

    /// Records one interval.
    pub fn record_interval(&mut self, held: &HeldInterval) -> io::Result<()> {
        self.record(&HistoryEvent {
            at: held.end,
            client: String::new(),
            what: held.what.clone(),
            seen: Observation::Share {
                weight: held.weight,
                fence: held.fence,
                begin: held.begin,
            },
        })
    }

    /// Records one event, in one write: a kill leaves a whole line or a truncated one.
    pub fn record(&mut self, event: &HistoryEvent) -> io::Result<()> {
        let mut line = serde_json::to_vec(event)?;
        line.push(b'\n');
        self.0.write_all(&line)
    }
}

/// The highest total weight held at the same time.
pub fn max_concurrent_weight(history: &[HeldInterval]) -> u64 {
    let mut changes: Vec<(u64, i64)> = Vec::new();
    for held in history {
        changes.push((held.begin, held.weight as i64));
        changes.push((held.end, -(held.weight as i64)));
    }
    // At the same time, ends sort before begins.
    changes.sort_unstable();
    let mut most = 0;
    let mut now = 0;
    for (_, change) in changes {
        now += change;
        most = most.max(now);
    }
    most as u64
}

/// Two grants, one after the other, whose fences do not increase, if there are any. Grants that
/// overlap are not compared.
pub fn fence_went_back(history: &[HeldInterval]) -> Option<(HeldInterval, HeldInterval)> {
    let spans: Vec<(u64, u64, u64, &HeldInterval)> = history
        .iter()
        .map(|held| (held.begin, held.end, held.fence, held))
        .collect();
    let pairs = in_order(&spans, |before, after| before >= after);
    let (before, after) = pairs.into_iter().next()?;
    Some((before.clone(), after.clone()))
}

/// Pairs of spans `(begin, end, fence, item)` in which the second began after the first had ended
/// and `wrong(first fence, second fence)` holds. The first of each pair is the one with the highest
/// fence.
fn in_order<'a, T>(
    spans: &[(u64, u64, u64, &'a T)],
    wrong: impl Fn(u64, u64) -> bool,
) -> Vec<(&'a T, &'a T)> {
    let mut by_begin: Vec<_> = spans.iter().collect();
    by_begin.sort_by_key(|(begin, ..)| *begin);
    let mut by_end = by_begin.clone();
    by_end.sort_by_key(|(_, end, ..)| *end);
    let mut ended = by_end.into_iter().peekable();
    let mut highest: Option<(u64, &T)> = None;
    let mut pairs = Vec::new();
    for (begin, _, fence, what) in by_begin {
        while let Some((.., fence, what)) = ended.next_if(|(_, end, ..)| end < begin) {
            if highest.is_none_or(|(highest, _)| *fence > highest) {
                highest = Some((*fence, *what));
            }
        }
        if let Some((_, before)) = highest.filter(|(highest, _)| wrong(*highest, *fence)) {
            pairs.push((before, *what));
        }
    }
    pairs
}

#[cfg(test)]
mod tests {
    use super::*;

    fn held(weight: u64, fence: u64, begin: u64, end: u64) -> HeldInterval {
        let what = "x".to_owned();
        HeldInterval {
            what,
            weight,
            fence,
            begin,
            end,
        }
    }

    #[test]
    fn overlapping_weights_add_up() {
        let history = [held(1, 1, 0, 10), held(2, 2, 5, 8), held(4, 3, 10, 12)];
        assert_eq!(max_concurrent_weight(&history), 4);
        assert_eq!(max_concurrent_weight(&history[..2]), 3);
        assert_eq!(max_concurrent_weight(&[]), 0);
    }

    #[test]
    fn decreasing_fences_are_found() {
        let fine = [held(1, 1, 0, 10), held(1, 3, 5, 20), held(1, 2, 11, 12)];
        assert_eq!(fence_went_back(&fine), None, "the second has not ended");
        let bad = [held(1, 3, 0, 10), held(1, 2, 11, 12)];
        assert!(fence_went_back(&bad).is_some());
    }

    #[test]
    fn truncated_line_is_ignored() {
        let history = History::start().unwrap();
        let mut recorder = HistoryRecorder::connect(history.addr()).unwrap();
        recorder.record_interval(&held(1, 2, 3, 4)).unwrap();
        recorder
            .0
            .write_all(b"{\"at\":4,\"client\":\"\",\"wh")
            .unwrap();
        drop(recorder);
        assert!(crate::eventually_blocking(
            std::time::Duration::from_secs(5),
            || history.intervals_of("x").len() == 1
        ));
        assert_eq!(history.intervals_of("x"), [held(1, 2, 3, 4)]);
        assert_eq!(history.events().len(), 1);
    }
}
