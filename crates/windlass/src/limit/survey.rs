//! Listing the limiters in use, without knowing their quotas.

use std::time::Duration;

use super::quota::Algorithm;
use crate::coordinator::Coordinator;
use windlass_core::error::Result;
use windlass_core::rules::limit::QuotaUsage;
use windlass_core::store::limit::{LimiterQuery, limiter_and_key};

/// The limiters in use: see [`Coordinator::survey_limiters`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct LimiterSurvey {
    /// The limiters, ordered by name.
    pub limiters: Vec<LimiterState>,
    /// Whether there are more, or may be.
    pub more: bool,
}

/// What can be seen of a limiter that is in use.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct LimiterState {
    /// `LIMITER` or `LIMITER/KEY`.
    pub name: String,
    /// The name of the limiter.
    #[cfg_attr(feature = "serde", serde(default))]
    pub limiter: String,
    /// The key, if the limiter was called with one.
    #[cfg_attr(feature = "serde", serde(default))]
    pub key: Option<String>,
    /// Its quotas that are in use.
    pub quotas: Vec<QuotaState>,
}

/// The state of one quota of a limiter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct QuotaState {
    /// The algorithm.
    pub algorithm: Algorithm,
    /// The units per [`period`](QuotaState::period); for a bucket in lowest terms: ten per second are one per 100
    /// milliseconds. `None` if it is not known, as the [`limit`](QuotaState::limit).
    pub amount: Option<u64>,
    /// The period; `None` for a bucket that is not refilled.
    #[cfg_attr(
        feature = "serde",
        serde(rename = "period_us", with = "crate::durations::as_optional_micros")
    )]
    pub period: Option<Duration>,
    /// The most that one call can take: the burst, or the limit of a window. If clients differ, that of the last call
    /// that was allowed. `None` if that call was made by a version that did not store it.
    pub limit: Option<u64>,
    /// The units available now; `None` if the limit is not known.
    pub remaining: Option<u64>,
    /// How long until all units are available again; `None` for never.
    #[cfg_attr(
        feature = "serde",
        serde(
            rename = "reset_after_ms",
            with = "crate::durations::as_optional_millis"
        )
    )]
    pub reset_after: Option<Duration>,
}

impl From<QuotaUsage> for QuotaState {
    fn from(usage: QuotaUsage) -> QuotaState {
        QuotaState {
            algorithm: match usage.algorithm {
                "fixed-window" => Algorithm::FixedWindow,
                "sliding-window" => Algorithm::SlidingWindow,
                "sliding-log" => Algorithm::SlidingLog,
                _ => Algorithm::TokenBucket,
            },
            amount: usage.amount,
            period: usage.period.map(Duration::from_micros),
            limit: usage.limit,
            remaining: usage.remaining,
            reset_after: usage.reset_after.map(Duration::from_micros),
        }
    }
}

impl Coordinator {
    /// At most `max` of the limiters in use, keys included, whose names match `pattern`, where `*` matches any text and
    /// `?` any character. Changes nothing.
    ///
    /// A limiter is in use until all of its units are available again.
    ///
    /// # Cost
    ///
    /// This is for monitoring, not for decisions, and bounded, because there may be millions of limiters. A file is
    /// searched for the first 10,000 of the namespace. On Redis, `SCAN` walks at most 100,000 keys of all kinds;
    /// in a larger database some limiters may be missing. [`LimiterSurvey::more`] says whether the list may be
    /// incomplete.
    ///
    /// # Errors
    ///
    /// [`Unsupported`](crate::ErrorKind::Unsupported) on a store without limiters.
    ///
    /// ```
    /// use windlass::Quota;
    ///
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> windlass::Result<()> {
    /// let w = windlass::connect("memory:").await?;
    /// w.limiter("login", Quota::per_minute(5)).check("ann").await?;
    /// let survey = w.survey_limiters("login/*", 100).await?;
    /// assert_eq!(survey.limiters[0].name, "login/ann");
    /// assert_eq!(survey.limiters[0].key.as_deref(), Some("ann"));
    /// assert_eq!(survey.limiters[0].quotas[0].remaining, Some(4));
    /// # Ok(()) }
    /// ```
    pub async fn survey_limiters(&self, pattern: &str, max: usize) -> Result<LimiterSurvey> {
        let query = LimiterQuery {
            prefix: self
                .namespace()
                .map_or(String::new(), |ns| format!("{ns}:")),
            pattern: pattern.to_owned(),
            most: max,
        };
        let found = self.limits().store().list(query).await;
        let found = found.map_err(|e| self.describe(e.with_operation("list limiters")))?;
        let limiters = found.limiters.into_iter().map(|(stored, usage)| {
            let (limiter, key) = limiter_and_key(&stored);
            LimiterState {
                name: match key {
                    Some(key) => format!("{limiter}/{key}"),
                    None => limiter.clone(),
                },
                limiter,
                key: key.map(str::to_owned),
                quotas: usage.into_iter().map(QuotaState::from).collect(),
            }
        });
        Ok(LimiterSurvey {
            limiters: limiters.collect(),
            more: found.more,
        })
    }
}
