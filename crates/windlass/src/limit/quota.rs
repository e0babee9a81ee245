//! A limit as a small value.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use windlass_core::error::{Error, Result};
use windlass_core::rules::limit::{InvalidRule, MOST_UNITS, Rule};

/// The largest number of units in a [`Quota`], or asked for at once.
pub const MAX_UNITS: u64 = MOST_UNITS;

const SECOND: Duration = Duration::from_secs(1);

/// How much is allowed in what time: a small value that reads as a sentence.
///
/// ```
/// use std::time::Duration;
/// use windlass::Quota;
///
/// Quota::per_second(20).burst(40);           // 20 a second, 40 at once after a pause
/// Quota::every(Duration::from_secs(5));      // one, five seconds after the other
/// Quota::per_minute(100).fixed_window();     // 100, and then the rest of the minute nothing
/// Quota::per_hour(5_000).sliding_window();   // 5,000 in whatever hour one looks at, nearly
/// ```
///
/// | algorithm | what it allows |
/// |---|---|
/// | token bucket (GCRA), unless told otherwise | a steady rate, and a burst after a pause. Never more than the burst and what came in since. |
/// | fixed window | all of it at once; a new window begins with the first call after the last one ended. Up to twice as much where two windows meet. |
/// | sliding window | windows one after the other; what the last one used counts by how much of it is still within one period of now. |
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[must_use = "a quota does nothing by itself; give it to a limiter"]
pub struct Quota {
    amount: u64,
    period: Duration,
    burst: Option<u64>,
    algorithm: Algorithm,
}

/// How a [`Quota`] is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Algorithm {
    /// Units come in one by one, and can be saved up to a burst.
    TokenBucket,
    /// So many in a window that begins with a call.
    FixedWindow,
    /// So many in a window that ends now, weighing the one before.
    SlidingWindow,
}

impl fmt::Display for Algorithm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Algorithm::TokenBucket => "token-bucket",
            Algorithm::FixedWindow => "fixed-window",
            Algorithm::SlidingWindow => "sliding-window",
        })
    }
}

impl Quota {
    /// `amount` units in every `period`. Any amount can be saved up to a burst of as much, unless
    /// [told otherwise](Quota::burst).
    ///
    /// An amount of 0 spends the burst, and no more.
    pub const fn new(amount: u64, period: Duration) -> Quota {
        Quota {
            amount,
            period,
            burst: None,
            algorithm: Algorithm::TokenBucket,
        }
    }

    /// So many a second.
    pub const fn per_second(amount: u64) -> Quota {
        Quota::new(amount, SECOND)
    }

    /// So many a minute.
    pub const fn per_minute(amount: u64) -> Quota {
        Quota::new(amount, Duration::from_secs(60))
    }

    /// So many an hour.
    pub const fn per_hour(amount: u64) -> Quota {
        Quota::new(amount, Duration::from_secs(3600))
    }

    /// So many a day, of 24 hours.
    pub const fn per_day(amount: u64) -> Quota {
        Quota::new(amount, Duration::from_secs(86_400))
    }

    /// One, and the next one `period` later.
    pub const fn every(period: Duration) -> Quota {
        Quota::new(1, period)
    }

    /// How many units can be saved for later, and so be had at once. A window has no burst: there,
    /// this is an error when the limiter is used.
    pub const fn burst(mut self, units: u64) -> Quota {
        self.burst = Some(units);
        self
    }

    /// Counts in windows, each of which begins with a call.
    pub const fn fixed_window(self) -> Quota {
        self.algorithm(Algorithm::FixedWindow)
    }

    /// Counts in a window that ends now.
    pub const fn sliding_window(self) -> Quota {
        self.algorithm(Algorithm::SlidingWindow)
    }

    /// Counts in that way.
    pub const fn algorithm(mut self, algorithm: Algorithm) -> Quota {
        self.algorithm = algorithm;
        self
    }

    /// What stores decide by.
    fn rule(&self) -> Result<Rule> {
        let refused = |message: String, hint: &'static str| {
            Error::invalid("use the quota", message).with_hint(hint)
        };
        let period = u64::try_from(self.period.as_micros()).unwrap_or(u64::MAX);
        let burst = self.burst.unwrap_or(self.amount);
        let rule = match (self.algorithm, self.burst) {
            (Algorithm::TokenBucket, _) => Rule::bucket(self.amount, period, burst),
            (algorithm, Some(_)) => {
                return Err(refused(
                    format!("a {algorithm} has no burst"),
                    "leave the burst out, or use a token bucket",
                ));
            }
            (Algorithm::FixedWindow, None) => Rule::fixed(self.amount, period),
            (Algorithm::SlidingWindow, None) => Rule::sliding(self.amount, period),
        };
        rule.map_err(|unfit| match unfit {
            InvalidRule::PeriodTooShort => refused(
                format!("a period of {:?} is too short", self.period),
                "a microsecond is the shortest",
            ),
            InvalidRule::TooLong => refused(
                format!(
                    "it would take more than 100 years until {burst} units have come in at {} in {:?}",
                    self.amount, self.period
                ),
                "choose a shorter period or a smaller burst",
            ),
            InvalidRule::TooMany => refused(
                format!("more than {MAX_UNITS} units cannot be counted"),
                "count in larger units",
            ),
        })
    }
}

/// One quota or several, which a limiter decides by together. Made from either.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Quotas(Vec<Quota>);

impl Quotas {
    pub(super) fn rules(&self) -> Result<Arc<[Rule]>> {
        if self.0.is_empty() {
            return Err(Error::invalid("use the limiter", "it has no quota")
                .with_hint("give it one, such as Quota::per_second(20)"));
        }
        self.0.iter().map(Quota::rule).collect()
    }
}

impl From<Quota> for Quotas {
    fn from(quota: Quota) -> Quotas {
        Quotas(vec![quota])
    }
}

impl<const N: usize> From<[Quota; N]> for Quotas {
    fn from(quotas: [Quota; N]) -> Quotas {
        Quotas(quotas.to_vec())
    }
}

impl From<&[Quota]> for Quotas {
    fn from(quotas: &[Quota]) -> Quotas {
        Quotas(quotas.to_vec())
    }
}

impl From<Vec<Quota>> for Quotas {
    fn from(quotas: Vec<Quota>) -> Quotas {
        Quotas(quotas)
    }
}

impl FromIterator<Quota> for Quotas {
    fn from_iter<I: IntoIterator<Item = Quota>>(quotas: I) -> Quotas {
        Quotas(quotas.into_iter().collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_can_never_work_is_said() {
        for (quota, word) in [
            (Quota::new(1, Duration::ZERO), "too short"),
            (Quota::new(1, Duration::from_nanos(999)), "too short"),
            (Quota::new(1, Duration::MAX), "100 years"),
            (Quota::per_day(1).burst(36_501), "100 years"),
            (Quota::per_second(u64::MAX), "cannot be counted"),
            (Quota::per_second(1).burst(u64::MAX), "cannot be counted"),
            (Quota::per_minute(3).burst(3).fixed_window(), "no burst"),
        ] {
            let error = Quotas::from(quota).rules().unwrap_err();
            assert!(error.to_string().contains(word), "{quota:?}: {error}");
            assert!(error.hint().is_some());
        }
        assert!(Quotas::from([]).rules().is_err());
        assert!(Quotas::from(Quota::per_second(0).burst(0)).rules().is_ok());
        assert!(
            Quotas::from(Quota::new(5, Duration::from_micros(1)))
                .rules()
                .is_ok()
        );
    }
}
