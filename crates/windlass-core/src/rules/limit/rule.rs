//! Quotas.

use super::{MAX_LOG_UNITS, MAX_PERIOD_MICROS, MAX_UNITS, Span};

/// A valid quota, in whole numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Rule {
    /// A token bucket: units refill one by one, up to a burst.
    Bucket(Bucket),
    /// A token bucket that never refills: the burst, and no more.
    Allowance {
        /// Units in all.
        burst: u64,
    },
    /// A fixed window, which starts with the first call after the window before.
    Fixed {
        /// Units in a window.
        limit: u64,
        /// Microseconds.
        period: u64,
    },
    /// A sliding window, approximated by two consecutive windows: the usage of the previous one
    /// counts by the part of it that lies within one period of now.
    Sliding {
        /// Units in a window.
        limit: u64,
        /// Microseconds.
        period: u64,
    },
    /// A sliding log: never more than the limit in any interval of the period.
    Log {
        /// Units in an interval.
        limit: u64,
        /// Microseconds.
        period: u64,
    },
}

/// A token bucket: `amount` units refill every `period` microseconds, in lowest terms.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Bucket {
    /// Units.
    pub amount: u64,
    /// Microseconds.
    pub period: u64,
    /// Its capacity in units.
    pub burst: u64,
    /// How long an empty bucket takes to refill.
    pub full: Span,
    /// How long one unit takes to refill: most calls are for one.
    pub(super) unit: Span,
}

/// Why a quota cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InvalidRule {
    /// The period is shorter than a microsecond.
    PeriodTooShort,
    /// The period, or the time to refill a burst, is longer than [`MAX_PERIOD_MICROS`].
    TooLong,
    /// More than [`MAX_UNITS`].
    TooMany,
    /// More than [`MAX_LOG_UNITS`] in a sliding log.
    TooManyForLog,
}

impl Rule {
    /// A token bucket.
    pub fn bucket(amount: u64, period: u64, burst: u64) -> Result<Rule, InvalidRule> {
        fits(amount.max(burst), period)?;
        if amount == 0 {
            return Ok(Rule::Allowance { burst });
        }
        let shared = gcd(amount, period);
        let mut bucket = Bucket {
            amount: amount / shared,
            period: period / shared,
            burst,
            full: Span::whole(0),
            unit: Span {
                us: period / amount,
                part: (period / shared) % (amount / shared),
            },
        };
        bucket.full = bucket.time_for(burst);
        if bucket.full.us >= MAX_PERIOD_MICROS {
            return Err(InvalidRule::TooLong);
        }
        Ok(Rule::Bucket(bucket))
    }

    /// A fixed window.
    pub fn fixed(limit: u64, period: u64) -> Result<Rule, InvalidRule> {
        fits(limit, period)?;
        Ok(Rule::Fixed { limit, period })
    }

    /// A sliding window.
    pub fn sliding(limit: u64, period: u64) -> Result<Rule, InvalidRule> {
        fits(limit, period)?;
        Ok(Rule::Sliding { limit, period })
    }

    /// A sliding log.
    pub fn log(limit: u64, period: u64) -> Result<Rule, InvalidRule> {
        fits(limit, period)?;
        if limit > MAX_LOG_UNITS {
            return Err(InvalidRule::TooManyForLog);
        }
        Ok(Rule::Log { limit, period })
    }

    /// The most units that one call can ever take.
    #[inline]
    pub fn limit(&self) -> u64 {
        match *self {
            Rule::Bucket(Bucket { burst, .. }) | Rule::Allowance { burst } => burst,
            Rule::Fixed { limit, .. } | Rule::Sliding { limit, .. } | Rule::Log { limit, .. } => {
                limit
            }
        }
    }

    /// The algorithm's name.
    pub fn algorithm(&self) -> &'static str {
        match self {
            Rule::Bucket(_) | Rule::Allowance { .. } => "token-bucket",
            Rule::Fixed { .. } => "fixed-window",
            Rule::Sliding { .. } => "sliding-window",
            Rule::Log { .. } => "sliding-log",
        }
    }
}

fn fits(units: u64, period: u64) -> Result<(), InvalidRule> {
    if period == 0 {
        Err(InvalidRule::PeriodTooShort)
    } else if period >= MAX_PERIOD_MICROS {
        Err(InvalidRule::TooLong)
    } else if units > MAX_UNITS {
        Err(InvalidRule::TooMany)
    } else {
        Ok(())
    }
}

fn gcd(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { gcd(b, a % b) }
}

impl Bucket {
    /// How long this many units take to refill.
    #[inline(always)]
    pub fn time_for(&self, units: u64) -> Span {
        if units == 1 {
            return self.unit;
        }
        match units.checked_mul(self.period) {
            Some(whole) => Span {
                us: whole / self.amount,
                part: whole % self.amount,
            },
            None => {
                let (whole, amount) = (
                    u128::from(units) * u128::from(self.period),
                    u128::from(self.amount),
                );
                Span {
                    // Longer than any burst takes, so that the call is denied.
                    us: u64::try_from(whole / amount).unwrap_or(u64::MAX / 4),
                    part: (whole % amount) as u64,
                }
            }
        }
    }

    /// How many whole units refill within a time.
    #[inline(always)]
    pub fn units_in(&self, time: Span) -> u64 {
        if let Some(parts) = time
            .us
            .checked_mul(self.amount)
            .and_then(|us| us.checked_add(time.part))
        {
            return parts / self.period;
        }
        let parts = u128::from(time.us) * u128::from(self.amount) + u128::from(time.part);
        u64::try_from(parts / u128::from(self.period)).unwrap_or(u64::MAX)
    }
}
