//! Leased limiters whose store fails.

use std::time::{Duration, Instant};

use windlass::{Basis, ErrorKind, LeasedLimiter, OnStoreError, Options, Quota};
use windlass_testkit::conformance::SOON;
use windlass_testkit::{Direction, FaultProxy, RedisServer, eventually};

const MS: Duration = Duration::from_millis(1);
const CALL: Duration = Duration::from_millis(300);
const CALLERS: usize = 40;

/// Sends all requests concurrently, and returns the results.
async fn all_at_once(leased: &LeasedLimiter) -> Vec<windlass::Result<windlass::Decision>> {
    let tasks: Vec<_> = (0..CALLERS)
        .map(|_| {
            let leased = leased.clone();
            tokio::spawn(async move { leased.check("a").await })
        })
        .collect();
    let mut answers = Vec::new();
    for task in tasks {
        answers.push(task.await.unwrap());
    }
    answers
}

/// Forty concurrent waiters wait for an unresponsive store as long as one does.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn concurrent_waiters_share_one_failure() {
    let server = RedisServer::start().unwrap();
    let proxy = FaultProxy::start(server.addr()).unwrap();
    let w = Options::new()
        .call_timeout(CALL)
        .connect(&format!("redis://{}", proxy.addr()))
        .await
        .unwrap();
    let leased = w.limiter("api", Quota::per_hour(1_000)).leased();
    assert!(leased.check("b").await.unwrap().is_allowed());
    proxy.blackhole(Direction::Both);
    let (begun, calls) = (Instant::now(), leased.store_calls());
    for answer in all_at_once(&leased).await {
        let error = answer.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::OutcomeUnknown, "{error:?}");
        assert_eq!(error.name(), Some("api/a"), "{error:?}");
    }
    let took = begun.elapsed();
    // One after the other would take twelve seconds.
    assert!(took < 8 * CALL, "{took:?}");
    assert!(leased.store_calls() - calls < 8, "they asked one by one");
    proxy.heal();
    // Later callers are not affected by the failure.
    let back = eventually(SOON, || async { leased.check("a").await.is_ok() });
    assert!(back.await);
    for answer in all_at_once(&leased).await {
        assert!(answer.unwrap().is_allowed());
    }
}

/// With a policy, only the callers that detect the failure wait: no later caller, even if those
/// callers were cancelled.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn dead_store_costs_a_leased_limiter_microseconds() {
    let server = RedisServer::start().unwrap();
    for policy in [OnStoreError::Allow, OnStoreError::Deny, OnStoreError::Local] {
        for patient in [true, false] {
            let proxy = FaultProxy::start(server.addr()).unwrap();
            let url = format!("redis://{}", proxy.addr());
            let w = windlass::connect(&url).await.unwrap();
            let limiter = w
                .limiter(&format!("{policy:?}-{patient}"), Quota::per_hour(10_000))
                .on_store_error(policy)
                .call_timeout(CALL);
            let leased = limiter.leased();
            assert!(leased.check("b").await.unwrap().is_allowed());
            proxy.blackhole(Direction::Both);
            let begun = Instant::now();
            if patient {
                for answer in all_at_once(&leased).await {
                    let allowed = answer.unwrap().is_allowed();
                    assert_eq!(allowed, policy != OnStoreError::Deny);
                }
            } else {
                // Each for less than the call timeout, all together for longer.
                for _ in 0..20 {
                    let _ = tokio::time::timeout(20 * MS, leased.check("a")).await;
                }
            }
            let took = begun.elapsed();
            assert!(took < 8 * CALL, "{policy:?} {patient}: {took:?}");
            let begun = Instant::now();
            for _ in 0..1_000 {
                let decision = leased.check("a").await.unwrap();
                assert_ne!(decision.basis(), Basis::Store);
            }
            let took = begun.elapsed();
            assert!(took < CALL, "{policy:?} {patient}: {took:?} for 1,000");
        }
    }
}
