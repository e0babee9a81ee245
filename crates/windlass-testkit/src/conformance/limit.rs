//! Rate limiters: what all algorithms have in common.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use windlass::{Basis, ErrorKind, OnStoreError, Options, Quota, Reserve};

use super::{SOON, TestStore};
use crate::eventually;

pub(super) const HOUR: Duration = Duration::from_secs(3600);

pub(super) fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

/// A denied call is not charged, nor is an inspection.
pub async fn denied_requests_are_not_charged(store: &TestStore) {
    let w = store.connect().await;
    for (i, quota) in [
        Quota::per_hour(10),
        Quota::per_hour(10).fixed_window(),
        Quota::per_hour(10).sliding_window(),
        Quota::per_hour(10).sliding_log(),
        Quota::per_hour(0).burst(10),
    ]
    .into_iter()
    .enumerate()
    {
        let limiter = w.limiter(&format!("charged-{i}"), quota);
        assert!(limiter.check_n("a", 7).await.unwrap().is_allowed());
        for _ in 0..20 {
            assert!(!limiter.check_n("a", 4).await.unwrap().is_allowed());
            let seen = limiter.peek_n("a", 4).await.unwrap();
            assert!(!seen.is_allowed());
            assert_eq!(seen.remaining(), 3, "{quota:?}");
            assert!(limiter.peek_n("a", 3).await.unwrap().is_allowed());
        }
        assert!(limiter.check_n("a", 3).await.unwrap().is_allowed());
    }
}

/// Either all quotas are charged, or none.
pub async fn several_quotas_are_decided_together(store: &TestStore) {
    let w = store.connect().await;
    let (fast, slow) = (Quota::new(5, HOUR), Quota::new(8, HOUR).fixed_window());
    let limiter = w.limiter("both", [fast, slow]);
    let first = limiter.check_n("a", 5).await.unwrap();
    assert!(first.is_allowed());
    assert_eq!(
        (first.limit(), first.remaining(), first.quota_index()),
        (5, 0, 0),
        "the tighter one"
    );
    // The first quota denies: the second must not be charged.
    for _ in 0..5 {
        assert!(!limiter.check_n("a", 1).await.unwrap().is_allowed());
    }
    let wider = limiter.with_quota([fast.burst(100), slow]);
    let denied = wider.check_n("a", 4).await.unwrap();
    assert!(!denied.is_allowed(), "5 of 8 are used");
    assert_eq!(denied.quota_index(), 1);
    assert!(wider.check_n("a", 3).await.unwrap().is_allowed());
    assert!(!wider.check_n("a", 1).await.unwrap().is_allowed());
    // A client that uses only the first quota leaves the second unchanged.
    let first_alone = w.limiter("both", fast.burst(100));
    assert!(first_alone.check_n("a", 1).await.unwrap().is_allowed());
    assert!(!wider.check_n("a", 1).await.unwrap().is_allowed());
    // The wait covers both quotas.
    let denied = wider.check_n("a", 8).await.unwrap();
    assert!(denied.retry_after().unwrap() > ms(3_000_000), "{denied:?}");
    assert!(wider.check_n("a", 9).await.unwrap().is_never());
}

/// Many keys in one call, each decided separately.
pub async fn many_keys_in_one_call(store: &TestStore) {
    let w = store.connect().await;
    let limiter = w.limiter("many", Quota::per_hour(2));
    let none: [&str; 0] = [];
    assert!(limiter.check_all(none).await.is_empty());
    let keys: Vec<String> = (0..2_500).map(|i| format!("user-{}", i % 1_000)).collect();
    let answers = limiter.check_all(&keys).await;
    assert_eq!(answers.len(), keys.len());
    for (i, answer) in answers.into_iter().enumerate() {
        // The first two of each come before the third.
        assert_eq!(answer.unwrap().is_allowed(), i < 2_000, "number {i}");
    }
    let mixed = limiter
        .check_all(["fresh", "not\nallowed", "fresh", "fresh"])
        .await;
    let allowed: Vec<Option<bool>> = mixed
        .into_iter()
        .map(|a| a.ok().map(|d| d.is_allowed()))
        .collect();
    assert_eq!(allowed, [Some(true), None, Some(true), Some(false)]);
    let by_weight = limiter
        .check_all_n([("heavy", 3), ("heavy", 2), ("heavy", 1)])
        .await;
    let by_weight: Vec<bool> = by_weight
        .into_iter()
        .map(|a| a.unwrap().is_allowed())
        .collect();
    assert_eq!(by_weight, [false, true, false]);
}

/// Reservations queue up, and can be cancelled.
pub async fn reservations_queue_and_can_be_cancelled(store: &TestStore) {
    let w = store.connect().await;
    let limiter = w.limiter("reserve", Quota::every(HOUR).burst(2));
    let reserve = |n, wait| limiter.reserve("a", n, wait);
    let now = reserve(2, HOUR).await.unwrap().granted().unwrap();
    assert_eq!(now.delay(), Duration::ZERO);
    let first = reserve(1, HOUR * 10).await.unwrap().granted().unwrap();
    assert!(first.delay() <= HOUR && first.delay() > HOUR - SOON);
    let second = reserve(2, HOUR * 10).await.unwrap().granted().unwrap();
    assert!(second.delay() <= HOUR * 3 && second.delay() > HOUR * 3 - SOON);
    // Not within the caller's wait; never.
    let Reserve::Denied(decision) = reserve(1, HOUR).await.unwrap() else {
        panic!("granted too early")
    };
    assert!(!decision.is_never());
    let Reserve::Denied(decision) = reserve(3, HOUR * 1000).await.unwrap() else {
        panic!("more than the burst")
    };
    assert!(decision.is_never());
    // The second reservation is behind the first.
    assert!(!first.cancel().await.unwrap());
    assert!(second.cancel().await.unwrap());
    let third = reserve(1, HOUR * 10).await.unwrap().granted().unwrap();
    assert!(
        third.delay() <= HOUR * 2 && third.delay() > HOUR * 2 - SOON,
        "{:?}",
        third.delay()
    );
    assert!(!now.cancel().await.unwrap(), "its time had come");
    let window = w.limiter("window", Quota::per_hour(2).fixed_window());
    let refused = window.reserve("a", 1, HOUR).await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::InvalidInput);
    // A rate of 0 spends the burst, and no more.
    let once = w.limiter("once", Quota::per_second(0).burst(2));
    assert!(
        once.reserve("a", 2, HOUR)
            .await
            .unwrap()
            .granted()
            .is_some()
    );
    let Reserve::Denied(decision) = once.reserve("a", 1, HOUR * 1000).await.unwrap() else {
        panic!("more than all")
    };
    assert!(decision.is_never());
}

/// Waits for units, with and without a time limit.
pub async fn acquire_waits_for_units(store: &TestStore) {
    let w = store.connect().await;
    for (i, quota) in [
        Quota::every(ms(100)).burst(1),
        Quota::new(1, ms(100)).fixed_window(),
        Quota::new(1, ms(100)).sliding_window(),
    ]
    .into_iter()
    .enumerate()
    {
        let limiter = w.limiter(&format!("acquire-{i}"), quota);
        let begun = Instant::now();
        for _ in 0..3 {
            assert!(limiter.acquire("a", 1).await.unwrap().is_allowed());
        }
        let took = begun.elapsed();
        assert!(took >= ms(200), "{quota:?}: {took:?}");
        // The answer is immediate if it cannot be yes.
        let begun = Instant::now();
        let denied = limiter.acquire_within("a", 1, ms(10)).await.unwrap();
        assert!(
            !denied.is_allowed() && begun.elapsed() < ms(90),
            "{quota:?}: {denied:?}"
        );
        assert!(limiter.acquire("a", 2).await.unwrap().is_never());
    }
    // A cancelled wait leaves nothing behind.
    let slow = w.limiter("slow", Quota::every(HOUR).burst(1));
    assert!(slow.acquire("a", 1).await.unwrap().is_allowed());
    let waiting = slow.acquire("a", 1);
    assert!(tokio::time::timeout(ms(50), waiting).await.is_err());
    let given_back = eventually(SOON, || async {
        let seen = slow.peek("a").await.unwrap();
        seen.retry_after().unwrap() <= HOUR
    });
    assert!(given_back.await, "a place was left behind");
}

/// After a reset nothing is used.
pub async fn reset_clears_usage(store: &TestStore) {
    let w = store.connect().await;
    let limiter = w.limiter("reset", Quota::per_hour(1));
    assert!(!limiter.reset("a").await.unwrap(), "there was nothing");
    assert!(limiter.check("a").await.unwrap().is_allowed());
    assert!(!limiter.check("a").await.unwrap().is_allowed());
    assert!(limiter.reset("a").await.unwrap());
    assert!(limiter.check("a").await.unwrap().is_allowed());
}

/// A different quota under the same name keeps the usage.
pub async fn usage_survives_a_changed_quota(store: &TestStore) {
    let w = store.connect().await;
    let slow = w.limiter("change", Quota::per_hour(10));
    assert!(slow.check_n("a", 10).await.unwrap().is_allowed());
    // Usage is kept in units, not in time: 10 of 20 are left, and 20 again after a second.
    let began = Instant::now();
    let fast = slow.with_quota(Quota::per_second(10).burst(20));
    assert!(fast.check_n("a", 10).await.unwrap().is_allowed());
    let allowed = fast.check_n("a", 20).await.unwrap().is_allowed();
    assert!(!allowed || began.elapsed() > Duration::from_secs(2));
    let soon = eventually(SOON, || async {
        fast.check_n("a", 20).await.unwrap().is_allowed()
    });
    assert!(soon.await, "it goes on at the old rate");
    let window = w.limiter("window", Quota::per_hour(5).fixed_window());
    assert!(window.check_n("a", 5).await.unwrap().is_allowed());
    assert!(!window.check("a").await.unwrap().is_allowed());
    let larger = window.with_quota(Quota::per_hour(6).fixed_window());
    assert!(larger.check("a").await.unwrap().is_allowed());
    assert!(!larger.check("a").await.unwrap().is_allowed());
}

/// Two algorithms under one name are an error.
pub async fn mixed_algorithms_are_rejected(store: &TestStore) {
    let w = store.connect().await;
    let quota = Quota::per_hour(5);
    let all = [
        quota,
        quota.fixed_window(),
        quota.sliding_window(),
        quota.sliding_log(),
    ];
    for one in all {
        for other in all.into_iter().filter(|other| *other != one) {
            let limiter = w.limiter("mixed", one);
            assert!(limiter.check("a").await.unwrap().is_allowed());
            let mixed = w.limiter("mixed", other);
            let error = mixed.check("a").await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::WrongType, "{error}");
            assert!(error.hint().unwrap().contains("reset"));
            assert!(mixed.peek("a").await.is_err());
            let all = mixed.check_all(["a", "b"]).await;
            assert!(all[0].is_err() && all[1].is_ok());
            assert_eq!(
                limiter.peek("a").await.unwrap().remaining(),
                4,
                "undisturbed"
            );
            mixed.reset("a").await.unwrap();
            mixed.reset("b").await.unwrap();
        }
    }
}

/// An error for each invalid input, and correct answers at the limits.
pub async fn invalid_limiter_input_is_rejected(store: &TestStore) {
    let w = store.connect().await;
    for quota in [
        Quota::new(1, Duration::ZERO),
        Quota::new(1, Duration::from_nanos(1)),
        Quota::new(1, Duration::MAX),
        Quota::per_second(u64::MAX),
        Quota::per_second(1).burst(u64::MAX),
        Quota::per_second(1).burst(2).sliding_window(),
        Quota::per_second(1).burst(2).sliding_log(),
    ] {
        let limiter = w.limiter("bad", quota);
        let error = limiter.check("a").await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidInput, "{quota:?}");
        assert!(error.hint().is_some());
        assert!(limiter.peek("a").await.is_err());
        assert!(limiter.acquire("a", 1).await.is_err());
        assert!(limiter.reserve("a", 1, HOUR).await.is_err());
        assert!(limiter.check_all(["a"]).await[0].is_err());
    }
    let none: [Quota; 0] = [];
    assert!(w.limiter("bad", none).check("a").await.is_err());
    let limiter = w.limiter("fine", Quota::per_second(5));
    assert!(limiter.check("a\tb").await.is_err());
    assert!(limiter.check(&"x".repeat(1024)).await.is_err());
    assert!(
        w.limiter("", Quota::per_second(5))
            .check("a")
            .await
            .is_err()
    );
    assert!(
        // The longest key, whatever prefix the store adds.
        Options::new()
            .connect(store.url())
            .await
            .unwrap()
            .limiter("windlass:", Quota::per_second(5))
            .check("a")
            .await
            .is_err()
    );
    assert!(limiter.check_n("a", Quota::MAX_UNITS + 1).await.is_err());
    assert!(limiter.check_n("a", u64::MAX).await.is_err());
    assert!(
        limiter
            .check_n("a", Quota::MAX_UNITS)
            .await
            .unwrap()
            .is_never()
    );
    assert!(limiter.check_n("a", 6).await.unwrap().is_never());
    assert!(limiter.check_n("a", 5).await.unwrap().is_allowed());
    // A cost of zero is always allowed.
    let nothing = w.limiter("nothing", Quota::per_second(0).burst(0));
    assert!(nothing.check_n("a", 0).await.unwrap().is_allowed());
    assert!(nothing.check("a").await.unwrap().is_never());
    // Shorter than a millisecond.
    let quick = w.limiter("quick", Quota::new(1, Duration::from_micros(50)));
    assert!(quick.acquire("a", 1).await.unwrap().is_allowed());
    assert!(quick.acquire("a", 1).await.unwrap().is_allowed());
    let window = w.limiter(
        "quick-window",
        Quota::new(1, Duration::from_micros(50)).fixed_window(),
    );
    assert!(window.acquire("a", 1).await.unwrap().is_allowed());
    assert!(window.acquire("a", 1).await.unwrap().is_allowed());
    // Names that contain braces.
    for key in ["{user}:1", "}{", "{}", "a{b", "ä/ö ü"] {
        let limiter = w.limiter("{braces}", Quota::per_hour(1));
        assert!(limiter.check(key).await.unwrap().is_allowed(), "{key}");
        assert!(!limiter.check(key).await.unwrap().is_allowed(), "{key}");
    }
}

/// Names, keys and namespaces do not interfere; nor does a lock of the same name.
pub async fn limiters_do_not_interfere(store: &TestStore) {
    let (a, b) = (
        store.connect().await,
        store.connect_with(Options::new().namespace("ns")).await,
    );
    let guard = a.lock("api").acquire().await.unwrap();
    for w in [&a, &b] {
        for name in ["api", "other"] {
            let limiter = w.limiter(name, Quota::per_hour(1));
            for key in ["", "ann", "bob"] {
                assert!(
                    limiter.check(key).await.unwrap().is_allowed(),
                    "{name} {key}"
                );
                assert!(
                    !limiter.check(key).await.unwrap().is_allowed(),
                    "{name} {key}"
                );
            }
        }
    }
    assert!(guard.release().await.unwrap().was_held());
}

/// However many concurrent requests there are, no more is allowed than was refilled.
pub async fn concurrent_requests_never_exceed_the_quota(store: &TestStore) {
    const RATE: u64 = 500;
    const BURST: u64 = 50;
    let clients = [store.connect().await, store.connect().await];
    let allowed = Arc::new(AtomicU64::new(0));
    let begun = Instant::now();
    let end = begun + ms(800);
    let tasks: Vec<_> = (0..24)
        .map(|i| {
            let limiter = clients[i % 2].limiter("crowd", Quota::per_second(RATE).burst(BURST));
            let allowed = Arc::clone(&allowed);
            tokio::spawn(async move {
                while Instant::now() < end {
                    let units = 1 + (i as u64) % 3;
                    if limiter.check_n("all", units).await.unwrap().is_allowed() {
                        allowed.fetch_add(units, Ordering::Relaxed);
                    }
                    tokio::task::yield_now().await;
                }
            })
        })
        .collect();
    for task in tasks {
        task.await.unwrap();
    }
    let took = begun.elapsed();
    let most = BURST as f64 + RATE as f64 * took.as_secs_f64();
    let allowed = allowed.load(Ordering::Relaxed) as f64;
    assert!(allowed <= most, "{allowed} of {most}");
    assert!(
        // Far below the possible: a busy machine may not send enough requests.
        allowed >= BURST as f64 + RATE as f64 * 0.8 * 0.25,
        "{allowed} is too little"
    );
}

/// A policy for store failures changes nothing while the store works.
pub async fn failure_policy_changes_nothing_while_the_store_works(store: &TestStore) {
    let w = store.connect().await;
    for policy in [OnStoreError::Allow, OnStoreError::Deny, OnStoreError::Local] {
        let limiter = w
            .limiter(&format!("policy-{policy:?}"), Quota::per_hour(1))
            .on_store_error(policy);
        let first = limiter.check("a").await.unwrap();
        assert!(first.is_allowed());
        assert_eq!(first.basis(), Basis::Store);
        assert!(!limiter.check("a").await.unwrap().is_allowed());
        let error = limiter.with_quota(Quota::per_hour(1).fixed_window());
        assert!(error.check("a").await.is_err(), "the question was wrong");
    }
}

/// Keys come from untrusted input: none touches another limiter.
pub async fn no_key_touches_another_limiter(store: &TestStore) {
    let w = store.connect().await;
    let quota = Quota::per_hour(1);
    let (api, admin) = (w.limiter("api", quota), w.limiter("api/admin", quota));
    for key in ["admin/ann", "admin", "/admin/ann", "%2Fadmin/ann"] {
        assert!(api.check(key).await.unwrap().is_allowed());
    }
    assert!(admin.check("ann").await.unwrap().is_allowed());
    assert!(admin.check("").await.unwrap().is_allowed());
    assert!(!admin.check("ann").await.unwrap().is_allowed());
}
