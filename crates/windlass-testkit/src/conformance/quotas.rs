//! Quotas that change while in use, and limiters that are reset: usage counts once, and is not
//! returned after a reset.

use std::time::Duration;

use windlass::{Algorithm, ErrorKind, Quota, Reserve};

use super::TestStore;

const HOUR: Duration = Duration::from_secs(3600);

fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

/// In another order, with a new quota in front, or with one removed: the usage of each quota stays.
pub async fn quota_order_does_not_matter(store: &TestStore) {
    let w = store.connect().await;
    let hour = Quota::new(10, HOUR);
    let day = Quota::new(20, 24 * HOUR).burst(12);
    let window = Quota::new(30, HOUR).fixed_window();
    let long_window = Quota::new(40, 5 * HOUR).fixed_window();
    let sliding = Quota::new(50, HOUR).sliding_window();
    let all = [hour, day, window, long_window, sliding];
    let limiter = w.limiter("order", all);
    assert!(limiter.check_n("a", 9).await.unwrap().is_allowed());
    let remaining = async |quotas: Vec<Quota>| {
        let seen = limiter.with_quota(quotas).peek("a").await.unwrap();
        seen.remaining()
    };
    let mut backwards = all;
    backwards.reverse();
    assert_eq!(remaining(backwards.to_vec()).await, 1);
    for (quota, left) in all.into_iter().zip([1, 3, 21, 31, 41]) {
        assert_eq!(remaining(vec![quota]).await, left, "{quota:?} alone");
    }
    // Charged in another order, and inspected in the first one.
    let others = limiter.with_quota([sliding, hour]);
    assert!(others.check("a").await.unwrap().is_allowed());
    assert_eq!(remaining(vec![hour]).await, 0);
    assert_eq!(remaining(vec![day]).await, 3, "only others have it");
    assert_eq!(remaining(vec![sliding]).await, 40);
    // A new quota in front changes nothing for those behind it.
    let fresh = Quota::new(60, 7 * HOUR).burst(60);
    let more = limiter.with_quota([fresh, hour, day, window, long_window, sliding]);
    assert!(!more.check("a").await.unwrap().is_allowed());
    let without = limiter.with_quota([fresh, day, window, long_window, sliding]);
    assert!(without.check_n("a", 3).await.unwrap().is_allowed());
    assert!(!without.check_n("a", 1).await.unwrap().is_allowed());
    // Also for a quota that was changed and is at another position.
    let changing = w.limiter("changing", [hour, sliding, window]);
    assert!(changing.check_n("a", 10).await.unwrap().is_allowed());
    let doubled = Quota::new(20, HOUR);
    let changed = changing.with_quota([window, sliding, doubled]);
    assert_eq!(changed.peek("a").await.unwrap().remaining(), 10);
    assert!(changed.check_n("a", 10).await.unwrap().is_allowed());
    assert!(!changed.check("a").await.unwrap().is_allowed());
    // The same rate with another burst keeps the usage.
    let one = w.limiter("alike", Quota::new(10, HOUR));
    assert!(one.check_n("a", 10).await.unwrap().is_allowed());
    let two = one.with_quota([Quota::new(10, HOUR).burst(100), Quota::new(10, HOUR)]);
    assert!(!two.check("a").await.unwrap().is_allowed());
    // With two changed algorithms the match is ambiguous.
    let mixed = w.limiter("mixed", [hour, window]);
    assert!(mixed.check("a").await.unwrap().is_allowed());
    let error = mixed.with_quota([hour, sliding]).check("a").await;
    assert_eq!(error.unwrap_err().kind(), ErrorKind::WrongType);
    let added = mixed.with_quota([sliding, window, hour]);
    assert!(added.check("a").await.unwrap().is_allowed());
}

/// Usage stays when windows become longer or shorter.
pub async fn usage_survives_a_changed_window_length(store: &TestStore) {
    let w = store.connect().await;
    for algorithm in [Algorithm::FixedWindow, Algorithm::SlidingWindow] {
        let name = algorithm.to_string();
        let kind = |quota: Quota| quota.algorithm(algorithm);
        let short = w.limiter(&format!("{name}-short"), kind(Quota::new(5, ms(400))));
        assert!(short.check_n("a", 5).await.unwrap().is_allowed());
        // Longer: until the long window is over.
        let long = short.with_quota(kind(Quota::new(5, HOUR)));
        let denied = long.check("a").await.unwrap();
        assert!(!denied.is_allowed(), "{name}: {denied:?}");
        assert!(denied.retry_after().unwrap() > HOUR / 2);
        tokio::time::sleep(ms(850)).await; // two short windows
        assert!(!long.check("a").await.unwrap().is_allowed(), "{name}");
        let larger = long.with_quota(kind(Quota::new(6, 2 * HOUR)));
        assert!(larger.check("a").await.unwrap().is_allowed(), "{name}");
        assert!(!larger.check("a").await.unwrap().is_allowed(), "{name}");
        // Shorter than what has passed: for one short window, from now.
        let brief = long.with_quota(kind(Quota::new(6, ms(200))));
        let denied = brief.check("a").await.unwrap();
        assert!(!denied.is_allowed(), "{name}: {denied:?}");
        let wait = denied.retry_after().unwrap();
        assert!(wait > ms(20) && wait <= ms(400), "{name}: {wait:?}");
        tokio::time::sleep(wait).await;
        let allowed = brief.check("a").await.unwrap();
        assert!(allowed.is_allowed(), "as announced: {allowed:?}");
        // Clients with two lengths do not lock each other out.
        let (one, two) = (
            w.limiter(&format!("{name}-both"), kind(Quota::new(2, ms(100)))),
            w.limiter(&format!("{name}-both"), kind(Quota::new(2, ms(300)))),
        );
        let mut allowed = 0;
        for _ in 0..60 {
            allowed += u64::from(one.check("a").await.unwrap().is_allowed());
            allowed += u64::from(two.check("a").await.unwrap().is_allowed());
            tokio::time::sleep(ms(20)).await;
        }
        assert!(allowed > 2, "{name}: locked out");
    }
}

/// A reservation from before a reset is not returned after it.
pub async fn reset_forgets_reservations(store: &TestStore) {
    let w = store.connect().await;
    for quotas in [
        vec![Quota::every(HOUR).burst(2)],
        vec![Quota::every(HOUR).burst(2), Quota::new(2, HOUR / 2)],
    ] {
        let limiter = w.limiter(&format!("reserved-{}", quotas.len()), quotas);
        let reserve = async |units| {
            let Reserve::Granted(granted) = limiter.reserve("a", units, HOUR * 10).await.unwrap()
            else {
                panic!("denied")
            };
            granted
        };
        for strict in [true, false] {
            let _used = reserve(2).await;
            let early = reserve(2).await;
            assert!(limiter.reset("a").await.unwrap());
            // The same amount again, by other clients.
            if strict {
                assert!(limiter.check_n("a", 2).await.unwrap().is_allowed());
            } else {
                let _used = reserve(2).await;
            }
            let late = reserve(1).await;
            let before = limiter.peek("a").await.unwrap().retry_after().unwrap();
            assert!(!early.cancel().await.unwrap(), "it was forgotten");
            let after = limiter.peek("a").await.unwrap().retry_after().unwrap();
            assert!(before - after < HOUR / 4, "{before:?} and {after:?}");
            // A reservation from after the reset is returned as usual.
            assert!(late.cancel().await.unwrap());
            assert!(limiter.reset("a").await.unwrap());
        }
    }
}

/// Tokens prefetched before a reset are not returned after it.
pub async fn reset_forgets_prefetched_tokens(store: &TestStore) {
    let w = store.connect().await;
    for (name, quota) in [
        ("bucket", Quota::per_hour(1_600)),
        ("all", Quota::per_hour(0).burst(1_600)),
        ("fixed", Quota::per_hour(1_600).fixed_window()),
        ("sliding", Quota::per_hour(1_600).sliding_window()),
    ] {
        let limiter = w.limiter(&format!("leased-{name}"), quota);
        let leased = limiter.leased();
        // Enough demand for a prefetch of which most is left.
        for _ in 0..20 {
            assert!(leased.check_n("a", 5).await.unwrap().is_allowed());
        }
        let out = 1_500 - limiter.peek("a").await.unwrap().remaining();
        assert!(name != "all" || out > 0, "{name}: nothing is out");
        assert!(limiter.reset("a").await.unwrap());
        // Other clients prefetch too, so that the new state contains prefetched tokens.
        let other = w.limiter(&format!("leased-{name}"), quota).leased();
        assert!(other.check_n("a", 100).await.unwrap().is_allowed());
        let before = limiter.peek("a").await.unwrap().remaining();
        assert_eq!(leased.give_back().await.unwrap(), 0, "{name}");
        let after = limiter.peek("a").await.unwrap().remaining();
        assert!(after <= before + 5, "{name}: {before} and {after}");
    }
}
