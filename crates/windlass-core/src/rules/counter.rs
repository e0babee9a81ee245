//! What a counter counts.
//!
//! A plain counter is a number. A windowed one is the sum of what was added lately: time is cut into
//! slots, a sixtieth of the window each, and a slot is forgotten as a whole.

use std::fmt;
use std::str::FromStr;

/// Slots in a window.
pub const SLOTS: u64 = 60;
/// The largest number, and the smallest if negative, that a windowed counter holds: sums of slots must
/// be exact in Lua too.
pub const MOST_IN_A_WINDOW: i64 = (1 << 53) - 1;

/// What is kept of a counter. Times are in microseconds of the store's clock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CounterState {
    /// A number.
    Plain {
        /// The number.
        value: i64,
        /// When it ends; `None` for never.
        ends: Option<u64>,
    },
    /// Numbers by slot of time.
    Windowed {
        /// How long a slot is.
        width: u64,
        /// The number of each slot that is not empty, in order.
        slots: Vec<(u64, i64)>,
    },
}

/// What to add, and within which bounds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Addition {
    /// How much.
    pub amount: i64,
    /// Not below this, by subtracting.
    pub min: i64,
    /// Not above this, by adding.
    pub max: i64,
    /// How long a plain counter lives, from when it began.
    pub expire: Option<u64>,
    /// Over how long a windowed counter sums up.
    pub window: Option<u64>,
}

/// What became of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sum {
    /// The value afterwards.
    pub value: i64,
    /// Whether it was added; if not, it would have gone beyond a bound.
    pub added: bool,
}

/// A counter of another kind is stored: plain and windowed, or windows of different length.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OtherKind;

/// The length of a slot.
pub fn width(window: u64) -> u64 {
    window.div_ceil(SLOTS).max(1)
}

/// Adds, unless that goes beyond a bound. Gives what to store, if that has changed.
pub fn add(
    stored: Option<&CounterState>,
    now: u64,
    ask: &Addition,
) -> Result<(Sum, Option<CounterState>), OtherKind> {
    match ask.window {
        None => add_plain(stored, now, ask),
        Some(window) => add_windowed(stored, now, ask, width(window)),
    }
}

/// The sum, if it is within the bounds. Who is beyond one already may come back.
fn within(value: i64, ask: &Addition) -> Option<i64> {
    let sum = value.checked_add(ask.amount)?;
    let beyond = (ask.amount > 0 && sum > ask.max) || (ask.amount < 0 && sum < ask.min);
    (!beyond).then_some(sum)
}

fn add_plain(
    stored: Option<&CounterState>,
    now: u64,
    ask: &Addition,
) -> Result<(Sum, Option<CounterState>), OtherKind> {
    let (value, ends) = match stored {
        Some(CounterState::Plain { value, ends }) if ends.is_none_or(|ends| ends > now) => {
            (*value, *ends)
        }
        Some(CounterState::Windowed { width, slots }) if !is_over(*width, slots, now) => {
            return Err(OtherKind);
        }
        _ => (0, ask.expire.map(|time| now + time)),
    };
    Ok(match within(value, ask) {
        None => (refused(value), None),
        Some(sum) => {
            let tally = (ask.amount != 0).then_some(CounterState::Plain { value: sum, ends });
            (added(sum), tally)
        }
    })
}

fn add_windowed(
    stored: Option<&CounterState>,
    now: u64,
    ask: &Addition,
    width: u64,
) -> Result<(Sum, Option<CounterState>), OtherKind> {
    let mut slots = match stored {
        Some(CounterState::Plain { ends, .. }) if ends.is_none_or(|ends| ends > now) => {
            return Err(OtherKind);
        }
        Some(CounterState::Windowed {
            width: other,
            slots,
        }) if *other != width => match is_over(*other, slots, now) {
            true => Vec::new(),
            false => return Err(OtherKind),
        },
        Some(CounterState::Windowed { slots, .. }) => slots.clone(),
        _ => Vec::new(),
    };
    let slot = now / width;
    slots.retain(|(at, _)| at + SLOTS > slot);
    let value: i64 = slots.iter().map(|(_, number)| number).sum();
    let in_slot = slots.iter().find(|(at, _)| *at == slot).map_or(0, |s| s.1);
    let exact = |number: i64| number.unsigned_abs() <= MOST_IN_A_WINDOW as u64;
    let fits = exact(ask.amount) && exact(in_slot + ask.amount);
    let Some(sum) = within(value, ask).filter(|sum| fits && exact(*sum)) else {
        return Ok((refused(value), None));
    };
    if ask.amount == 0 {
        return Ok((added(value), None));
    }
    match slots.iter_mut().find(|(at, _)| *at == slot) {
        Some((_, number)) => *number += ask.amount,
        None => slots.push((slot, ask.amount)),
    }
    Ok((added(sum), Some(CounterState::Windowed { width, slots })))
}

fn added(value: i64) -> Sum {
    Sum { value, added: true }
}

fn refused(value: i64) -> Sum {
    Sum {
        value,
        added: false,
    }
}

fn is_over(width: u64, slots: &[(u64, i64)], now: u64) -> bool {
    slots.iter().all(|(at, _)| at + SLOTS <= now / width)
}

impl CounterState {
    /// The value, now.
    pub fn value(&self, now: u64) -> i64 {
        match self {
            CounterState::Plain { value, ends } if ends.is_none_or(|ends| ends > now) => *value,
            CounterState::Plain { .. } => 0,
            CounterState::Windowed { width, slots } => {
                let good = slots.iter().filter(|(at, _)| at + SLOTS > now / width);
                good.map(|(_, number)| number).sum()
            }
        }
    }

    /// When nothing of it counts any more; `None` for never.
    pub fn ends(&self) -> Option<u64> {
        match self {
            CounterState::Plain { ends, .. } => *ends,
            CounterState::Windowed { width, slots } => {
                let last = slots.iter().map(|(at, _)| *at).max().unwrap_or(0);
                Some((last + SLOTS) * width)
            }
        }
    }

    /// The same on another clock, on which the moment `from` is called `to`.
    pub fn moved(self, from: u64, to: u64) -> CounterState {
        let moved = |time: u64| (time + to).saturating_sub(from);
        match self {
            CounterState::Plain { value, ends } => CounterState::Plain {
                value,
                ends: ends.map(moved),
            },
            CounterState::Windowed { width, slots } => CounterState::Windowed {
                width,
                slots: slots
                    .into_iter()
                    .map(|(at, number)| ((at + to / width).saturating_sub(from / width), number))
                    .collect(),
            },
        }
    }
}

impl fmt::Display for CounterState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            CounterState::Plain { value, ends: None } => write!(f, "c {value}"),
            CounterState::Plain {
                value,
                ends: Some(ends),
            } => write!(f, "c {value} {ends}"),
            CounterState::Windowed { width, slots } => {
                write!(f, "w {width}")?;
                slots
                    .iter()
                    .try_for_each(|(at, number)| write!(f, " {at}={number}"))
            }
        }
    }
}

impl FromStr for CounterState {
    type Err = ();

    fn from_str(text: &str) -> Result<CounterState, ()> {
        let mut words = text.split(' ');
        let kind = words.next();
        let first = words.next().ok_or(())?;
        match kind {
            Some("c") => Ok(CounterState::Plain {
                value: first.parse().map_err(drop)?,
                ends: words.next().map(str::parse).transpose().map_err(drop)?,
            }),
            Some("w") => Ok(CounterState::Windowed {
                width: first.parse().map_err(drop)?,
                slots: words
                    .map(|word| {
                        let (at, number) = word.split_once('=').ok_or(())?;
                        Ok((at.parse().map_err(drop)?, number.parse().map_err(drop)?))
                    })
                    .collect::<Result<_, ()>>()?,
            }),
            _ => Err(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: u64 = 1_000_000_000;

    fn ask(amount: i64) -> Addition {
        Addition {
            amount,
            min: i64::MIN,
            max: i64::MAX,
            expire: None,
            window: None,
        }
    }

    fn run(tally: &mut Option<CounterState>, now: u64, ask: Addition) -> (i64, bool) {
        let (sum, next) = add(tally.as_ref(), now, &ask).unwrap();
        if next.is_some() {
            *tally = next;
        }
        (sum.value, sum.added)
    }

    #[test]
    fn bounds_refuse_and_do_not_clamp() {
        let mut tally = None;
        let to_ten = |amount| Addition {
            max: 10,
            min: -3,
            ..ask(amount)
        };
        assert_eq!(run(&mut tally, NOW, to_ten(8)), (8, true));
        assert_eq!(run(&mut tally, NOW, to_ten(3)), (8, false));
        assert_eq!(run(&mut tally, NOW, to_ten(2)), (10, true));
        assert_eq!(run(&mut tally, NOW, to_ten(-14)), (10, false));
        assert_eq!(run(&mut tally, NOW, ask(90)), (100, true));
        assert_eq!(
            run(&mut tally, NOW, to_ten(-1)),
            (99, true),
            "on its way back"
        );
        assert_eq!(run(&mut tally, NOW, to_ten(1)), (99, false));
    }

    #[test]
    fn the_ends_of_the_numbers_are_bounds() {
        let mut tally = None;
        assert_eq!(run(&mut tally, NOW, ask(i64::MAX)), (i64::MAX, true));
        assert_eq!(run(&mut tally, NOW, ask(1)), (i64::MAX, false));
        assert_eq!(run(&mut tally, NOW, ask(i64::MIN)), (-1, true));
        assert_eq!(run(&mut tally, NOW, ask(i64::MIN)), (-1, false));
    }

    #[test]
    fn a_window_forgets_slot_by_slot() {
        let minute = |amount| Addition {
            window: Some(60_000_000),
            max: 5,
            ..ask(amount)
        };
        let mut tally = None;
        assert_eq!(run(&mut tally, NOW, minute(3)), (3, true));
        assert_eq!(run(&mut tally, NOW + 30_000_000, minute(2)), (5, true));
        assert_eq!(run(&mut tally, NOW + 30_000_000, minute(1)), (5, false));
        assert_eq!(run(&mut tally, NOW + 59_999_999, minute(0)), (5, true));
        assert_eq!(run(&mut tally, NOW + 60_000_000, minute(1)), (3, true));
        let text = tally.clone().unwrap().to_string();
        assert_eq!(text.parse::<CounterState>().ok(), tally);
        let hour = Addition {
            window: Some(3_600_000_000),
            ..ask(1)
        };
        assert_eq!(add(tally.as_ref(), NOW + 60_000_000, &hour), Err(OtherKind));
        assert!(
            add(tally.as_ref(), NOW + 200_000_000, &hour).is_ok(),
            "it is over"
        );
        assert_eq!(
            add(tally.as_ref(), NOW + 60_000_000, &ask(1)),
            Err(OtherKind)
        );
    }

    #[test]
    fn a_plain_counter_ends_some_time_after_it_began() {
        let brief = |amount| Addition {
            expire: Some(1_000),
            ..ask(amount)
        };
        let mut tally = None;
        assert_eq!(run(&mut tally, NOW, brief(1)), (1, true));
        assert_eq!(run(&mut tally, NOW + 999, brief(1)), (2, true));
        assert_eq!(run(&mut tally, NOW + 1_000, brief(1)), (1, true));
    }
}
