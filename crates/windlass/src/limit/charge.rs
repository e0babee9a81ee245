//! Charging for work after it is done, when its cost is known.

use std::time::Duration;

use super::limiter::Limiter;
use super::reservation::{Reserve, reservable, reserve_unrecorded};
use windlass_core::decision::{Basis, Decision};
use windlass_core::error::Result;
use windlass_core::rules::limit::{LimitOp, Rule};

/// The largest debt of a token bucket, as a multiple of its burst: one charge takes no more, and many charges together
/// hardly more.
const MAX_DEBT: u64 = 16;
/// How often a charge that other calls interfere with takes what they have left.
const MAX_TRIES: u32 = 32;

impl Limiter {
    /// As [`check`](Limiter::check), but takes nothing: allowed while one unit is available. For work whose cost is known
    /// only when it is done, and is then [charged](Limiter::charge).
    ///
    /// Unlike [`peek`](Limiter::peek), this is counted as a decision in the metrics.
    pub async fn check_available(&self, key: &str) -> Result<Decision> {
        let decision = self.peek(key).await;
        self.metrics.ended(&decision);
        decision
    }

    /// Takes `units` units for `key` that were used already. Returns how many were taken. It is not a decision, and not
    /// counted as one in the metrics.
    ///
    /// - A token bucket goes into debt, which is refilled before the next call is allowed: up to 16 times its burst.
    /// - A window, a log, and a bucket that is not refilled have no debt. What is left of them is taken.
    /// - Several quotas are charged together: each by as much as the one that has the least to give.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, any part of the units may have been taken.
    pub async fn charge(&self, key: &str, units: u64) -> Result<u64> {
        let rules = self.rules()?;
        let limit = rules.iter().map(Rule::limit).min().unwrap_or(0);
        let units = units.min(limit.saturating_mul(MAX_DEBT));
        let with_debt = rules.iter().all(reservable);
        let max_wait = max_wait(rules);
        let mut taken = 0;
        // The units of the next call: no more than a quota can ever have.
        let mut next = units.min(limit);
        let mut tries = 0;
        while next > 0 && tries < MAX_TRIES {
            let decision = match with_debt {
                true => match reserve_unrecorded(self, "charge", key, next, max_wait).await? {
                    Reserve::Granted(reservation) => reservation.decision(),
                    Reserve::Denied(decision) => decision,
                },
                false => {
                    let name = self.name_of("charge", key)?;
                    let reply = self.decide_named("charge", name, LimitOp::Take(next));
                    self.decision(&reply.await?, next)?
                }
            };
            if decision.is_allowed() {
                taken += next;
                next = (units - taken).min(limit);
            } else if decision.basis() == Basis::Assumed {
                break;
            } else {
                // Another call may take some of what is left before the next try does.
                next = decision.remaining().min(units - taken);
                tries += 1;
            }
        }
        Ok(taken)
    }
}

/// The time in which the largest debt is refilled.
fn max_wait(rules: &[Rule]) -> Duration {
    let refill = |rule: &Rule| match rule {
        Rule::Bucket(bucket) => Duration::from_micros(bucket.full.us),
        _ => Duration::ZERO,
    };
    let longest = rules.iter().map(refill).max().unwrap_or_default();
    longest.saturating_mul(MAX_DEBT as u32)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU64, Ordering};

    use super::*;
    use crate::{Clock, Options, Quota};
    use windlass_core::memory::MemoryStore;
    use windlass_core::name::Name;
    use windlass_core::store::Pending;
    use windlass_core::store::limit::{
        LimitOutcome, LimitRequest, LimitStore, LimiterPage, LimiterQuery,
    };

    /// A store in which another client takes a unit before each of the next calls.
    #[derive(Debug)]
    struct ContendedLimits {
        store: Arc<MemoryStore>,
        others: AtomicU64,
    }

    impl LimitStore for ContendedLimits {
        fn decide(&self, request: LimitRequest) -> Pending<'static, LimitOutcome> {
            let store = Arc::clone(&self.store);
            let take = |n: u64| n.checked_sub(1);
            let others = &self.others;
            let is_contended = others.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take);
            let is_contended = is_contended.is_ok();
            Box::pin(async move {
                if is_contended {
                    let other = LimitRequest {
                        want: LimitOp::Take(1),
                        ..request.clone()
                    };
                    LimitStore::decide(&*store, other).await?;
                }
                LimitStore::decide(&*store, request).await
            })
        }

        fn decide_all(
            &self,
            requests: Vec<LimitRequest>,
        ) -> Pending<'_, Vec<Result<LimitOutcome>>> {
            self.store.decide_all(requests)
        }

        fn reset(&self, name: Name) -> Pending<'_, bool> {
            self.store.reset(name)
        }

        fn list(&self, search: LimiterQuery) -> Pending<'_, LimiterPage> {
            self.store.list(search)
        }
    }

    /// A limiter whose next calls have to share with another client.
    async fn contended(quota: Quota, others: u64) -> Limiter {
        let clock = Clock::manual();
        let store = Arc::new(ContendedLimits {
            store: MemoryStore::private(clock.clone()),
            others: AtomicU64::new(others),
        });
        let w = Options::new()
            .clock(clock)
            .connect("memory:")
            .await
            .unwrap();
        w.with_limits(store).limiter("api", quota)
    }

    #[tokio::test]
    async fn charge_empties_a_window_that_others_use_meanwhile() {
        let windows = [
            Quota::per_hour(10).fixed_window(),
            Quota::per_hour(10).sliding_window(),
            Quota::per_hour(10).sliding_log(),
            Quota::per_second(0).burst(10),
        ];
        for quota in windows {
            for others in 0..=10 {
                let limiter = contended(quota, others).await;
                let charged = limiter.charge("a", 12).await.unwrap();
                assert_eq!(charged, 10 - others, "{quota:?} {others}");
                assert_eq!(limiter.peek("a").await.unwrap().remaining(), 0);
            }
        }
    }

    #[tokio::test]
    async fn debt_is_bounded_for_one_charge_and_for_all() {
        let limiter = contended(Quota::per_hour(10), 0).await;
        assert_eq!(limiter.charge("a", 1_000).await.unwrap(), 160);
        for _ in 0..20 {
            limiter.charge("a", 1_000).await.unwrap();
        }
        let wait = limiter.peek("a").await.unwrap().retry_after().unwrap();
        let hour = Duration::from_secs(3_600);
        assert!((15 * hour..=17 * hour).contains(&wait), "{wait:?}");
    }

    /// All of them at once: the window of a day is not charged more than the bucket has.
    #[tokio::test]
    async fn several_quotas_are_charged_together() {
        let bucket = Quota::per_second(5).burst(50);
        let limiter = contended(bucket, 0).await;
        let slow = limiter.with_quota([bucket, Quota::per_day(5_000)]);
        assert_eq!(slow.charge("buckets", 100).await.unwrap(), 100);
        let daily = Quota::per_day(5_000).fixed_window();
        let mixed = limiter.with_quota([bucket, daily]);
        assert_eq!(mixed.charge("mixed", 100).await.unwrap(), 50);
        let left = mixed.peek("mixed").await.unwrap();
        assert_eq!(left.remaining(), 0);
    }
}
