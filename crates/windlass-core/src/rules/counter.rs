//! Counters.
//!
//! A plain counter is a number. A windowed counter is the sum of the additions within a window:
//! time is divided into slots of a sixtieth of the window each, and expires slot by slot.

use std::fmt;
use std::str::FromStr;

/// Slots in a window.
pub const SLOTS: u64 = 60;
/// The largest absolute value of a windowed counter: sums of slots must be exact in Lua, too.
pub const MOST_IN_A_WINDOW: i64 = (1 << 53) - 1;

/// The state of a counter. Times are in microseconds of the store's clock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CounterState {
    /// A number.
    Plain {
        /// The number.
        value: i64,
        /// When it expires; `None` for never.
        ends: Option<u64>,
    },
    /// Numbers by slot of time.
    Windowed {
        /// The length of a slot.
        width: u64,
        /// The index and sum of each slot that is not empty, in order.
        slots: Vec<(u64, i64)>,
    },
}

/// An addition and its bounds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Addition {
    /// The amount to add.
    pub amount: i64,
    /// The lowest sum that a subtraction may reach.
    pub min: i64,
    /// The highest sum that an addition may reach.
    pub max: i64,
    /// How long a plain counter lives, from its creation.
    pub expire: Option<u64>,
    /// The window of a windowed counter; `None` for a plain one.
    pub window: Option<u64>,
}

/// The outcome of an addition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sum {
    /// The value afterwards.
    pub value: i64,
    /// Whether the amount was added. If not, the sum would be out of bounds.
    pub added: bool,
}

/// The stored counter is of another kind: plain or windowed, or with another window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OtherKind;

/// The length of a slot.
pub fn width(window: u64) -> u64 {
    window.div_ceil(SLOTS).max(1)
}

/// Adds, unless the sum would be out of bounds. Returns the state to store, if it has changed.
pub fn add(
    stored: Option<&CounterState>,
    now: u64,
    request: &Addition,
) -> Result<(Sum, Option<CounterState>), OtherKind> {
    match request.window {
        None => add_plain(stored, now, request),
        Some(window) => add_windowed(stored, now, request, width(window)),
    }
}

/// The sum, if it is within the bounds. A value that is out of bounds already may move back towards
/// them.
fn within(value: i64, request: &Addition) -> Option<i64> {
    let sum = value.checked_add(request.amount)?;
    let beyond =
        (request.amount > 0 && sum > request.max) || (request.amount < 0 && sum < request.min);
    (!beyond).then_some(sum)
}

fn add_plain(
    stored: Option<&CounterState>,
    now: u64,
    request: &Addition,
) -> Result<(Sum, Option<CounterState>), OtherKind> {
    let (value, ends) = match stored {
        Some(CounterState::Plain { value, ends }) if ends.is_none_or(|ends| ends > now) => {
            (*value, *ends)
        }
        Some(CounterState::Windowed { width, slots }) if !is_over(*width, slots, now) => {
            return Err(OtherKind);
        }
        _ => (0, request.expire.map(|time| now + time)),
    };
    Ok(match within(value, request) {
        None => (refused(value), None),
        Some(sum) => {
            let state = (request.amount != 0).then_some(CounterState::Plain { value: sum, ends });
            (added(sum), state)
        }
    })
}

fn add_windowed(
    stored: Option<&CounterState>,
    now: u64,
    request: &Addition,
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
    let fits = exact(request.amount) && exact(in_slot + request.amount);
    let Some(sum) = within(value, request).filter(|sum| fits && exact(*sum)) else {
        return Ok((refused(value), None));
    };
    if request.amount == 0 {
        return Ok((added(value), None));
    }
    match slots.iter_mut().find(|(at, _)| *at == slot) {
        Some((_, number)) => *number += request.amount,
        None => slots.push((slot, request.amount)),
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
    /// The current value.
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

    /// When it expires; `None` for never.
    pub fn ends(&self) -> Option<u64> {
        match self {
            CounterState::Plain { ends, .. } => *ends,
            CounterState::Windowed { width, slots } => {
                let last = slots.iter().map(|(at, _)| *at).max().unwrap_or(0);
                Some((last + SLOTS) * width)
            }
        }
    }

    /// The same state on another clock, whose time is `to` when this one's is `from`.
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

    fn addition(amount: i64) -> Addition {
        Addition {
            amount,
            min: i64::MIN,
            max: i64::MAX,
            expire: None,
            window: None,
        }
    }

    fn run(state: &mut Option<CounterState>, now: u64, request: Addition) -> (i64, bool) {
        let (sum, next) = add(state.as_ref(), now, &request).unwrap();
        if next.is_some() {
            *state = next;
        }
        (sum.value, sum.added)
    }

    #[test]
    fn bounds_reject_and_do_not_clamp() {
        let mut state = None;
        let to_ten = |amount| Addition {
            max: 10,
            min: -3,
            ..addition(amount)
        };
        assert_eq!(run(&mut state, NOW, to_ten(8)), (8, true));
        assert_eq!(run(&mut state, NOW, to_ten(3)), (8, false));
        assert_eq!(run(&mut state, NOW, to_ten(2)), (10, true));
        assert_eq!(run(&mut state, NOW, to_ten(-14)), (10, false));
        assert_eq!(run(&mut state, NOW, addition(90)), (100, true));
        assert_eq!(
            run(&mut state, NOW, to_ten(-1)),
            (99, true),
            "on its way back"
        );
        assert_eq!(run(&mut state, NOW, to_ten(1)), (99, false));
    }

    #[test]
    fn the_ends_of_the_numbers_are_bounds() {
        let mut state = None;
        assert_eq!(run(&mut state, NOW, addition(i64::MAX)), (i64::MAX, true));
        assert_eq!(run(&mut state, NOW, addition(1)), (i64::MAX, false));
        assert_eq!(run(&mut state, NOW, addition(i64::MIN)), (-1, true));
        assert_eq!(run(&mut state, NOW, addition(i64::MIN)), (-1, false));
    }

    #[test]
    fn a_window_expires_slot_by_slot() {
        let minute = |amount| Addition {
            window: Some(60_000_000),
            max: 5,
            ..addition(amount)
        };
        let mut state = None;
        assert_eq!(run(&mut state, NOW, minute(3)), (3, true));
        assert_eq!(run(&mut state, NOW + 30_000_000, minute(2)), (5, true));
        assert_eq!(run(&mut state, NOW + 30_000_000, minute(1)), (5, false));
        assert_eq!(run(&mut state, NOW + 59_999_999, minute(0)), (5, true));
        assert_eq!(run(&mut state, NOW + 60_000_000, minute(1)), (3, true));
        let text = state.clone().unwrap().to_string();
        assert_eq!(text.parse::<CounterState>().ok(), state);
        let hour = Addition {
            window: Some(3_600_000_000),
            ..addition(1)
        };
        assert_eq!(add(state.as_ref(), NOW + 60_000_000, &hour), Err(OtherKind));
        assert!(
            add(state.as_ref(), NOW + 200_000_000, &hour).is_ok(),
            "it is over"
        );
        assert_eq!(
            add(state.as_ref(), NOW + 60_000_000, &addition(1)),
            Err(OtherKind)
        );
    }

    #[test]
    fn a_plain_counter_expires_after_its_creation() {
        let brief = |amount| Addition {
            expire: Some(1_000),
            ..addition(amount)
        };
        let mut state = None;
        assert_eq!(run(&mut state, NOW, brief(1)), (1, true));
        assert_eq!(run(&mut state, NOW + 999, brief(1)), (2, true));
        assert_eq!(run(&mut state, NOW + 1_000, brief(1)), (1, true));
    }
}
