//! What a store keeps for a limiter between two calls, and its stored text.

use std::fmt;
use std::str::FromStr;

use super::hold::Refunds;
use super::rule::Bucket;
use super::{CallLog, Span};

/// The state of one rule. Times are in microseconds of the store's clock.
///
/// `limit` is that of the rule that last changed the state, or 0 if it is not known. No decision
/// depends on it, since every call brings its rule; it is for inspection, which has none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RuleState {
    /// A token bucket: the time at which it will be full again.
    Bucket {
        /// Its capacity.
        limit: u64,
        /// The rate by which `tat` was computed.
        amount: u64,
        /// See `amount`.
        period: u64,
        /// The "theoretical arrival time" of GCRA: when the bucket is full again.
        tat: Span,
        /// Units leased recently.
        leased: LeasedUnits,
        /// What was refunded to holds; `None` if there was no hold yet.
        refunds: Option<Box<Refunds>>,
    },
    /// A token bucket that never refills.
    Allowance {
        /// Units in all.
        limit: u64,
        /// Units used.
        used: u64,
    },
    /// A fixed window.
    Fixed {
        /// Units in a window.
        limit: u64,
        /// The length of a window.
        period: u64,
        /// When it started.
        start: u64,
        /// Units used in it.
        count: u64,
        /// When it ends: one period after its start, unless the period has changed since.
        end: u64,
    },
    /// The two windows of a sliding window.
    Sliding {
        /// Units in a window.
        limit: u64,
        /// Their length.
        period: u64,
        /// When the current one started.
        start: u64,
        /// Units used in the previous one.
        before: u64,
        /// Units used in the current one.
        count: u64,
    },
    /// A sliding log.
    Log {
        /// Units in an interval of the period.
        limit: u64,
        /// For how long a call counts.
        period: u64,
        /// The calls that count, and perhaps some that do not any more.
        calls: CallLog,
    },
}

/// Units of a bucket leased recently: since `since`, and in the lease time before that. In
/// microseconds, as the time that the units take to refill.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LeasedUnits {
    /// When the current count started; 0 if nothing was leased.
    pub since: u64,
    /// Leased before `since`.
    pub before: u64,
    /// Leased since then.
    pub now: u64,
}

impl RuleState {
    pub(super) fn bucket(bucket: &Bucket, tat: Span) -> RuleState {
        RuleState::Bucket {
            limit: bucket.burst,
            amount: bucket.amount,
            period: bucket.period,
            tat,
            leased: LeasedUnits::default(),
            refunds: None,
        }
    }

    pub(super) fn algorithm(&self) -> &'static str {
        match self {
            RuleState::Bucket { .. } | RuleState::Allowance { .. } => "token-bucket",
            RuleState::Fixed { .. } => "fixed-window",
            RuleState::Sliding { .. } => "sliding-window",
            RuleState::Log { .. } => "sliding-log",
        }
    }

    /// The limit of the rule that last changed the state; `None` if it is not known.
    pub(super) fn limit(&self) -> Option<u64> {
        let (RuleState::Bucket { limit, .. }
        | RuleState::Allowance { limit, .. }
        | RuleState::Fixed { limit, .. }
        | RuleState::Sliding { limit, .. }
        | RuleState::Log { limit, .. }) = *self;
        (limit > 0).then_some(limit)
    }

    /// The same, changed by a rule of this limit.
    pub(super) fn with_limit(mut self, new: u64) -> RuleState {
        let (RuleState::Bucket { limit, .. }
        | RuleState::Allowance { limit, .. }
        | RuleState::Fixed { limit, .. }
        | RuleState::Sliding { limit, .. }
        | RuleState::Log { limit, .. }) = &mut self;
        *limit = new;
        self
    }

    /// When the quota is whole again, so that the state can be dropped.
    #[inline]
    pub(super) fn ends(&self, now: u64) -> u64 {
        match *self {
            RuleState::Bucket { tat, .. } => tat.ceil(),
            RuleState::Allowance { .. } => now + ALLOWANCE_RETENTION,
            RuleState::Fixed { end, .. } => end,
            RuleState::Sliding { period, start, .. } => start + 2 * period,
            RuleState::Log {
                period, ref calls, ..
            } => calls.last().map_or(now, |last| last + period),
        }
    }

    /// The same state on another clock, whose time is `to` when this one's is `from`.
    fn moved(&self, from: u64, to: u64) -> RuleState {
        let moved = |time: u64| (time + to).saturating_sub(from);
        match *self {
            RuleState::Bucket {
                limit,
                amount,
                period,
                tat,
                mut leased,
                ref refunds,
            } => {
                if leased.since > 0 {
                    // Zero means that nothing was leased.
                    leased.since = moved(leased.since).max(1);
                }
                RuleState::Bucket {
                    limit,
                    amount,
                    period,
                    tat: Span {
                        us: moved(tat.us),
                        ..tat
                    },
                    leased,
                    refunds: refunds.as_ref().map(|r| Box::new(r.map_times(moved))),
                }
            }
            RuleState::Allowance { limit, used } => RuleState::Allowance { limit, used },
            RuleState::Fixed {
                limit,
                period,
                start,
                count,
                end,
            } => {
                // A window that started before the other clock's zero starts at zero.
                let new_start = moved(start);
                RuleState::Fixed {
                    limit,
                    period,
                    start: new_start,
                    count,
                    end: match end == start + period {
                        true => new_start + period,
                        false => moved(end),
                    },
                }
            }
            RuleState::Sliding {
                limit,
                period,
                start,
                before,
                count,
            } => RuleState::Sliding {
                limit,
                period,
                start: moved(start),
                before,
                count,
            },
            RuleState::Log {
                limit,
                period,
                ref calls,
            } => RuleState::Log {
                limit,
                period,
                calls: calls.map_times(moved),
            },
        }
    }
}

/// The stored text: the letter of the algorithm and the limit, then the other fields: `t20 1 100000
/// …`.
impl fmt::Display for RuleState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            RuleState::Bucket { .. } => "t",
            RuleState::Allowance { .. } => "z",
            RuleState::Fixed { .. } => "f",
            RuleState::Sliding { .. } => "s",
            RuleState::Log { .. } => "l",
        })?;
        if let Some(limit) = self.limit() {
            write!(f, "{limit}")?;
        }
        match self {
            RuleState::Bucket {
                amount,
                period,
                tat,
                leased,
                refunds,
                ..
            } => {
                write!(f, " {amount} {period} {} {}", tat.us, tat.part)?;
                if leased.since > 0 {
                    write!(f, " {} {} {}", leased.since, leased.before, leased.now)?;
                }
                if let Some(refunds) = refunds {
                    write!(f, " {refunds}")?;
                }
                Ok(())
            }
            RuleState::Allowance { used, .. } => write!(f, " {used}"),
            RuleState::Fixed {
                period,
                start,
                count,
                end,
                ..
            } => {
                write!(f, " {period} {start} {count}")?;
                if *end != start + period {
                    write!(f, " {end}")?;
                }
                Ok(())
            }
            RuleState::Sliding {
                period,
                start,
                before,
                count,
                ..
            } => write!(f, " {period} {start} {before} {count}"),
            RuleState::Log { period, calls, .. } if calls.units() == 0 => write!(f, " {period}"),
            RuleState::Log { period, calls, .. } => write!(f, " {period} {calls}"),
        }
    }
}

impl FromStr for RuleState {
    type Err = ();

    fn from_str(text: &str) -> Result<RuleState, ()> {
        let (kind, rest) = text.split_once(' ').ok_or(())?;
        let (kind, limit) = kind.split_at_checked(1).ok_or(())?;
        // Earlier versions did not write the limit.
        let limit = match limit {
            "" => 0,
            limit => limit.parse().map_err(|_| ())?,
        };
        if kind == "l" {
            let (period, calls) = match rest.split_once(' ') {
                Some((period, calls)) => (period, calls.parse()?),
                None => (rest, CallLog::default()),
            };
            let period = period.parse().map_err(|_| ())?;
            return Ok(RuleState::Log {
                limit,
                period,
                calls,
            });
        }
        let (rest, refunds) = match rest.split_once(" r") {
            Some((rest, refunds)) if kind == "t" => (rest, Some(Box::new(refunds.parse()?))),
            _ => (rest, None),
        };
        let mut numbers = [0u64; 7];
        let mut count = 0;
        for word in rest.split(' ') {
            *numbers.get_mut(count).ok_or(())? = word.parse().map_err(|_| ())?;
            count += 1;
        }
        let [a, b, c, d, e, f, g] = numbers;
        match (kind, count) {
            ("t", 4 | 7) if a > 0 && b > 0 => Ok(RuleState::Bucket {
                limit,
                amount: a,
                period: b,
                tat: Span { us: c, part: d },
                leased: LeasedUnits {
                    since: e,
                    before: f,
                    now: g,
                },
                refunds,
            }),
            ("z", 1) => Ok(RuleState::Allowance { limit, used: a }),
            ("f", 3 | 4) if a > 0 => Ok(RuleState::Fixed {
                limit,
                period: a,
                start: b,
                count: c,
                end: if count == 4 { d } else { b + a },
            }),
            ("s", 4) if a > 0 => Ok(RuleState::Sliding {
                limit,
                period: a,
                start: b,
                before: c,
                count: d,
            }),
            _ => Err(()),
        }
    }
}

/// How long the state of a bucket that never refills is kept after its last use: a year.
pub(super) const ALLOWANCE_RETENTION: u64 = 365 * 24 * 3600 * 1_000_000;

/// The states of all rules of a limiter, in their order. Most limiters have one, which needs no
/// allocation.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RuleStates {
    first: Option<RuleState>,
    rest: Vec<RuleState>,
    /// See [`RuleStates::mark`].
    mark: u64,
}

impl RuleStates {
    /// The number of states.
    #[inline]
    pub fn len(&self) -> usize {
        usize::from(self.first.is_some()) + self.rest.len()
    }

    /// Whether there are no states.
    pub fn is_empty(&self) -> bool {
        self.first.is_none()
    }

    /// The state of one rule.
    #[inline]
    pub fn get(&self, i: usize) -> Option<&RuleState> {
        match i {
            0 => self.first.as_ref(),
            i => self.rest.get(i - 1),
        }
    }

    /// When units were first leased, reserved or held from these states; 0 for never.
    ///
    /// It distinguishes these states from earlier ones of the same limiter that were reset, lost, or
    /// converted to another quota: units that were taken from those cannot be returned to these.
    pub fn mark(&self) -> u64 {
        self.mark
    }

    /// Records that units were leased, reserved or held.
    pub(super) fn set_mark(&mut self, now: u64) {
        if self.mark == 0 {
            self.mark = now;
        }
    }

    /// These states, with another mark.
    pub(super) fn with_mark(self, mark: u64) -> RuleStates {
        RuleStates { mark, ..self }
    }

    /// Other states, with the same mark.
    pub(super) fn replaced(&self, states: impl IntoIterator<Item = RuleState>) -> RuleStates {
        RuleStates {
            mark: self.mark,
            ..states.into_iter().collect()
        }
    }

    /// The state of the only rule.
    #[inline]
    pub(super) fn lone(&mut self) -> Option<&mut RuleState> {
        match self.rest.is_empty() {
            true => self.first.as_mut(),
            false => None,
        }
    }

    /// Replaces the state of a rule, or adds that of the next.
    pub(super) fn set(&mut self, i: usize, state: RuleState) {
        match i {
            0 => self.first = Some(state),
            i if i <= self.rest.len() => self.rest[i - 1] = state,
            _ => self.rest.push(state),
        }
    }

    /// Changes the first `count` states; `None` if one of them cannot be changed.
    pub(super) fn try_map(
        &self,
        count: usize,
        change: impl Fn(usize, &RuleState) -> Option<RuleState>,
    ) -> Option<RuleStates> {
        let mut changed = self.clone();
        for i in 0..count {
            changed.set(i, change(i, self.get(i)?)?);
        }
        Some(changed)
    }

    /// The same states on another clock, whose time is `to` when this one's is `from`. The mark
    /// stays: it is only compared.
    pub fn moved(&self, from: u64, to: u64) -> RuleStates {
        self.replaced(self.iter().map(|state| state.moved(from, to)))
    }

    /// All states, in the order of the rules.
    pub fn iter(&self) -> impl Iterator<Item = &RuleState> {
        self.first.iter().chain(&self.rest)
    }
}

impl FromIterator<RuleState> for RuleStates {
    fn from_iter<I: IntoIterator<Item = RuleState>>(states: I) -> RuleStates {
        let mut states = states.into_iter();
        RuleStates {
            first: states.next(),
            rest: states.collect(),
            mark: 0,
        }
    }
}

impl fmt::Display for RuleStates {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, state) in self.iter().enumerate() {
            if i > 0 {
                f.write_str(",")?;
            }
            write!(f, "{state}")?;
        }
        if self.mark > 0 {
            write!(f, ",m {}", self.mark)?;
        }
        Ok(())
    }
}

impl FromStr for RuleStates {
    type Err = ();

    fn from_str(text: &str) -> Result<RuleStates, ()> {
        if text.is_empty() {
            return Ok(RuleStates::default());
        }
        let (text, mark) = match text.split_once(",m ") {
            Some((text, mark)) => (text, mark.parse().map_err(|_| ())?),
            None => (text, 0),
        };
        let states: Result<RuleStates, ()> = text.split(',').map(str::parse).collect();
        Ok(RuleStates { mark, ..states? })
    }
}
