//! Which limiters are in use, for somebody who brings no quota.

use std::time::Duration;

use super::quota::Algorithm;
use crate::coordinator::Coordinator;
use windlass_core::error::Result;
use windlass_core::rules::limit::QuotaUsage;
use windlass_core::store::limit::LimiterQuery;

/// The limiters that are in use, as far as they were [asked for](Coordinator::survey_limiters).
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct LimiterSurvey {
    /// In the order of their names.
    pub limiters: Vec<LimiterState>,
    /// Whether there are more, or may be.
    pub more: bool,
}

/// What can be seen of a limiter that is in use.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct LimiterState {
    /// `LIMITER` or `LIMITER/KEY`.
    pub name: String,
    /// Its quotas, as far as anything of them is used.
    pub quotas: Vec<QuotaState>,
}

/// How one quota of a limiter stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct QuotaState {
    /// How it is counted.
    pub algorithm: Algorithm,
    /// How many units come in, or are in a window, in each [`period`](QuotaState::period); for a bucket, in lowest
    /// terms: ten a second are one in 100 milliseconds. `None` if it is not known, as the
    /// [`limit`](QuotaState::limit).
    pub amount: Option<u64>,
    /// `None` for a bucket into which nothing comes in.
    pub period: Option<Duration>,
    /// The most that one call can have: the burst, or what a window holds; that of the last call that was allowed, if
    /// callers differ. `None` if that was before stores wrote it down.
    pub limit: Option<u64>,
    /// Units that could be had now. `None` if the limit is not known.
    pub remaining: Option<u64>,
    /// How long until all of it is there again; `None` for never.
    pub reset_after: Option<Duration>,
}

impl From<QuotaUsage> for QuotaState {
    fn from(seen: QuotaUsage) -> QuotaState {
        QuotaState {
            algorithm: match seen.algorithm {
                "fixed-window" => Algorithm::FixedWindow,
                "sliding-window" => Algorithm::SlidingWindow,
                _ => Algorithm::TokenBucket,
            },
            amount: seen.amount,
            period: seen.period.map(Duration::from_micros),
            limit: seen.limit,
            remaining: seen.remaining,
            reset_after: seen.reset_after.map(Duration::from_micros),
        }
    }
}

impl Coordinator {
    /// Up to `most` of the limiters that are in use, keys included, whose names match `pattern`, where `*` stands for
    /// any text and `?` for any character. It only looks.
    ///
    /// A limiter is in use until all of its units are there again.
    ///
    /// # Costs
    ///
    /// It is for people who watch, not for programs that decide, and bounded: there may be millions of limiters.
    /// A file is read for the first 10,000 of the namespace. Redis is walked through by `SCAN`, over 100,000 keys of all
    /// kinds at the most; whoever keeps more in one database may not see all of its limiters. If anything was left out,
    /// the survey [says so](LimiterSurvey::more).
    ///
    /// # Errors
    ///
    /// [`Unsupported`](crate::ErrorKind::Unsupported) on a store that has no limiters.
    ///
    /// ```
    /// use windlass::Quota;
    ///
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> windlass::Result<()> {
    /// let w = windlass::connect("memory:").await?;
    /// w.limiter("login", Quota::per_minute(5)).check("ann").await?;
    /// let seen = w.survey_limiters("login/*", 100).await?;
    /// assert_eq!(seen.limiters[0].name, "login/ann");
    /// assert_eq!(seen.limiters[0].quotas[0].remaining, Some(4));
    /// # Ok(()) }
    /// ```
    pub async fn survey_limiters(&self, pattern: &str, most: usize) -> Result<LimiterSurvey> {
        let search = LimiterQuery {
            prefix: self
                .namespace()
                .map_or(String::new(), |ns| format!("{ns}:")),
            pattern: pattern.to_owned(),
            most,
        };
        let found = self.limits().store.list(search).await;
        let found = found.map_err(|e| self.describe(e.with_operation("list limiters")))?;
        let limiters = found.limiters.into_iter().map(|(name, seen)| LimiterState {
            name,
            quotas: seen.into_iter().map(QuotaState::from).collect(),
        });
        Ok(LimiterSurvey {
            limiters: limiters.collect(),
            more: found.more,
        })
    }
}
