//! Units that are lent: decisions without a round trip, and never too many.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use windlass::{Basis, Quota};

use super::{SOON, Stage};
use crate::eventually;

fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

/// Units, and between which two moments they were used.
pub type Use = (Instant, Instant, u64);

/// Fails if within any time more was used than a bucket of that rate and burst allows.
pub fn never_more(uses: &mut [Use], rate: u64, burst: u64) {
    uses.sort_by_key(|u| u.0);
    for (i, (from, ..)) in uses.iter().enumerate() {
        // Only what was certainly used within the time counts.
        let mut ends: Vec<(Instant, u64)> = uses[i..].iter().map(|u| (u.1, u.2)).collect();
        ends.sort_unstable();
        let mut sum = 0;
        for (to, units) in ends {
            sum += units;
            let most = burst as f64 + rate as f64 * (to - *from).as_secs_f64() * 1.001;
            assert!(
                sum as f64 <= most,
                "{sum} units within {:?}, of {most}",
                to - *from
            );
        }
    }
}

/// Several clients that borrow, and one that asks the store each time: together never too many, and
/// not too few either.
pub async fn all_together_never_use_more(stage: &Stage) {
    const RATE: u64 = 2_000;
    const BURST: u64 = 400;
    let quota = Quota::per_second(RATE).burst(BURST);
    let uses: Arc<Mutex<Vec<Use>>> = Arc::default();
    let begun = Instant::now();
    let end = begun + ms(1_200);
    let mut tasks = Vec::new();
    for i in 0..6 {
        let w = stage.connect().await;
        let uses = Arc::clone(&uses);
        tasks.push(tokio::spawn(async move {
            let limiter = w.limiter("fleet", quota);
            let leased = limiter.leased();
            let mut own = Vec::new();
            let mut calls = 0u64;
            while Instant::now() < end {
                let units = 1 + calls % 3;
                calls += 1;
                let before = Instant::now();
                let decision = match i {
                    0 => limiter.check_n("all", units).await.unwrap(),
                    _ => leased.check_n("all", units).await.unwrap(),
                };
                if decision.is_allowed() {
                    own.push((before, Instant::now(), units));
                }
                match calls % 200 {
                    // One that goes, and one that comes back.
                    0 if i == 1 => drop(leased.give_back().await.unwrap()),
                    _ if calls % 16 == 0 => tokio::time::sleep(ms(2)).await,
                    _ => tokio::task::yield_now().await,
                }
            }
            uses.lock().unwrap().extend(own);
        }));
    }
    for task in tasks {
        task.await.unwrap();
    }
    let mut uses = std::mem::take(&mut *uses.lock().unwrap());
    let sum: u64 = uses.iter().map(|u| u.2).sum();
    never_more(&mut uses, RATE, BURST);
    let there = BURST as f64 + RATE as f64 * begun.elapsed().as_secs_f64();
    assert!(sum as f64 > there * 0.5, "{sum} of {there} is too little");
}

/// A steady demand costs few calls of the store.
pub async fn a_steady_demand_costs_few_calls(stage: &Stage) {
    let w = stage.connect().await;
    let leased = w.limiter("steady", Quota::per_second(100_000)).leased();
    let key = leased.key("a").unwrap();
    let begun = Instant::now();
    let (mut allowed, mut last) = (0u64, 0);
    while begun.elapsed() < ms(1_000) {
        for _ in 0..20 {
            let decision = key.check().await.unwrap();
            assert!(decision.is_allowed(), "{decision:?}");
            allowed += 1;
        }
        if begun.elapsed() < ms(400) {
            last = leased.store_calls();
        }
        tokio::time::sleep(ms(1)).await;
    }
    let calls = leased.store_calls();
    assert!(allowed > 2_000, "{allowed}");
    // It takes a few calls to find out about the demand; then a dozen a second.
    assert!(calls < 30, "{calls} calls");
    assert!(calls - last <= 14, "{} calls in 600 ms", calls - last);
    assert_eq!(key.check().await.unwrap().basis(), Basis::Leased);
}

/// What is not used goes back: when asked, when dropped, and in time by itself.
pub async fn what_is_not_used_goes_back(stage: &Stage) {
    let w = stage.connect().await;
    let quota = Quota::per_hour(1_000);
    for (i, how) in ["asked", "dropped", "late"].into_iter().enumerate() {
        let name = format!("back-{how}");
        let (quota, used) = match how {
            // A loan of a second, of which three quarters pass.
            "late" => (Quota::new(1_000, ms(4_000)).burst(1_000), 10),
            _ => (quota, 10),
        };
        let limiter = w.limiter(&name, quota);
        let leased = limiter.leased();
        for _ in 0..used {
            assert!(leased.check("a").await.unwrap().is_allowed(), "{i}");
        }
        let lent = limiter.peek("a").await.unwrap();
        match how {
            "asked" => drop(leased.give_back().await.unwrap()),
            "dropped" => drop(leased),
            _ => {
                let calls = leased.store_calls();
                let back = eventually(SOON, || async {
                    limiter.peek("a").await.unwrap().remaining() > lent.remaining() + 50
                });
                assert!(back.await, "{how}: {lent:?}");
                assert!(leased.store_calls() <= calls + 2);
                continue;
            }
        }
        let back = eventually(SOON, || async {
            // A loan moves a bucket's time by a quarter of its burst for a while.
            limiter.peek("a").await.unwrap().remaining() >= 1_000 - used - 260
        });
        assert!(back.await, "{how}: {:?}", limiter.peek("a").await);
    }
}

/// Windows lend until they end, and no longer.
pub async fn windows_lend_until_they_end(stage: &Stage) {
    for (name, quota) in [
        ("fixed", Quota::new(100, ms(300)).fixed_window()),
        ("sliding", Quota::new(100, ms(300)).sliding_window()),
    ] {
        let (a, b) = (stage.connect().await, stage.connect().await);
        let (a, b) = (
            a.limiter(name, quota).leased(),
            b.limiter(name, quota).leased(),
        );
        let begun = Instant::now();
        let mut allowed = 0;
        while begun.elapsed() < ms(250) {
            allowed += u64::from(a.check("x").await.unwrap().is_allowed());
            allowed += u64::from(b.check("x").await.unwrap().is_allowed());
            tokio::time::sleep(ms(1)).await;
        }
        assert!(
            allowed <= 100 || begun.elapsed() >= ms(300),
            "{name}: {allowed}"
        );
        assert!(allowed >= 50, "{name}: {allowed}");
    }
}

/// What cannot be lent is decided by the store; what can never be is said to be never.
pub async fn what_cannot_be_lent_is_asked_for(stage: &Stage) {
    let w = stage.connect().await;
    let leased = w.limiter("large", Quota::per_hour(100)).leased();
    assert!(leased.check_n("a", 101).await.unwrap().is_never());
    assert!(leased.check_n("a", 0).await.unwrap().is_allowed());
    let all = leased.check_n("a", 100).await.unwrap();
    assert!(all.is_allowed());
    assert_eq!(
        all.basis(),
        Basis::Store,
        "a loan is three quarters at most"
    );
    let denied = leased.check("a").await.unwrap();
    assert!(!denied.is_allowed() && denied.retry_after().unwrap() > ms(1_000));
    // Fills within a moment: a loan would be over before it arrives.
    let quick = w
        .limiter("quick", Quota::per_second(1_000).burst(10))
        .leased();
    assert_eq!(quick.check("a").await.unwrap().basis(), Basis::Store);
    let once = w.limiter("once", Quota::per_second(0).burst(20)).leased();
    let mut allowed = 0;
    for _ in 0..50 {
        allowed += u64::from(once.check("a").await.unwrap().is_allowed());
    }
    assert_eq!(allowed, 20);
    assert!(leased.check("a\nb").await.is_err());
    assert!(
        w.limiter("", Quota::per_second(1))
            .leased()
            .check("a")
            .await
            .is_err()
    );
}
