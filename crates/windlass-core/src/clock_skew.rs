//! How far apart clocks certainly are.
//!
//! A server that is asked for its time looks at its clock at some moment between question and answer. So how
//! far it is ahead of ours is known within bounds, and the longer the way, the wider they are. Two
//! servers are certainly apart by no more than what is left between their bounds: a slow network
//! is not taken for a wrong clock.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// More than that is worth a word.
const WORTH_A_WORD: Duration = Duration::from_millis(500);

/// Our own clock, as it was when this was made: it goes on evenly, whoever sets it meanwhile.
#[derive(Clone, Copy, Debug)]
pub struct OurClock {
    began: Instant,
    /// In microseconds since 1970.
    then: i64,
}

impl OurClock {
    #[allow(clippy::new_without_default, reason = "it reads the clock")]
    pub fn new() -> OurClock {
        let since = SystemTime::now().duration_since(UNIX_EPOCH);
        OurClock {
            began: Instant::now(),
            then: micros(since.unwrap_or_default()),
        }
    }

    /// In microseconds since 1970.
    pub fn now(&self) -> i64 {
        self.then + micros(self.began.elapsed())
    }
}

fn micros(time: Duration) -> i64 {
    i64::try_from(time.as_micros()).unwrap_or(i64::MAX)
}

/// By how much a clock is ahead of ours, in microseconds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reading {
    of: String,
    least: i64,
    most: i64,
}

impl Reading {
    /// Of a clock that told so many microseconds since 1970, in steps of `step`, when it was asked `between` two
    /// moments of ours.
    pub fn new(of: &str, told: i64, step: Duration, between: (i64, i64)) -> Reading {
        let (asked, answered) = between;
        Reading {
            of: of.to_owned(),
            least: told - answered,
            most: told + micros(step) - asked,
        }
    }

    /// Ours, of which we are certain.
    pub fn ours() -> Reading {
        Reading {
            of: "this machine".to_owned(),
            least: 0,
            most: 0,
        }
    }
}

/// How far apart some clocks are.
#[derive(Debug, PartialEq, Eq)]
pub struct Spread<'a> {
    /// Which is ahead the most.
    pub ahead: &'a str,
    pub behind: &'a str,
    /// At least, in milliseconds.
    pub certain: i64,
    /// At most, in milliseconds.
    pub possible: i64,
}

impl Spread<'_> {
    /// Of some clocks; `None` if there are none.
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

    /// Whether they are certainly so far apart that somebody should know.
    pub fn matters(&self) -> bool {
        self.certain > WORTH_A_WORD.as_millis() as i64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STEP: Duration = Duration::from_micros(1);

    #[test]
    fn a_slow_network_is_no_wrong_clock() {
        // The one is asked for two seconds, the other for a millisecond, and both are right.
        let slow = Reading::new("slow", 1_500_000, STEP, (0, 2_000_000));
        let fast = Reading::new("fast", 2_000_500, STEP, (2_000_000, 2_001_000));
        let readings = [slow, fast];
        let spread = Spread::of(&readings).unwrap();
        assert_eq!(spread.certain, 0);
        assert!(spread.possible >= 2000 && !spread.matters(), "{spread:?}");
    }

    #[test]
    fn what_is_certain_is_what_no_way_explains() {
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
    fn one_clock_is_not_apart_from_itself() {
        let only = [Reading::new("only", 5_000_000, STEP, (0, 9_000_000))];
        let spread = Spread::of(&only).unwrap();
        assert_eq!((spread.certain, spread.possible), (0, 0));
        assert_eq!(Spread::of(&[]), None);
    }

    #[test]
    fn our_clock_goes_on() {
        let clock = OurClock::new();
        let now = clock.now();
        assert!(clock.now() >= now && now > 1_600_000_000_000_000);
    }
}
