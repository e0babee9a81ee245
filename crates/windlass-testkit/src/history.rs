//! What many processes saw, and when: to be checked afterwards.
//!
//! Each client tells what it saw, as [`Event`]s; [`check`] says whether all of it together can be what a
//! lock does. Of shares, which many may hold at once, [`max_concurrent_weight`] tells how many did.
//!
//! A holder cannot say when it stopped holding if it was killed, and must not be believed about the
//! time it was frozen. So it tells only of the time that is certainly_held: from after it was granted until
//! before it last saw that the lease was valid. All clocks are the machine's boot clock.

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
pub use event::{Event, Observation, load, save};

/// A time during which a share was certainly held.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeldInterval {
    /// What was held: any word without spaces.
    pub what: String,
    /// How much of it.
    pub weight: u64,
    /// The fence of the grant.
    pub fence: u64,
    /// When it was held already: [`boot_nanos`].
    pub begin: u64,
    /// When it was held still.
    pub end: u64,
}

/// Nanoseconds of the machine's boot clock, which all its processes share, whatever they believe the
/// time of day to be.
pub fn boot_nanos() -> u64 {
    let now = clock_gettime(ClockId::Boottime);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

/// Collects what processes tell, on a loopback port.
#[derive(Debug)]
pub struct History {
    addr: SocketAddr,
    events: Arc<Mutex<Vec<Event>>>,
}

impl History {
    /// Starts with nothing; listens for the life of the process.
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
                        // A line that was cut off by a kill says nothing.
                        events.lock().unwrap().extend(serde_json::from_str(&line));
                    }
                });
            }
        });
        Ok(History { addr, events })
    }

    /// Where to tell.
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// All that was events so far.
    pub fn events(&self) -> Vec<Event> {
        self.events.lock().unwrap().clone()
    }

    /// Adds what the test itself does.
    pub fn add(&self, event: Event) {
        self.events.lock().unwrap().push(event);
    }

    /// What was events so far of shares of things called `what`.
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

/// Tells a [`History`].
#[derive(Debug)]
pub struct HistoryRecorder(TcpStream);

impl HistoryRecorder {
    /// Connects.
    pub fn connect(addr: SocketAddr) -> io::Result<HistoryRecorder> {
        let stream = TcpStream::connect(addr)?;
        stream.set_nodelay(true)?;
        Ok(HistoryRecorder(stream))
    }

    /// Tells of one time.
    pub fn record_interval(&mut self, held: &HeldInterval) -> io::Result<()> {
        self.record(&Event {
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

    /// Tells of one event, in one write: a kill leaves it whole or cut off, but never mixed up.
    pub fn record(&mut self, event: &Event) -> io::Result<()> {
        let mut line = serde_json::to_vec(event)?;
        line.push(b'\n');
        self.0.write_all(&line)
    }
}

/// The most weight that was held at one moment.
pub fn max_concurrent_weight(history: &[HeldInterval]) -> u64 {
    let mut changes: Vec<(u64, i64)> = Vec::new();
    for held in history {
        changes.push((held.begin, held.weight as i64));
        changes.push((held.end, -(held.weight as i64)));
    }
    // At one and the same moment, endings come first.
    changes.sort_unstable();
    let mut most = 0;
    let mut now = 0;
    for (_, change) in changes {
        now += change;
        most = most.max(now);
    }
    most as u64
}

/// Two grants in the order of time whose fences are not in order, if there are any. Of grants that
/// overlap nothing is said.
pub fn fence_went_back(history: &[HeldInterval]) -> Option<(HeldInterval, HeldInterval)> {
    let spans: Vec<(u64, u64, u64, &HeldInterval)> = history
        .iter()
        .map(|held| (held.begin, held.end, held.fence, held))
        .collect();
    let pairs = in_order(&spans, |before, after| before >= after);
    let (before, after) = pairs.into_iter().next()?;
    Some((before.clone(), after.clone()))
}

/// Those of the spans `(begin, end, fence, what)` that came after another had ended, and whose fence is
/// `wrong` beside the highest of those that had; each with that one.
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
