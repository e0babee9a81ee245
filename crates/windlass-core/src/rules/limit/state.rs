//! What a store keeps of a limiter between two calls.

use std::fmt;
use std::str::FromStr;

use super::Span;
use super::rule::Bucket;

/// What is kept for one rule. Times are in microseconds of the store's clock.
///
/// `limit` is that of the rule by which it was last changed, or 0 if nobody knows. Nothing is decided by it, since
/// whoever asks brings a rule; it is there for those who look without one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RuleState {
    /// A bucket is known by the time at which it will be full again.
    Bucket {
        /// Units that can be saved.
        limit: u64,
        /// Whose `amount` and `period` the time was reckoned by.
        amount: u64,
        /// See `amount`.
        period: u64,
        /// The "theoretical arrival time" of GCRA: when the bucket is full.
        tat: Span,
        /// What was lent.
        lent: LeasedUnits,
    },
    /// A bucket into which nothing comes in.
    Allowance {
        /// Units in all.
        limit: u64,
        /// Units used.
        used: u64,
    },
    /// A window.
    Fixed {
        /// Units in a window.
        limit: u64,
        /// How long windows are.
        period: u64,
        /// When it began.
        start: u64,
        /// Units used in it.
        count: u64,
        /// When it ends: a period after it began, unless the period has changed since.
        end: u64,
    },
    /// Two windows.
    Sliding {
        /// Units in a window.
        limit: u64,
        /// How long they are.
        period: u64,
        /// When the present one began.
        start: u64,
        /// Units used in the one before.
        before: u64,
        /// Units used in the present one.
        count: u64,
    },
}

/// How much of a bucket was lent lately: since `since`, and in the time before, as the microseconds
/// it takes for as much to come in.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LeasedUnits {
    /// When the present count began.
    pub since: u64,
    /// LeasedUnits before.
    pub before: u64,
    /// LeasedUnits since then.
    pub now: u64,
}

impl RuleState {
    pub(super) fn bucket(bucket: &Bucket, tat: Span) -> RuleState {
        RuleState::Bucket {
            limit: bucket.burst,
            amount: bucket.amount,
            period: bucket.period,
            tat,
            lent: LeasedUnits::default(),
        }
    }

    pub(super) fn algorithm(&self) -> &'static str {
        match self {
            RuleState::Bucket { .. } | RuleState::Allowance { .. } => "token-bucket",
            RuleState::Fixed { .. } => "fixed-window",
            RuleState::Sliding { .. } => "sliding-window",
        }
    }

    /// The limit of the rule by which it was last changed; `None` if nobody knows.
    pub(super) fn limit(&self) -> Option<u64> {
        let (RuleState::Bucket { limit, .. }
        | RuleState::Allowance { limit, .. }
        | RuleState::Fixed { limit, .. }
        | RuleState::Sliding { limit, .. }) = *self;
        (limit > 0).then_some(limit)
    }

    /// The same, changed by a rule of this limit.
    pub(super) fn with_limit(mut self, by: u64) -> RuleState {
        let (RuleState::Bucket { limit, .. }
        | RuleState::Allowance { limit, .. }
        | RuleState::Fixed { limit, .. }
        | RuleState::Sliding { limit, .. }) = &mut self;
        *limit = by;
        self
    }

    /// When it is as if it had never been.
    #[inline]
    pub(super) fn ends(&self, now: u64) -> u64 {
        match *self {
            RuleState::Bucket { tat, .. } => tat.ceil(),
            // As long as anything is ever kept, since nothing ever comes in again.
            RuleState::Allowance { .. } => now + ALLOWANCE_KEPT,
            RuleState::Fixed { end, .. } => end,
            RuleState::Sliding { period, start, .. } => start + 2 * period,
        }
    }

    /// The same on another clock, on which the moment `from` is called `to`.
    fn moved(self, from: u64, to: u64) -> RuleState {
        let moved = |time: u64| (time + to).saturating_sub(from);
        match self {
            RuleState::Bucket {
                limit,
                amount,
                period,
                tat,
                mut lent,
            } => {
                if lent.since > 0 {
                    // Zero means that nothing was lent.
                    lent.since = moved(lent.since).max(1);
                }
                RuleState::Bucket {
                    limit,
                    amount,
                    period,
                    tat: Span {
                        us: moved(tat.us),
                        ..tat
                    },
                    lent,
                }
            }
            RuleState::Allowance { .. } => self,
            RuleState::Fixed {
                limit,
                period,
                start,
                count,
                end,
            } => {
                // What began before the other clock did began with it.
                let began = moved(start);
                RuleState::Fixed {
                    limit,
                    period,
                    start: began,
                    count,
                    end: match end == start + period {
                        true => began + period,
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
        }
    }
}

/// The letter of the algorithm and the limit, then what else is known: `t20 1 100000 …`.
impl fmt::Display for RuleState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            RuleState::Bucket { .. } => "t",
            RuleState::Allowance { .. } => "z",
            RuleState::Fixed { .. } => "f",
            RuleState::Sliding { .. } => "s",
        })?;
        if let Some(limit) = self.limit() {
            write!(f, "{limit}")?;
        }
        match self {
            RuleState::Bucket {
                amount,
                period,
                tat,
                lent,
                ..
            } => {
                write!(f, " {amount} {period} {} {}", tat.us, tat.part)?;
                if *lent != LeasedUnits::default() {
                    write!(f, " {} {} {}", lent.since, lent.before, lent.now)?;
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
        }
    }
}

impl FromStr for RuleState {
    type Err = ();

    fn from_str(text: &str) -> Result<RuleState, ()> {
        let (kind, rest) = text.split_once(' ').ok_or(())?;
        let (kind, limit) = kind.split_at_checked(1).ok_or(())?;
        // What was written before limits were is still read.
        let limit = match limit {
            "" => 0,
            limit => limit.parse().map_err(|_| ())?,
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
                lent: LeasedUnits {
                    since: e,
                    before: f,
                    now: g,
                },
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

/// How long the state of a bucket is kept into which nothing comes in: a year, from its last use.
pub(super) const ALLOWANCE_KEPT: u64 = 365 * 24 * 3600 * 1_000_000;

/// What is kept for all rules of a limiter, in their order. Most have one, which costs no allocation.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RuleStates {
    first: Option<RuleState>,
    rest: Vec<RuleState>,
    /// See [`RuleStates::mark`].
    mark: u64,
}

impl RuleStates {
    /// For how many rules something is kept.
    #[inline]
    pub fn len(&self) -> usize {
        usize::from(self.first.is_some()) + self.rest.len()
    }

    /// Whether nothing is kept.
    pub fn is_empty(&self) -> bool {
        self.first.is_none()
    }

    /// The state of one rule.
    #[inline]
    pub fn get(&self, i: usize) -> Option<RuleState> {
        match i {
            0 => self.first,
            i => self.rest.get(i - 1).copied(),
        }
    }

    /// When something was first promised that may be given back; 0 for never.
    ///
    /// It tells this state from one that came before it under the same name and is gone, by a reset or
    /// because a store lost it: what was promised then was forgotten with it, and is not given back now.
    pub fn mark(&self) -> u64 {
        self.mark
    }

    /// Something is promised that may be given back.
    pub(super) fn promise(&mut self, now: u64) {
        if self.mark == 0 {
            self.mark = now;
        }
    }

    /// Other states with the same mark.
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

    /// The first `count` states changed, if all of them can be.
    pub(super) fn try_map(
        &self,
        count: usize,
        change: impl Fn(usize, RuleState) -> Option<RuleState>,
    ) -> Option<RuleStates> {
        let mut changed = self.clone();
        for i in 0..count {
            changed.set(i, change(i, self.get(i)?)?);
        }
        Some(changed)
    }

    /// The same on another clock, on which the moment `from` is called `to`.
    ///
    /// The mark is only ever compared, and stays.
    pub fn moved(&self, from: u64, to: u64) -> RuleStates {
        self.replaced(self.iter().map(|state| state.moved(from, to)))
    }

    pub fn iter(&self) -> impl Iterator<Item = RuleState> {
        self.first.into_iter().chain(self.rest.iter().copied())
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
