//! Rate limiters and idempotent execution.

use std::time::Duration;

use windlass::{Begun, OnFailure, OnStoreError, Quota, Ran};

use super::Recorded;

impl Recorded {
    fn decided(&self, values: &str) -> f64 {
        self.sum("windlass_limit_decisions_total", values)
    }

    fn once(&self, values: &str) -> f64 {
        self.sum("windlass_once_total", values)
    }
}

#[tokio::test]
async fn each_decision_is_counted_once_by_limiter_and_basis() {
    let recorded = Recorded::start();
    let w = windlass::connect("memory:").await.unwrap();
    let api = w.limiter("api", Quota::per_hour(5));
    for _ in 0..7 {
        let _ = api.check("ann-key").await.unwrap();
    }
    let _ = api.check_n("bob-key", 2).await.unwrap();
    let many = api.check_all(["x", "y"]).await;
    assert_eq!(many.len(), 2);
    let _ = api.peek("ann-key").await.unwrap();
    let _ = api.check_now("w", 1).unwrap().unwrap();
    let _ = api.acquire_within("z", 1, Duration::ZERO).await.unwrap();
    api.check_n("ann-key", u64::MAX).await.unwrap_err();
    assert_eq!(recorded.decided("api allowed store"), 5.0 + 1.0 + 2.0 + 2.0);
    assert_eq!(recorded.decided("api denied store"), 2.0);
    assert_eq!(recorded.decided("api error"), 1.0);

    let leased = w.limiter("events", Quota::per_hour(100)).leased();
    let key = leased.key("ann-key").unwrap();
    for i in 0..200 {
        match i % 2 {
            0 => drop(leased.check("ann-key").await.unwrap()),
            _ => drop(key.check().await.unwrap()),
        }
    }
    let now = (0..10).filter_map(|_| key.check_now()).count() as f64;
    assert_eq!(recorded.decided("events allowed"), 100.0);
    assert_eq!(recorded.decided("events denied"), 100.0 + now);
    assert_eq!(recorded.decided("events"), 200.0 + now);
    assert!(recorded.decided("events leased") > 100.0);
    assert!(!recorded.text().contains("-key"), "a key is never a label");
}

#[tokio::test]
async fn batch_of_checks_that_all_fail_is_a_failed_call() {
    let recorded = Recorded::start();
    let folder = tempfile::tempdir().unwrap();
    let url = format!("file:{}", folder.path().join("limits.db").display());
    let w = windlass::connect(&url).await.unwrap();
    let calls = |values| recorded.sum("windlass_store_call_seconds_count", values);
    let bucket = w.limiter("api", Quota::per_hour(5));
    let window = w.limiter("api", Quota::per_hour(5).fixed_window());
    let decisions = bucket.check_all(["x", "y"]).await;
    assert!(decisions.iter().all(Result::is_ok), "{decisions:?}");
    assert_eq!((calls("check ok"), calls("check error")), (1.0, 0.0));
    // Another algorithm is an error for the keys that are in use.
    let decisions = window.check_all(["x", "z"]).await;
    assert!(decisions[0].is_err() && decisions[1].is_ok());
    assert_eq!((calls("check ok"), calls("check error")), (2.0, 0.0));
    let decisions = window.check_all(["x", "y"]).await;
    assert!(decisions.iter().all(Result::is_err), "{decisions:?}");
    assert_eq!((calls("check ok"), calls("check error")), (2.0, 1.0));
}

#[tokio::test]
async fn limiters_beyond_the_bound_share_one_label() {
    let recorded = Recorded::start();
    let w = windlass::connect("memory:").await.unwrap();
    for i in 0..150 {
        let limiter = w.limiter(&format!("limiter-{i}"), Quota::per_hour(5));
        assert!(limiter.check("").await.unwrap().is_allowed());
    }
    assert_eq!(recorded.decided("allowed limiter-99"), 1.0);
    assert_eq!(recorded.decided("allowed limiter-100"), 0.0);
    assert_eq!(recorded.decided("allowed other"), 50.0);
}

#[tokio::test]
async fn decisions_without_the_store_are_counted_as_such() {
    let recorded = Recorded::start();
    let server = windlass_testkit::RedisServer::start().unwrap();
    let w = windlass::connect(&server.url()).await.unwrap();
    let with = |fallback| {
        let limiter = w.limiter("api", Quota::per_hour(2));
        limiter.on_store_error(fallback)
    };
    assert!(
        with(OnStoreError::Deny)
            .check("a")
            .await
            .unwrap()
            .is_allowed()
    );
    server.kill().unwrap();
    for fallback in [OnStoreError::Deny, OnStoreError::Allow, OnStoreError::Local] {
        let _ = with(fallback).check("a").await.unwrap();
    }
    w.limiter("api", Quota::per_hour(2))
        .check("a")
        .await
        .unwrap_err();
    assert_eq!(recorded.decided("allowed store"), 1.0);
    assert_eq!(recorded.decided("denied assumed"), 1.0);
    assert_eq!(recorded.decided("allowed assumed"), 1.0);
    assert_eq!(recorded.decided("allowed local"), 1.0);
    assert_eq!(recorded.decided("error none"), 1.0);
    assert_eq!(recorded.decided(""), 5.0);
}

#[tokio::test]
async fn each_idempotent_execution_is_counted_once_by_outcome() {
    let recorded = Recorded::start();
    let w = windlass::connect("memory:").await.unwrap();
    let done = |_| async { Ok::<_, String>(b"receipt".to_vec()) };
    let failing = |_| async { Err::<Vec<u8>, _>("no".to_owned()) };
    let once = w.once("secret-key").payload("1");
    assert!(matches!(once.run(done).await.unwrap(), Ran::First(_)));
    assert!(matches!(once.run(done).await.unwrap(), Ran::Again(_)));
    once.clone().payload("2").run(done).await.unwrap_err();
    let retry = w.once("retry-key");
    assert!(matches!(retry.run(failing).await.unwrap(), Ran::Failed(_)));
    let keep = w.once("keep-key").on_failure(OnFailure::Keep);
    assert!(matches!(keep.run(failing).await.unwrap(), Ran::Failed(_)));
    assert!(matches!(
        keep.run(failing).await.unwrap(),
        Ran::FailedBefore(_)
    ));
    let begun = w.once("dropped-key").begin().await.unwrap();
    let busy = w.once("dropped-key").try_begin().await.unwrap();
    assert!(matches!(busy, Begun::Busy(_)));
    drop(begun);
    for (outcome, count) in [
        ("done", 1.0),
        ("replayed", 2.0),
        ("mismatch", 1.0),
        ("forgotten", 1.0),
        ("failed", 1.0),
        ("busy", 1.0),
        ("dropped", 1.0),
    ] {
        assert_eq!(recorded.once(outcome), count, "{outcome}");
    }
    assert_eq!(recorded.once(""), 8.0);
    assert!(!recorded.text().contains("-key"), "a key is never a label");
}
