//! Sliding logs: the time of every admitted call, so that the quota holds in *any* interval of the
//! period.
//!
//! A unit that was taken at `t` counts until `t + period`, exclusively. A call is admitted if and
//! only if the units that count, its own included, do not exceed the limit. So no interval
//! `[x, x + period)` has more, and no call is denied that would fit.
//!
//! Memory is bounded by the limit, [`MAX_LOG_UNITS`](super::MAX_LOG_UNITS) at most: an entry has at
//! least one unit, and calls of the same microsecond share one.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use super::RuleState;
use super::rule::Rule;

/// Admitted calls, the oldest first. Shared, because states are copied more often than they change.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CallLog {
    /// Their times grow strictly, and none has zero units.
    entries: Arc<[LogEntry]>,
    /// The sum of all entries.
    units: u64,
}

/// The units taken in one microsecond.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct LogEntry {
    at: u64,
    units: u64,
}

impl CallLog {
    /// The units of all calls.
    pub fn units(&self) -> u64 {
        self.units
    }

    /// When the last call was admitted.
    pub(super) fn last(&self) -> Option<u64> {
        self.entries.last().map(|entry| entry.at)
    }

    /// A log of these entries, whose times do not decrease; equal times are merged.
    fn of(entries: impl IntoIterator<Item = LogEntry>) -> CallLog {
        let entries = entries.into_iter();
        let mut merged: Vec<LogEntry> = Vec::with_capacity(entries.size_hint().0);
        for entry in entries {
            match merged.last_mut() {
                Some(last) if last.at == entry.at => last.units += entry.units,
                _ => merged.push(entry),
            }
        }
        CallLog {
            units: merged.iter().map(|entry| entry.units).sum(),
            entries: merged.into(),
        }
    }

    /// The calls that still count at `now`.
    fn within(&self, period: u64, now: u64) -> CallLog {
        let over = |entry: &LogEntry| entry.at + period <= now;
        match self.entries.partition_point(over) {
            0 => self.clone(),
            ended => CallLog::of(self.entries[ended..].iter().copied()),
        }
    }

    /// This log after another call, which is not earlier than the last.
    pub(super) fn with(&self, at: u64, units: u64) -> CallLog {
        let new = LogEntry { at, units };
        CallLog::of(self.entries.iter().copied().chain([new]))
    }

    /// This log with fewer units taken at a time; `None` if as many were not taken then.
    pub(super) fn without(&self, at: u64, units: u64) -> Option<CallLog> {
        let found = self.entries.iter().find(|entry| entry.at == at);
        if found?.units < units {
            return None;
        }
        let lower = |entry: &LogEntry| LogEntry {
            at: entry.at,
            units: match entry.at == at {
                true => entry.units - units,
                false => entry.units,
            },
        };
        let entries = self.entries.iter().map(lower);
        Some(CallLog::of(entries.filter(|entry| entry.units > 0)))
    }

    /// When this many units, at most all of them, have ended.
    fn end_of(&self, units: u64, period: u64) -> Option<u64> {
        let mut ended = 0;
        let found = self.entries.iter().find(|entry| {
            ended += entry.units;
            ended >= units
        });
        found.map(|entry| entry.at + period)
    }

    /// The same log with other times, which keep their order.
    pub(super) fn map_times(&self, time: impl Fn(u64) -> u64) -> CallLog {
        CallLog::of(self.entries.iter().map(|entry| LogEntry {
            at: time(entry.at),
            units: entry.units,
        }))
    }
}

/// The stored text: the units of all calls, the times of the first and the last, the units of the
/// first; then for each further entry the time since the one before, and its units. A log without
/// calls has no text.
///
/// The first three numbers are redundant. With them the script of the Redis store reads the entries
/// that have ended and writes the new one, instead of reading all of them.
impl fmt::Display for CallLog {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (Some(first), Some(last)) = (self.entries.first(), self.entries.last()) else {
            return Ok(());
        };
        write!(f, "{} {} {} {}", self.units, first.at, last.at, first.units)?;
        for pair in self.entries.windows(2) {
            write!(f, " {} {}", pair[1].at - pair[0].at, pair[1].units)?;
        }
        Ok(())
    }
}

impl FromStr for CallLog {
    type Err = ();

    fn from_str(text: &str) -> Result<CallLog, ()> {
        let mut numbers = text.split(' ').map(|word| word.parse::<u64>());
        let mut next = || numbers.next().map(|number| number.map_err(|_| ()));
        let (Some(sum), Some(first), Some(last)) = (next(), next(), next()) else {
            return Err(());
        };
        let (sum, mut at, last) = (sum?, first?, last?);
        let mut entries = Vec::new();
        loop {
            let units = next().ok_or(())??;
            entries.push(LogEntry { at, units });
            match next() {
                Some(pause) => at = at.checked_add(pause?).ok_or(())?,
                None => break,
            }
        }
        let log = CallLog::of(entries);
        let complete = log.units == sum && at == last;
        complete.then_some(log).ok_or(())
    }
}

/// The stored state as of now under this rule; `None` if it is another algorithm's.
///
/// If the period has changed, the calls keep their times. Those that a shorter period leaves out are
/// forgotten; those that were over before a longer one cannot be restored.
pub(super) fn advance(rule: &Rule, state: &RuleState, now: u64) -> Option<RuleState> {
    match (rule, state) {
        (Rule::Log { limit, period }, RuleState::Log { calls, .. }) => Some(RuleState::Log {
            limit: *limit,
            period: *period,
            calls: calls.within(*period, now),
        }),
        _ => None,
    }
}

/// The state after the charge; `None` if it is denied.
pub(super) fn charge(rule: &Rule, state: &RuleState, now: u64, cost: u64) -> Option<RuleState> {
    match (rule, state) {
        (Rule::Log { limit, period }, RuleState::Log { calls, .. }) => {
            let fits = calls.units + cost <= *limit;
            fits.then(|| RuleState::Log {
                limit: *limit,
                period: *period,
                calls: calls.with(now, cost),
            })
        }
        _ => None,
    }
}

/// Units available now, time until `cost` units are, time until all are.
pub(super) fn status(
    rule: &Rule,
    state: &RuleState,
    now: u64,
    cost: u64,
) -> (u64, Option<u64>, Option<u64>) {
    let (Rule::Log { limit, period }, RuleState::Log { calls, .. }) = (rule, state) else {
        return (0, None, None);
    };
    let until = |time: u64| time.saturating_sub(now);
    let retry = (cost <= *limit).then(|| {
        let excess = (calls.units + cost).saturating_sub(*limit);
        match excess {
            0 => 0,
            excess => calls.end_of(excess, *period).map_or(0, until),
        }
    });
    let reset = calls.last().map_or(0, |last| until(last + period));
    (limit.saturating_sub(calls.units), retry, Some(reset))
}
