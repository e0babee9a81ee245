//! Holds: an estimate is charged at once and settled once, and no more is allowed than the quota.

use std::time::Duration;

use windlass::{Algorithm, ErrorKind, Estimate, Hold, Limiter, Owner, Quota, Settle, Settlement};

use super::{SOON, TestStore};
use crate::eventually;

const HOUR: Duration = Duration::from_secs(3600);
const MINUTE: Duration = Duration::from_secs(60);

fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

async fn hold(limiter: &Limiter, units: u64) -> Hold {
    let held = limiter.reserve_estimate("a", units, MINUTE).await.unwrap();
    held.held().expect("the estimate fits")
}

async fn settled(hold: Hold, actual: u64) -> Settlement {
    let settled = hold.settle(actual).await.unwrap();
    settled.settled().expect("it is open")
}

async fn left(limiter: &Limiter) -> u64 {
    limiter.peek("a").await.unwrap().remaining()
}

/// Whatever the algorithm: the excess is refunded, the rest is charged, and an estimate that does not
/// fit is denied without a charge.
pub async fn estimate_is_charged_and_settled(store: &TestStore) {
    let w = store.connect().await;
    let quotas = [
        Quota::new(100, 24 * HOUR),
        Quota::per_second(0).burst(100),
        Quota::new(100, HOUR).fixed_window(),
        Quota::new(100, HOUR).sliding_window(),
        Quota::new(100, HOUR).sliding_log(),
    ];
    for (i, quota) in quotas.into_iter().enumerate() {
        let limiter = w.limiter(&format!("settled-{i}"), quota);
        let first = hold(&limiter, 60).await;
        assert_eq!(left(&limiter).await, 40, "{quota:?}");
        let denied = limiter.reserve_estimate("a", 41, MINUTE).await.unwrap();
        let Estimate::Denied(decision) = denied else {
            panic!("41 of 40: {denied:?}");
        };
        assert_eq!(decision.remaining(), 40);
        assert!(!decision.is_never() || quota == quotas[1], "{decision:?}");
        let second = hold(&limiter, 30).await;
        assert_eq!(left(&limiter).await, 10, "{quota:?}");
        let settlement = settled(first, 20).await;
        assert_eq!(settlement.charged(), 20, "{quota:?}");
        assert_eq!(settlement.remaining(), 50, "{quota:?}");
        // More than the estimate, and more than what is left.
        let third = hold(&limiter, 50).await;
        assert_eq!(settled(second, 70).await.charged(), 70, "{quota:?}");
        assert_eq!(left(&limiter).await, 0);
        assert!(!limiter.check("a").await.unwrap().is_allowed());
        // 20, 70 and 5 of 100.
        assert_eq!(settled(third, 5).await.remaining(), 5, "{quota:?}");
    }
}

/// Requests, tokens and money: one decision, and each quota has its own cost.
pub async fn each_quota_has_its_own_cost(store: &TestStore) {
    let w = store.connect().await;
    let requests = Quota::new(3, 24 * HOUR);
    let tokens = Quota::new(1_000, HOUR).fixed_window();
    let cents = Quota::per_second(0).burst(500);
    let limiter = w.limiter("models", [requests, tokens, cents]);
    let remaining = async || {
        let mut all = Vec::new();
        for quota in [requests, tokens, cents] {
            all.push(left(&limiter.with_quota(quota)).await);
        }
        all
    };
    let held = limiter.reserve_estimate("a", [1, 600, 30], MINUTE).await;
    let first = held.unwrap().held().unwrap();
    assert_eq!(remaining().await, [2, 400, 470]);
    let denied = limiter.reserve_estimate("a", [1, 401, 1], MINUTE).await;
    let Estimate::Denied(decision) = denied.unwrap() else {
        panic!("too many tokens");
    };
    assert!(decision.retry_after().unwrap() > MINUTE, "{decision:?}");
    assert_eq!(remaining().await, [2, 400, 470]);
    let settled = first.settle([1, 250, 45]).await.unwrap().settled().unwrap();
    let charged: Vec<u64> = settled.quotas().iter().map(|quota| quota.charged).collect();
    assert_eq!(charged, [1, 250, 45]);
    assert_eq!(remaining().await, [2, 750, 455]);
}

/// Another client settles by owner; a hold is settled once, by its own limiter and key.
pub async fn hold_is_settled_once_by_its_owner(store: &TestStore) {
    let (w, other) = (store.connect().await, store.connect().await);
    let quota = Quota::new(100, 24 * HOUR);
    let limiter = w.limiter("once", quota);
    let elsewhere = other.limiter("once", quota);
    let owner = Owner::new("job-1").unwrap();
    let held = limiter.reserve_estimate_as("a", 50, MINUTE, owner.clone());
    assert_eq!(held.await.unwrap().held().unwrap().owner(), &owner);
    let again = elsewhere.reserve_estimate_as("a", 50, MINUTE, owner.clone());
    assert_eq!(again.await.unwrap_err().kind(), ErrorKind::InvalidInput);
    assert_eq!(left(&limiter).await, 50);
    // Not the hold of another key, limiter or owner.
    let nobody = Owner::new("job-2").unwrap();
    for (limiter, key, owner) in [
        (elsewhere.clone(), "b", &owner),
        (other.limiter("another", quota), "a", &owner),
        (elsewhere.clone(), "a", &nobody),
    ] {
        let settled = limiter.settle(key, owner, 10).await.unwrap();
        assert_eq!(settled, Settle::NotFound);
    }
    assert_eq!(left(&limiter).await, 50);
    let settled = elsewhere.settle("a", &owner, 10).await.unwrap();
    assert_eq!(settled.settled().unwrap().charged(), 10);
    assert_eq!(left(&limiter).await, 90);
    for actual in [10, 0, 100] {
        let again = limiter.settle("a", &owner, actual).await.unwrap();
        assert_eq!(again, Settle::AlreadySettled);
    }
    assert_eq!(left(&limiter).await, 90);
    // Many clients settle the same hold.
    let hold = hold(&limiter, 90).await;
    let settles = (0..8).map(|_| {
        let (limiter, owner) = (elsewhere.clone(), hold.owner().clone());
        tokio::spawn(async move { limiter.settle("a", &owner, 40).await.unwrap() })
    });
    let mut count = 0;
    for settle in settles.collect::<Vec<_>>() {
        count += u32::from(settle.await.unwrap().settled().is_some());
    }
    assert_eq!((count, left(&limiter).await), (1, 50));
}

/// A crash, a late settlement, a window that is over and a reset: the estimate stays charged.
pub async fn late_settlement_refunds_nothing(store: &TestStore) {
    let w = store.connect().await;
    let day = Quota::new(100, 24 * HOUR).fixed_window();
    // Dropped, as by a crash, and settled after its time.
    let limiter = w.limiter("late", day);
    let held = limiter.reserve_estimate("a", 40, ms(50)).await.unwrap();
    let owner = held.held().unwrap().owner().clone();
    let is_over = eventually(SOON, || async {
        limiter.settle("b", &owner, 0).await.unwrap() == Settle::NotFound
            && limiter
                .reserve_estimate_as("a", 0, ms(1), owner.clone())
                .await
                .is_ok()
    });
    assert!(is_over.await);
    assert_eq!(left(&limiter).await, 60);
    // The window of the estimate is over: nothing is refunded to the next one, and the rest is charged to it.
    for algorithm in [Algorithm::FixedWindow, Algorithm::SlidingLog] {
        let short = Quota::new(100, ms(300)).algorithm(algorithm);
        let limiter = w.limiter(&format!("short-{algorithm}"), short);
        for (actual, charged, expected) in [(10, 40, 70), (50, 50, 60)] {
            let held = hold(&limiter, 40).await;
            let over = async || left(&limiter).await == 100;
            assert!(eventually(SOON, over).await);
            // The next window begins with a call. Unless it is over as well by now, it lacks 30 units.
            assert!(limiter.check_n("a", 30).await.unwrap().is_allowed());
            let settlement = settled(held, actual).await;
            assert_eq!(settlement.charged(), charged, "{algorithm}");
            let remaining = settlement.remaining();
            assert!(
                [expected, expected + 30].contains(&remaining),
                "{remaining}"
            );
            assert!(eventually(SOON, over).await);
        }
    }
    // A reset forgets the estimate.
    let limiter = w.limiter("reset", day);
    let held = hold(&limiter, 40).await;
    assert!(limiter.reset("a").await.unwrap());
    let other = hold(&limiter, 50).await;
    assert_eq!(settled(held, 0).await.charged(), 40);
    assert_eq!(left(&limiter).await, 50);
    assert_eq!(settled(other, 0).await.remaining(), 100);
}

/// Holds of many clients that are settled with less than their estimates: together never more than
/// the quota.
pub async fn settled_holds_never_exceed_the_quota(store: &TestStore) {
    let w = store.connect().await;
    let quotas = [
        Quota::new(100, 1000 * HOUR),
        Quota::new(100, HOUR).fixed_window(),
        Quota::new(100, HOUR).sliding_log(),
    ];
    for (i, quota) in quotas.into_iter().enumerate() {
        let mut tasks = Vec::new();
        for client in 0..4u64 {
            let w = store.connect().await;
            let limiter = w.limiter(&format!("many-{i}"), quota);
            tasks.push(tokio::spawn(async move {
                let mut used = 0;
                for round in 0..25 {
                    let estimate = 5 + (client + round) % 10;
                    let actual = (client * 3 + round) % 5;
                    let held = limiter.reserve_estimate("a", estimate, MINUTE).await;
                    let Some(held) = held.unwrap().held() else {
                        continue;
                    };
                    used += actual;
                    let settlement = settled(held, actual).await;
                    // A bucket that was full loses a fraction of a unit.
                    let exact = i > 0;
                    let charged = settlement.charged();
                    assert!(
                        charged == actual || !exact && charged == actual + 1,
                        "{charged}"
                    );
                }
                used
            }));
        }
        let mut used = 0;
        for task in tasks {
            used += task.await.unwrap();
        }
        assert!(used <= 100, "{used} of 100 by {quota:?}");
        let left = left(&w.limiter(&format!("many-{i}"), quota)).await;
        let exact = i > 0;
        assert!(
            left == 100 - used || !exact && left + 1 == 100 - used,
            "{left} after {used}"
        );
    }
}

pub async fn invalid_hold_is_rejected(store: &TestStore) {
    let w = store.connect().await;
    let quotas = [Quota::per_hour(10), Quota::new(10, HOUR).fixed_window()];
    let limiter = w.limiter("invalid", quotas);
    let invalid = async |units: Vec<u64>, ttl| {
        let error = limiter.reserve_estimate("a", units, ttl).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidInput, "{error}");
        assert!(error.hint().is_some(), "{error}");
    };
    invalid(vec![1], MINUTE).await;
    invalid(vec![1, 2, 3], MINUTE).await;
    invalid(vec![], MINUTE).await;
    invalid(vec![1, u64::MAX], MINUTE).await;
    invalid(vec![1, 1], Duration::ZERO).await;
    invalid(vec![1, 1], Duration::MAX).await;
    // Never, because no window has as many.
    let Estimate::Denied(decision) = limiter
        .reserve_estimate("a", [1, 11], MINUTE)
        .await
        .unwrap()
    else {
        panic!("11 of 10");
    };
    assert!(decision.is_never());
    assert_eq!(left(&limiter).await, 10);
    let held = limiter.reserve_estimate("a", [4, 2], MINUTE).await.unwrap();
    let owner = held.held().unwrap().owner().clone();
    // With the quotas in another order, and with another quota.
    for others in [
        vec![quotas[1], quotas[0]],
        vec![quotas[0]],
        vec![quotas[0], Quota::new(10, 2 * HOUR).fixed_window()],
    ] {
        let others = limiter.with_quota(others);
        let error = others.settle("a", &owner, 1).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidInput, "{error}");
    }
    let error = limiter.settle("a", &owner, [1]).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidInput, "{error}");
    // It is still open.
    let settled = limiter.settle("a", &owner, [3, 2]).await.unwrap();
    assert_eq!(settled.settled().unwrap().charged(), 3);
}
