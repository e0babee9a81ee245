//! Lower and upper bounds of the skew between clocks, for `windlass doctor`.
//!
//! A server reads its clock at some time between request and reply. So its offset from the local
//! clock is known within bounds, which are as wide as the round trip. The skew of two servers is at
//! least the gap between their bounds, so a slow network is never reported as a wrong clock.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// The certain skew above which a finding is reported.
const REPORTED_ABOVE: Duration = Duration::from_millis(500);

/// The local wall clock, read once and then advanced by the monotonic clock, so that setting it
/// does not matter.
#[derive(Clone, Copy, Debug)]
pub struct LocalClock {
    start: Instant,
    /// The wall clock at `start`, in microseconds since 1970.
    wall: i64,
}

impl LocalClock {
    /// Reads the wall clock.
    #[allow(clippy::new_without_default, reason = "it reads the clock")]
    pub fn new() -> LocalClock {
        let since = SystemTime::now().duration_since(UNIX_EPOCH);
        LocalClock {
            start: Instant::now(),
            wall: micros(since.unwrap_or_default()),
        }
    }

    /// The current time, in microseconds since 1970.
    pub fn now(&self) -> i64 {
        self.wall + micros(self.start.elapsed())
    }
}

fn micros(time: Duration) -> i64 {
    i64::try_from(time.as_micros()).unwrap_or(i64::MAX)
}

/// Bounds of how far a clock is ahead of the local one, in microseconds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reading {
    of: String,
    least: i64,
    most: i64,
}

impl Reading {
    /// The reading of a clock that replied `time` microseconds since 1970, with a resolution of
    /// `step`, to a request sent and answered at the local times `between`.
    pub fn new(of: &str, time: i64, step: Duration, between: (i64, i64)) -> Reading {
        let (sent, received) = between;
        Reading {
            of: of.to_owned(),
            least: time - received,
            most: time + micros(step) - sent,
        }
    }

    /// The local clock, which is exact.
    pub fn ours() -> Reading {
        Reading {
            of: "this machine".to_owned(),
            least: 0,
            most: 0,
        }
    }
}

/// The skew among several clocks.
#[derive(Debug, PartialEq, Eq)]
pub struct Spread<'a> {
    /// The clock that is furthest ahead.
    pub ahead: &'a str,
    /// The clock that is furthest behind.
    pub behind: &'a str,
    /// The lower bound, in milliseconds.
    pub certain: i64,
    /// The upper bound, in milliseconds.
    pub possible: i64,
}

impl Spread<'_> {
    /// The skew among these clocks; `None` if there are none.
    pub fn of(readings: &[Reading]) -> Option<Spread<'_>> {
        let ahead = readings.iter().max_by_key(|reading| reading.least)?;
        let behind = readings.iter().min_by_key(|reading| reading.most)?;
        let most = readings.iter().map(|reading| reading.most).max()?;
        let least = readings.iter().map(|reading| reading.least).min()?;
        let up = |micros: i64| micros / 1000 + i64::from(micros % 1000 > 0);
        Some(Spread {
            ahead: &ahead.of,
            behind: &behind.of,
            certain: ((ahead.least - behind.most) / 1000).max(0),
            possible: match readings.len() {
                1 => 0,
                _ => up(most - least),
            },
        })
    }

    /// Whether the skew is certainly large enough to be reported.
    pub fn matters(&self) -> bool {
        self.certain > REPORTED_ABOVE.as_millis() as i64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STEP: Duration = Duration::from_micros(1);

    #[test]
    fn a_slow_network_is_not_a_wrong_clock() {
        // One round trip takes two seconds, the other a millisecond, and both clocks are right.
        let slow = Reading::new("slow", 1_500_000, STEP, (0, 2_000_000));
        let fast = Reading::new("fast", 2_000_500, STEP, (2_000_000, 2_001_000));
        let readings = [slow, fast];
        let spread = Spread::of(&readings).unwrap();
        assert_eq!(spread.certain, 0);
        assert!(spread.possible >= 2000 && !spread.matters(), "{spread:?}");
    }

    #[test]
    fn the_lower_bound_is_the_skew_that_no_round_trip_explains() {
        let right = Reading::new("right", 1_000_000, STEP, (999_000, 1_001_000));
        let ahead = Reading::new("ahead", 61_000_000, STEP, (999_000, 1_001_000));
        let behind = Reading::new("behind", 0, STEP, (999_000, 1_001_000));
        let readings = [right, ahead, behind];
        let spread = Spread::of(&readings).unwrap();
        assert_eq!((spread.ahead, spread.behind), ("ahead", "behind"));
        assert_eq!(spread.certain, 60_997);
        assert_eq!(spread.possible, 61_003);
        assert!(spread.matters());
    }

    #[test]
    fn one_clock_has_no_skew() {
        let only = [Reading::new("only", 5_000_000, STEP, (0, 9_000_000))];
        let spread = Spread::of(&only).unwrap();
        assert_eq!((spread.certain, spread.possible), (0, 0));
        assert_eq!(Spread::of(&[]), None);
    }

    #[test]
    fn the_local_clock_advances() {
        let clock = LocalClock::new();
        let now = clock.now();
        assert!(clock.now() >= now && now > 1_600_000_000_000_000);
    }
}
