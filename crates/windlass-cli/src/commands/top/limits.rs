//! The rows of rate limits in use.

use std::time::Duration;

use serde::Serialize;
use windlass::{Algorithm, LimiterState, QuotaState};

use crate::commands::limit::typed;
use crate::humanize;

/// One row: a quota of a rate limit.
#[derive(Clone, Debug, PartialEq)]
pub(in crate::commands) struct LimitRow {
    pub(in crate::commands) name: String,
    pub(in crate::commands) quota: String,
    /// "17 of 20"
    pub(in crate::commands) left: String,
    /// The fraction of its units that is left.
    pub(super) part: Option<f64>,
    pub(super) full_in: Option<Duration>,
}

impl LimitRow {
    /// Time until all units are available again, `since` after the survey.
    pub(in crate::commands) fn full_in(&self, since: Duration) -> String {
        match self.full_in {
            Some(time) => humanize::duration(time.saturating_sub(since)),
            None => "never".to_owned(),
        }
    }
}

pub(in crate::commands) fn limit_rows(limiters: &[LimiterState]) -> Vec<LimitRow> {
    let quotas = limiters
        .iter()
        .flat_map(|limiter| limiter.quotas.iter().map(move |quota| (limiter, quota)));
    quotas
        .map(|(limiter, quota)| LimitRow {
            name: typed(&limiter.limiter, limiter.key.as_deref().unwrap_or_default()),
            quota: describe(quota),
            left: match (quota.remaining, quota.limit) {
                (Some(left), Some(limit)) => format!("{left} of {limit}"),
                _ => "?".to_owned(),
            },
            part: quota
                .remaining
                .zip(quota.limit)
                .map(|(left, limit)| left as f64 / limit.max(1) as f64),
            full_in: quota.reset_after,
        })
        .collect()
}

/// The JSON form of a rate limit.
#[derive(Serialize)]
pub(in crate::commands) struct LimiterAnswer<'a> {
    kind: &'static str,
    name: &'a str,
    limiter: &'a str,
    key: Option<&'a str>,
    quotas: Vec<QuotaAnswer>,
}

#[derive(Serialize)]
struct QuotaAnswer {
    algorithm: String,
    rate: Option<String>,
    limit: Option<u64>,
    remaining: Option<u64>,
    reset_after_ms: Option<u64>,
}

impl<'a> LimiterAnswer<'a> {
    /// A rate limit of which the store keeps nothing.
    pub(in crate::commands) fn unused(name: &'a str, limiter: &'a str, key: &'a str) -> Self {
        LimiterAnswer {
            kind: "limit",
            name,
            limiter,
            key: Some(key).filter(|key| !key.is_empty()),
            quotas: Vec::new(),
        }
    }
}

impl<'a> From<&'a LimiterState> for LimiterAnswer<'a> {
    fn from(limiter: &'a LimiterState) -> LimiterAnswer<'a> {
        let quota = |quota: &QuotaState| QuotaAnswer {
            algorithm: quota.algorithm.to_string(),
            rate: rate(quota),
            limit: quota.limit,
            remaining: quota.remaining,
            reset_after_ms: quota.reset_after.map(humanize::millis_ceil),
        };
        LimiterAnswer {
            kind: "limit",
            name: &limiter.name,
            limiter: &limiter.limiter,
            key: limiter.key.as_deref(),
            quotas: limiter.quotas.iter().map(quota).collect(),
        }
    }
}

/// `10/s, burst 20`, or `100/m fixed-window`.
fn describe(quota: &QuotaState) -> String {
    let rate = rate(quota).unwrap_or_else(|| "?".to_owned());
    match (quota.algorithm, quota.limit) {
        (Algorithm::TokenBucket, Some(burst)) if !rate.starts_with(&format!("{burst}/")) => {
            format!("{rate}, burst {burst}")
        }
        (Algorithm::TokenBucket, _) => rate,
        (algorithm, _) => format!("{rate} {algorithm}"),
    }
}

const UNITS: [(&str, u128); 4] = [
    ("s", 1_000_000),
    ("m", 60_000_000),
    ("h", 3_600_000_000),
    ("d", 86_400_000_000),
];

/// The rate as `--rate` takes it: `10/s`. Stores keep the rate of a bucket in lowest terms (one per 100 ms), so it is shown
/// in the shortest unit in which it is a whole number. The length of a window is shown as it is.
fn rate(quota: &QuotaState) -> Option<String> {
    let amount = quota.amount?;
    let Some(period) = quota.period else {
        return Some("0/s".to_owned());
    };
    let (units, micros) = (u128::from(amount), period.as_micros().max(1));
    let whole = |(name, unit): &(&str, u128)| match quota.algorithm {
        Algorithm::TokenBucket if (units * unit).is_multiple_of(micros) => {
            Some(format!("{}/{name}", units * unit / micros))
        }
        Algorithm::TokenBucket => None,
        _ => (*unit == micros).then(|| format!("{amount}/{name}")),
    };
    let found = UNITS.iter().find_map(whole);
    Some(found.unwrap_or_else(|| match micros {
        micros if micros.is_multiple_of(1_000_000) => format!("{amount}/{}s", micros / 1_000_000),
        micros if micros.is_multiple_of(1_000) => format!("{amount}/{}ms", micros / 1_000),
        micros => format!("{amount}/{micros}us"),
    }))
}

#[cfg(test)]
mod tests {
    use windlass::Quota;

    use super::*;

    #[tokio::test]
    async fn quotas_are_shown_as_configured() {
        let store = windlass::connect("memory:").await.unwrap();
        let every = |millis| Quota::every(Duration::from_millis(millis));
        for (quota, rate, shown) in [
            (Quota::per_second(10), "10/s", "10/s"),
            (Quota::per_second(10).burst(20), "10/s", "10/s, burst 20"),
            (Quota::per_second(10).burst(1), "10/s", "10/s, burst 1"),
            (Quota::per_minute(100), "100/m", "100/m"),
            (Quota::per_hour(5_000), "5000/h", "5000/h"),
            (Quota::per_day(1), "1/d", "1/d"),
            (every(7_000), "1/7s", "1/7s"),
            (every(1_001), "1/1001ms", "1/1001ms"),
            (every(250).burst(5), "4/s", "4/s, burst 5"),
            (Quota::per_second(2_000_000), "2000000/s", "2000000/s"),
            (Quota::per_second(0).burst(3), "0/s", "0/s, burst 3"),
            (
                Quota::per_minute(100).fixed_window(),
                "100/m",
                "100/m fixed-window",
            ),
            (
                Quota::new(10, Duration::from_millis(60_500)).sliding_window(),
                "10/60500ms",
                "10/60500ms sliding-window",
            ),
            (
                Quota::per_hour(10).sliding_log(),
                "10/h",
                "10/h sliding-log",
            ),
        ] {
            let limiter = store.limiter("x", quota);
            // All units, so that the limiter is still in use when it is read.
            let all = limiter.peek("").await.unwrap().remaining();
            let _ = limiter.check_n("", all).await.unwrap();
            let seen = store.survey_limiters("x", 1).await.unwrap().limiters;
            let json = serde_json::to_value(LimiterAnswer::from(&seen[0])).unwrap();
            assert_eq!(json["quotas"][0]["rate"], rate);
            let rows = limit_rows(&seen);
            assert_eq!(rows[0].quota, shown);
            assert!(rows[0].left.ends_with(&format!("of {all}")), "{rows:?}");
            limiter.reset("").await.unwrap();
        }
    }
}
