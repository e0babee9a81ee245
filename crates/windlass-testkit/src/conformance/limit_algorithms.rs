//! Rate limiters: what each algorithm allows.

use std::time::{Duration, Instant};

use tokio::task::JoinSet;
use windlass::{Basis, ErrorKind, Quota};

use super::TestStore;
use super::limit::{HOUR, ms};

/// Three per minute: three allowed, seven denied, for each key and across clients.
pub async fn fixed_window(store: &TestStore) {
    let clients = [store.connect().await, store.connect().await];
    let mut yes = 0;
    for i in 0..10 {
        let limiter = clients[i % 2].limiter("ip", Quota::per_minute(3).fixed_window());
        let decision = limiter.check("127.0.0.1").await.unwrap();
        assert_eq!(decision.is_allowed(), i < 3, "call {i}: {decision:?}");
        assert_eq!(decision.limit(), 3);
        assert_eq!(decision.remaining(), 2u64.saturating_sub(i as u64));
        assert_eq!(decision.basis(), Basis::Store);
        yes += u64::from(decision.is_allowed());
        if !decision.is_allowed() {
            let wait = decision.retry_after().unwrap();
            assert!(wait <= ms(60_000) && wait > ms(50_000), "{wait:?}");
            assert_eq!(decision.reset_after(), Some(wait));
        }
        assert!(
            limiter
                .check(&format!("10.0.0.{i}"))
                .await
                .unwrap()
                .is_allowed()
        );
    }
    assert_eq!(yes, 3);
    // A new window begins with the first call after the old one.
    let short = clients[0].limiter("short", Quota::new(2, ms(80)).fixed_window());
    for _ in 0..3 {
        let begun = Instant::now();
        assert!(short.check("").await.unwrap().is_allowed());
        assert!(short.check("").await.unwrap().is_allowed());
        let denied = short.check("").await.unwrap();
        assert!(
            !denied.is_allowed() || begun.elapsed() >= ms(80),
            "{denied:?}"
        );
        tokio::time::sleep(ms(85)).await;
    }
}

/// Runs a scenario with a longer and longer period, until the machine was fast enough for it to prove something: it
/// returns `None` if time alone explains what it saw.
async fn until_fast_enough(scenario: impl AsyncFn(Duration) -> Option<()>, shortest: Duration) {
    for factor in [1, 4, 16, 64] {
        if scenario(shortest * factor).await.is_some() {
            return;
        }
    }
    panic!("the machine is too slow for this test");
}

/// Two immediately, then one per refill.
pub async fn token_bucket(store: &TestStore) {
    let w = store.connect().await;
    let scenario = async |period: Duration| {
        let limiter = w.limiter(&format!("bucket-{period:?}"), Quota::every(period).burst(2));
        // A unit is available one period after this, or later.
        let mut since = Instant::now();
        assert!(limiter.check("a").await.unwrap().is_allowed());
        let second = limiter.check("a").await.unwrap();
        assert!(second.is_allowed());
        (since.elapsed() < period).then_some(())?;
        assert_eq!((second.limit(), second.remaining()), (2, 0));
        for _ in 0..3 {
            let asked = Instant::now();
            let denied = limiter.check("a").await.unwrap();
            (since.elapsed() < period).then_some(())?;
            assert!(!denied.is_allowed());
            assert!(!denied.is_never());
            let wait = denied.retry_after().unwrap();
            assert!(wait <= period, "{wait:?}");
            tokio::time::sleep(wait).await;
            assert!(
                limiter.check("a").await.unwrap().is_allowed(),
                "as announced"
            );
            since = asked + wait;
        }
        tokio::time::sleep(period * 2 + ms(20)).await;
        let seen = limiter.peek("a").await.unwrap();
        assert_eq!(
            (seen.remaining(), seen.reset_after()),
            (2, Some(Duration::ZERO))
        );
        Some(())
    };
    until_fast_enough(scenario, ms(150)).await;
}

/// The usage of the previous window fades gradually.
pub async fn sliding_window(store: &TestStore) {
    let w = store.connect().await;
    let scenario = async |period: Duration| {
        let quota = Quota::new(10, period).sliding_window();
        let limiter = w.limiter(&format!("sliding-{period:?}"), quota);
        let begun = Instant::now();
        assert!(limiter.check_n("a", 10).await.unwrap().is_allowed());
        let denied = limiter.check_n("a", 5).await.unwrap();
        (begun.elapsed() < period / 4).then_some(())?;
        assert!(!denied.is_allowed());
        // Half of the previous window must have faded: one and a half windows from its start.
        let wait = denied.retry_after().unwrap();
        assert!(
            wait <= period * 3 / 2 && wait > period * 5 / 4,
            "{wait:?} of {period:?}"
        );
        tokio::time::sleep(wait).await;
        assert!(limiter.check_n("a", 5).await.unwrap().is_allowed());
        let denied = limiter.check_n("a", 5).await.unwrap();
        // All of it has faded two windows from its start.
        (begun.elapsed() < period * 2).then_some(())?;
        assert!(!denied.is_allowed());
        Some(())
    };
    until_fast_enough(scenario, ms(400)).await;
}

/// Never more than the limit in any interval, and units return one period after each call.
pub async fn sliding_log(store: &TestStore) {
    let w = store.connect().await;
    let period = ms(2_000);
    let limiter = w.limiter("log", Quota::new(10, period).sliding_log());
    assert!(limiter.check_n("a", 4).await.unwrap().is_allowed());
    tokio::time::sleep(ms(500)).await;
    let second = Instant::now();
    assert!(limiter.check_n("a", 6).await.unwrap().is_allowed());
    for cost in [4, 1] {
        let denied = limiter.check_n("a", cost).await.unwrap();
        assert!(!denied.is_allowed() && denied.remaining() == 0);
        let wait = denied.retry_after().unwrap();
        assert!(wait <= ms(1_500), "the first call has ended: {wait:?}");
        let reset = denied.reset_after().unwrap();
        assert!(reset > wait && reset <= period, "{reset:?}");
        if cost == 1 {
            tokio::time::sleep(wait).await;
        }
    }
    let again = limiter.check_n("a", 4).await.unwrap();
    assert!(again.is_allowed(), "as announced: {again:?}");
    let more = limiter.check("a").await.unwrap();
    // A slow machine may be past the end of the second call.
    assert!(!more.is_allowed() || second.elapsed() >= period, "{more:?}");

    // Calls of several clients at once are counted one by one.
    let (a, b) = (store.connect().await, store.connect().await);
    let quota = Quota::per_hour(25).sliding_log();
    let mut calls = JoinSet::new();
    for i in 0..60 {
        let limiter = [&a, &b][i % 2].limiter("log", quota);
        calls.spawn(async move { limiter.check("many").await.unwrap().is_allowed() });
    }
    let allowed = calls.join_all().await.into_iter().filter(|yes| *yes);
    assert_eq!(allowed.count(), 25);

    // With another quota in the same decision: all are charged, or none.
    let both = w.limiter("both", [quota, Quota::per_hour(30)]);
    assert!(both.check_n("a", 20).await.unwrap().is_allowed());
    assert!(!both.check_n("a", 6).await.unwrap().is_allowed());
    assert!(both.check_n("a", 5).await.unwrap().is_allowed());
    // Longer and larger: what was used stays used.
    let day = w.limiter("log", Quota::per_day(26).sliding_log());
    assert!(day.check("many").await.unwrap().is_allowed());
    assert!(!day.check("many").await.unwrap().is_allowed());

    // What cannot be done is an error that says what to use.
    let error = limiter.reserve("a", 1, HOUR).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidInput);
    assert!(error.to_string().contains("sliding-log"), "{error}");
    let large = Quota::per_hour(Quota::MAX_LOG_UNITS + 1).sliding_log();
    let error = w.limiter("log", large).check("a").await.unwrap_err();
    assert!(error.to_string().contains("at most 10000"), "{error}");
    assert!(error.hint().unwrap().contains("sliding window"));
}
