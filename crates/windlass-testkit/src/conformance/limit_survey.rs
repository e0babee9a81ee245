//! The survey of limiters in use, without knowing their quotas.

use std::time::Duration;

use windlass::{Algorithm, Coordinator, LimiterState, Options, Quota};

use super::{SOON, TestStore};
use crate::eventually;

async fn survey(w: &Coordinator, pattern: &str) -> Vec<LimiterState> {
    let seen = w.survey_limiters(pattern, 1_000).await.unwrap();
    assert!(!seen.more, "{seen:?}");
    seen.limiters
}

fn names(seen: &[LimiterState]) -> Vec<&str> {
    seen.iter().map(|limiter| limiter.name.as_str()).collect()
}

/// The survey shows what callers with the quota get.
pub async fn survey_matches_limiter_answers(store: &TestStore) {
    let w = store.connect().await;
    assert!(survey(&w, "*").await.is_empty());
    // So slow that nothing is refilled while the test runs.
    for (name, quota, algorithm, in_lowest_terms) in [
        (
            "bucket",
            Quota::per_day(4).burst(9),
            Algorithm::TokenBucket,
            (Some(1), Some(Duration::from_secs(6 * 3600))),
        ),
        (
            "fixed",
            Quota::per_day(9).fixed_window(),
            Algorithm::FixedWindow,
            (Some(9), Some(Duration::from_secs(86_400))),
        ),
        (
            "sliding",
            Quota::per_day(9).sliding_window(),
            Algorithm::SlidingWindow,
            (Some(9), Some(Duration::from_secs(86_400))),
        ),
        (
            "log",
            Quota::per_day(9).sliding_log(),
            Algorithm::SlidingLog,
            (Some(9), Some(Duration::from_secs(86_400))),
        ),
        (
            "spent",
            Quota::per_day(0).burst(9),
            Algorithm::TokenBucket,
            (Some(0), None),
        ),
    ] {
        let limiter = w.limiter(name, quota);
        // Neither an inspection nor a denied request uses anything.
        let _ = limiter.peek("ann").await.unwrap();
        assert!(!limiter.check_n("ann", 10).await.unwrap().is_allowed());
        assert!(survey(&w, name).await.is_empty(), "{name}");
        for taken in [3, 1] {
            assert!(limiter.check_n("ann", taken).await.unwrap().is_allowed());
            let before = limiter.peek("ann").await.unwrap();
            let seen = survey(&w, &format!("{name}/*")).await;
            let after = limiter.peek("ann").await.unwrap();
            assert_eq!(names(&seen), [format!("{name}/ann")]);
            let [quota] = seen[0].quotas[..] else {
                panic!("{seen:?}");
            };
            assert_eq!(quota.algorithm, algorithm);
            assert_eq!((quota.amount, quota.period), in_lowest_terms, "{name}");
            assert_eq!((quota.limit, before.limit()), (Some(9), 9), "{name}");
            assert_eq!(quota.remaining, Some(before.remaining()), "{name}");
            assert!(quota.reset_after <= before.reset_after(), "{name}");
            assert!(quota.reset_after >= after.reset_after(), "{name}");
        }
        assert!(limiter.reset("ann").await.unwrap());
        assert!(survey(&w, "*").await.is_empty(), "{name} was reset");
    }
    // Several quotas are listed separately, with the units left by the limit of the last allowed
    // caller.
    let quotas = [Quota::per_day(5), Quota::per_hour(0).burst(7)];
    assert!(
        w.limiter("two", quotas)
            .check("")
            .await
            .unwrap()
            .is_allowed()
    );
    let left = |seen: &[LimiterState]| -> Vec<_> {
        let quotas = seen[0].quotas.iter();
        quotas.map(|quota| (quota.limit, quota.remaining)).collect()
    };
    let some = |limit, left| (Some(limit), Some(left));
    assert_eq!(left(&survey(&w, "two").await), [some(5, 4), some(7, 6)]);
    let quotas = [Quota::per_day(5).burst(3), Quota::per_hour(0).burst(20)];
    assert!(
        w.limiter("two", quotas)
            .check("")
            .await
            .unwrap()
            .is_allowed()
    );
    assert_eq!(left(&survey(&w, "two").await), [some(3, 1), some(20, 18)]);
    for (quota, seen) in [
        (Quota::per_day(5), some(5, 4)),
        (Quota::per_day(5).burst(3), some(3, 1)),
        (Quota::per_day(5).burst(9), some(9, 6)),
    ] {
        assert!(
            w.limiter("one", quota)
                .check("")
                .await
                .unwrap()
                .is_allowed()
        );
        assert_eq!(left(&survey(&w, "one").await), [seen]);
    }
}

/// A limiter is in use until all of its units are refilled.
pub async fn idle_limiter_is_not_listed(store: &TestStore) {
    let w = store.connect().await;
    let quota = Quota::new(1, Duration::from_millis(300));
    let limiters = [
        quota,
        quota.fixed_window(),
        quota.sliding_window(),
        quota.sliding_log(),
    ];
    for (name, quota) in ["a", "b", "c", "d"].into_iter().zip(limiters) {
        assert!(w.limiter(name, quota).check("").await.unwrap().is_allowed());
    }
    let gone = async || survey(&w, "*").await.is_empty();
    assert!(eventually(SOON, gone).await);
}

/// By their names, including slashes; other namespaces are invisible.
pub async fn limiters_are_found_by_name(store: &TestStore) {
    let w = store.connect().await;
    let shop = store.connect_with(Options::new().namespace("shop")).await;
    let day = Quota::per_day(9);
    // The first two look alike, but differ.
    for (limiter, key) in [
        ("mail/ann", ""),
        ("mail", "ann"),
        ("mail", "bob"),
        ("50%", "x/y"),
        ("{tag}", "a}b"),
        ("other", ""),
    ] {
        for who in [&w, &shop] {
            let limiter = who.limiter(limiter, day);
            assert!(limiter.check(key).await.unwrap().is_allowed());
        }
    }
    let alike = ["mail/ann", "mail/ann", "mail/bob"];
    for who in [&w, &shop] {
        assert_eq!(names(&survey(who, "mail/*").await), alike);
        assert_eq!(names(&survey(who, "mail/???").await), alike);
        assert_eq!(names(&survey(who, "50%*").await), ["50%/x/y"]);
        assert_eq!(names(&survey(who, "{*").await), ["{tag}/a}b"]);
        assert!(survey(who, "mail").await.is_empty());
    }
    assert_eq!(survey(&shop, "*").await.len(), 6);
    let all = survey(&w, "*").await;
    assert_eq!(all.len(), 12, "who has no namespace sees all");
    assert!(all.is_sorted_by(|a, b| a.name <= b.name), "{all:?}");
}

/// At most as many as requested, and the result says whether there are more.
pub async fn survey_respects_its_limit(store: &TestStore) {
    let w = store.connect().await;
    let limiter = w.limiter("many", Quota::per_day(9));
    for key in 0..7 {
        assert!(limiter.check(&key.to_string()).await.unwrap().is_allowed());
    }
    for (most, found) in [(0, 0), (1, 1), (6, 6), (7, 7), (usize::MAX, 7)] {
        let seen = w.survey_limiters("many/*", most).await.unwrap();
        assert_eq!(seen.limiters.len(), found, "{most}");
        assert_eq!(seen.more, found < 7, "{most}");
    }
}
