//! What many processes certainly held, and when: to be checked afterwards.
//!
//! A holder cannot say when it stopped holding if it was killed, and must not be believed about the
//! time it was frozen. So it tells only of the time that is certain: from after it was granted until
//! before it last saw that the lease was valid. All clocks are the machine's boot clock.

use std::io::{self, BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread;

use rustix::time::{ClockId, clock_gettime};

/// A time during which a share was certainly held.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Held {
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
    told: Arc<Mutex<Vec<Held>>>,
}

impl History {
    /// Starts with nothing; listens for the life of the process.
    pub fn start() -> io::Result<History> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let addr = listener.local_addr()?;
        let told = Arc::new(Mutex::new(Vec::new()));
        let shared = Arc::clone(&told);
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let told = Arc::clone(&shared);
                thread::spawn(move || {
                    for line in BufReader::new(stream).lines().map_while(Result::ok) {
                        // A line that was cut off by a kill says nothing.
                        told.lock().unwrap().extend(parse(&line));
                    }
                });
            }
        });
        Ok(History { addr, told })
    }

    /// Where to tell.
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// What was told so far of things called `what`.
    pub fn of(&self, what: &str) -> Vec<Held> {
        let told = self.told.lock().unwrap();
        told.iter()
            .filter(|held| held.what == what)
            .cloned()
            .collect()
    }
}

/// Tells a [`History`].
#[derive(Debug)]
pub struct Teller(TcpStream);

impl Teller {
    /// Connects.
    pub fn connect(addr: SocketAddr) -> io::Result<Teller> {
        let stream = TcpStream::connect(addr)?;
        stream.set_nodelay(true)?;
        Ok(Teller(stream))
    }

    /// Tells of one time.
    pub fn tell(&mut self, held: &Held) -> io::Result<()> {
        let Held {
            what,
            weight,
            fence,
            begin,
            end,
        } = held;
        let line = format!("{what} {weight} {fence} {begin} {end} .\n");
        self.0.write_all(line.as_bytes())
    }
}

fn parse(line: &str) -> Option<Held> {
    let words: Vec<&str> = line.split(' ').collect();
    let [what, weight, fence, begin, end, "."] = words.as_slice() else {
        return None;
    };
    Some(Held {
        what: (*what).to_owned(),
        weight: weight.parse().ok()?,
        fence: fence.parse().ok()?,
        begin: begin.parse().ok()?,
        end: end.parse().ok()?,
    })
}

/// The most weight that was held at one moment.
pub fn most_at_once(history: &[Held]) -> u64 {
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
pub fn fence_went_back(history: &[Held]) -> Option<(Held, Held)> {
    let mut by_begin: Vec<&Held> = history.iter().collect();
    by_begin.sort_unstable_by_key(|held| held.begin);
    let mut by_end = by_begin.clone();
    by_end.sort_unstable_by_key(|held| held.end);
    let mut ended = by_end.into_iter().peekable();
    let mut highest: Option<&Held> = None;
    for held in by_begin {
        while let Some(before) = ended.next_if(|before| before.end < held.begin) {
            if highest.is_none_or(|highest| before.fence > highest.fence) {
                highest = Some(before);
            }
        }
        if let Some(highest) = highest.filter(|highest| highest.fence >= held.fence) {
            return Some((highest.clone(), held.clone()));
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn held(weight: u64, fence: u64, begin: u64, end: u64) -> Held {
        let what = "x".to_owned();
        Held {
            what,
            weight,
            fence,
            begin,
            end,
        }
    }

    #[test]
    fn counts_what_overlaps() {
        let history = [held(1, 1, 0, 10), held(2, 2, 5, 8), held(4, 3, 10, 12)];
        assert_eq!(most_at_once(&history), 4);
        assert_eq!(most_at_once(&history[..2]), 3);
        assert_eq!(most_at_once(&[]), 0);
    }

    #[test]
    fn sees_fences_go_back() {
        let fine = [held(1, 1, 0, 10), held(1, 3, 5, 20), held(1, 2, 11, 12)];
        assert_eq!(fence_went_back(&fine), None, "the second has not ended");
        let bad = [held(1, 3, 0, 10), held(1, 2, 11, 12)];
        assert!(fence_went_back(&bad).is_some());
    }

    #[test]
    fn a_line_cut_off_is_ignored() {
        let history = History::start().unwrap();
        let mut teller = Teller::connect(history.addr()).unwrap();
        teller.tell(&held(1, 2, 3, 4)).unwrap();
        teller.0.write_all(b"x 1 2 3 4").unwrap();
        drop(teller);
        assert!(crate::eventually_blocking(
            std::time::Duration::from_secs(5),
            || history.of("x").len() == 1
        ));
        assert_eq!(parse("x 1 2 3 4"), None);
    }
}
