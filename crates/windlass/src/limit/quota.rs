//! [`Quota`]: how much is allowed in what time.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use windlass_core::error::{Error, Result};
use windlass_core::rules::limit::{InvalidRule, MAX_LOG_UNITS, MAX_UNITS, Rule};

const SECOND: Duration = Duration::from_secs(1);

/// A rate limit: how much is allowed in what time.
///
/// ```
/// use std::time::Duration;
/// use windlass::Quota;
///
/// Quota::per_second(20).burst(40);           // 20 per second, up to 40 at once after a pause
/// Quota::every(Duration::from_secs(5));      // one every five seconds
/// Quota::per_minute(100).fixed_window();     // 100, then none until the window ends
/// Quota::per_hour(5_000).sliding_window();   // 5,000 in an hour, estimated
/// Quota::per_hour(5).sliding_log();          // 5 in any hour, exactly
/// ```
///
/// | algorithm | what it allows |
/// |---|---|
/// | token bucket (GCRA), the default | a steady rate, and a burst after a pause. Never more than the burst plus the refill since. |
/// | fixed window | all of it at once; a new window begins with the first call after the previous one ended. Up to twice as much where two windows meet. |
/// | sliding window | consecutive windows; the previous one counts in proportion to its overlap with the last period, as if its calls were evenly spread. After a burst at the end of a window, up to nearly twice as much within one period. |
/// | sliding log | never more than the amount in *any* interval of the period, and a call is denied only if it would exceed that. Stores the time of every admitted call, so it is for small amounts: [`Quota::MAX_LOG_UNITS`] at most. |
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[must_use = "a quota does nothing by itself; give it to a limiter"]
pub struct Quota {
    amount: u64,
    period: Duration,
    burst: Option<u64>,
    algorithm: Algorithm,
}

/// The algorithm of a [`Quota`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "kebab-case"))]
pub enum Algorithm {
    /// Units are refilled one by one, and accumulate up to the burst (GCRA).
    TokenBucket,
    /// A limit per window; a window begins with a call.
    FixedWindow,
    /// A limit in a window that ends now, estimated from the current and the previous window: exact if calls are evenly
    /// spread, up to twice the limit within one period if they come in bursts.
    SlidingWindow,
    /// A limit in any interval of the period, exactly, from the times of all admitted calls: at most
    /// [`Quota::MAX_LOG_UNITS`].
    SlidingLog,
}

impl fmt::Display for Algorithm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Algorithm::TokenBucket => "token-bucket",
            Algorithm::FixedWindow => "fixed-window",
            Algorithm::SlidingWindow => "sliding-window",
            Algorithm::SlidingLog => "sliding-log",
        })
    }
}

impl Quota {
    /// The largest number of units in a quota, or in one call.
    pub const MAX_UNITS: u64 = MAX_UNITS;
    /// The largest number of units in the quota of a sliding log, which stores every admitted call.
    pub const MAX_LOG_UNITS: u64 = MAX_LOG_UNITS;

    /// `amount` units per `period`. The [burst](Quota::burst) is `amount` by default. The period of a window is a whole
    /// number of microseconds; that of a token bucket is exact to the nanosecond.
    ///
    /// An amount of 0 allows the burst once, and nothing after it.
    pub const fn new(amount: u64, period: Duration) -> Quota {
        Quota {
            amount,
            period,
            burst: None,
            algorithm: Algorithm::TokenBucket,
        }
    }

    /// `amount` units per second.
    pub const fn per_second(amount: u64) -> Quota {
        Quota::new(amount, SECOND)
    }

    /// `amount` units per minute.
    pub const fn per_minute(amount: u64) -> Quota {
        Quota::new(amount, Duration::from_secs(60))
    }

    /// `amount` units per hour.
    pub const fn per_hour(amount: u64) -> Quota {
        Quota::new(amount, Duration::from_secs(3600))
    }

    /// `amount` units per day of 24 hours.
    pub const fn per_day(amount: u64) -> Quota {
        Quota::new(amount, Duration::from_secs(86_400))
    }

    /// One unit per `period`.
    pub const fn every(period: Duration) -> Quota {
        Quota::new(1, period)
    }

    /// How many units can accumulate, and so be taken at once. A window has no burst: checking such a limiter is an
    /// error.
    pub const fn burst(mut self, units: u64) -> Quota {
        self.burst = Some(units);
        self
    }

    /// Uses a fixed window.
    pub const fn fixed_window(self) -> Quota {
        self.algorithm(Algorithm::FixedWindow)
    }

    /// Uses a sliding window.
    pub const fn sliding_window(self) -> Quota {
        self.algorithm(Algorithm::SlidingWindow)
    }

    /// Uses a sliding log: at most [`Quota::MAX_LOG_UNITS`] units.
    ///
    /// # Cost
    ///
    /// A key in use takes 16 bytes for each admitted call of the last period in memory, and about 6 to 12 bytes in a
    /// file or on Redis. Each admitted call writes the whole log.
    pub const fn sliding_log(self) -> Quota {
        self.algorithm(Algorithm::SlidingLog)
    }

    /// Uses this algorithm.
    pub const fn algorithm(mut self, algorithm: Algorithm) -> Quota {
        self.algorithm = algorithm;
        self
    }

    /// The most units that one call can take: the burst, or the limit of a window.
    pub const fn limit(&self) -> u64 {
        match self.burst {
            Some(units) => units,
            None => self.amount,
        }
    }

    /// The time in which [`limit`](Quota::limit) units are refilled: the length of a window, or the time in which an
    /// empty bucket fills. `None` for a bucket that is not refilled.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use windlass::Quota;
    /// let quota = Quota::per_second(20).burst(40);
    /// assert_eq!(quota.refill_time(), Some(Duration::from_secs(2)));
    /// ```
    pub fn refill_time(&self) -> Option<Duration> {
        let nanos = self.period.as_nanos();
        match (self.algorithm, self.amount) {
            (Algorithm::TokenBucket, 0) => None,
            (Algorithm::TokenBucket, amount) => {
                let nanos = nanos.saturating_mul(self.limit().into()) / u128::from(amount);
                Some(Duration::from_nanos(
                    u64::try_from(nanos).unwrap_or(u64::MAX),
                ))
            }
            (Algorithm::FixedWindow | Algorithm::SlidingWindow | Algorithm::SlidingLog, _) => {
                Some(self.period)
            }
        }
    }

    /// The rule that stores apply.
    fn rule(&self) -> Result<Rule> {
        let refused = |message: String, hint: &'static str| {
            Error::invalid("use the quota", message).with_hint(hint)
        };
        let period = u64::try_from(self.period.as_micros()).unwrap_or(u64::MAX);
        let burst = self.burst.unwrap_or(self.amount);
        let whole = self.period.subsec_nanos().is_multiple_of(1_000) || period == 0;
        let rule = match (self.algorithm, self.burst) {
            (Algorithm::TokenBucket, _) if whole => Rule::bucket(self.amount, period, burst),
            (Algorithm::TokenBucket, _) => {
                // A thousand times the units in as many microseconds as the period has nanoseconds.
                let nanos = u64::try_from(self.period.as_nanos()).unwrap_or(u64::MAX);
                Rule::bucket(self.amount.saturating_mul(1_000), nanos, burst)
            }
            (algorithm, Some(_)) => {
                return Err(refused(
                    format!("a {algorithm} has no burst"),
                    "remove the burst, or use a token bucket",
                ));
            }
            (algorithm, None) if !whole => {
                return Err(refused(
                    format!(
                        "a {algorithm} of {:?} is not a whole number of microseconds",
                        self.period
                    ),
                    "choose a period of whole microseconds, or use a token bucket",
                ));
            }
            (Algorithm::FixedWindow, None) => Rule::fixed(self.amount, period),
            (Algorithm::SlidingWindow, None) => Rule::sliding(self.amount, period),
            (Algorithm::SlidingLog, None) => Rule::log(self.amount, period),
        };
        rule.map_err(|invalid| match invalid {
            InvalidRule::PeriodTooShort => refused(
                format!("a period of {:?} is too short", self.period),
                "the shortest period is 1 microsecond",
            ),
            InvalidRule::TooLong => refused(
                format!(
                    "refilling {burst} units at {} per {:?} would take more than 100 years",
                    self.amount, self.period
                ),
                "choose a shorter period or a smaller burst",
            ),
            InvalidRule::TooMany => refused(
                format!("more than {MAX_UNITS} units cannot be counted"),
                "count in larger units",
            ),
            InvalidRule::TooManyForLog => refused(
                format!(
                    "a sliding log counts at most {MAX_LOG_UNITS} units, and this one should count {}",
                    self.amount
                ),
                "use a sliding window, which estimates, or count in larger units",
            ),
        })
    }
}

/// One quota, or several that a limiter decides together. Converts from either.
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

    /// No part of a period is dropped.
    #[test]
    fn a_period_is_exact_to_the_nanosecond() {
        let rule = |quota: Quota| Quotas::from(quota).rules().map(|rules| rules[0]);
        let odd = Duration::from_nanos(1_999);
        assert_eq!(
            rule(Quota::every(odd)).unwrap(),
            Rule::bucket(1_000, 1_999, 1).unwrap()
        );
        let third = Quota::every(Duration::from_nanos(333_333_500)).burst(2);
        let expected = Rule::bucket(2, 666_667, 2).unwrap();
        assert_eq!(rule(third).unwrap(), expected);
        for window in [
            Quota::every(odd).fixed_window(),
            Quota::every(odd).sliding_window(),
            Quota::every(odd).sliding_log(),
        ] {
            let error = rule(window).unwrap_err();
            assert!(error.to_string().contains("whole number"), "{error}");
        }
    }

    #[test]
    fn invalid_quota_is_an_error_with_a_hint() {
        for (quota, word) in [
            (Quota::new(1, Duration::ZERO), "too short"),
            (Quota::new(1, Duration::from_nanos(999)), "too short"),
            (Quota::new(1, Duration::MAX), "100 years"),
            (Quota::per_day(1).burst(36_501), "100 years"),
            (Quota::per_second(u64::MAX), "cannot be counted"),
            (Quota::per_second(1).burst(u64::MAX), "cannot be counted"),
            (Quota::per_minute(3).burst(3).fixed_window(), "no burst"),
            (Quota::per_minute(3).burst(3).sliding_log(), "no burst"),
            (Quota::per_minute(10_001).sliding_log(), "at most 10000"),
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
