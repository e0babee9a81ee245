//! Leased limiters: decisions on prefetched tokens without a round trip, never beyond the quota.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use windlass::{Basis, Clock, Limiter, Quota};

use super::{SOON, TestStore};
use crate::eventually;

fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

/// The shared quota.
pub const RATE: u64 = 2_000;
/// See [`RATE`].
pub const BURST: u64 = 600;
/// The interval of concurrent bursts: longer than the bucket takes to fill.
const RUSH_EVERY: u64 = 400_000_000;
/// The length of a burst.
const RUSH_FOR: u64 = 25_000_000;
/// How long before a burst some tokens are prefetched: nearly as long as they are valid.
const WARM_UP: u64 = 60_000_000;

/// Nanoseconds on a clock that all processes of the machine share.
pub fn machine_nanos() -> u64 {
    let now = Clock::system().now();
    // The clock started later than that.
    let start = now - Duration::from_secs(1_000_000_000);
    now.since(start).as_nanos() as u64
}

/// Consumes units in the way most likely to exceed the quota: prefetches some, waits until the
/// bucket is full again, and then takes all there is, at the same time as all other callers.
/// Reports the interval in which each unit was consumed.
pub async fn rush(limiter: &Limiter, leased: bool, until: u64, mut used: impl FnMut(u64, u64)) {
    let lender = limiter.leased();
    let mut take = async || {
        let before = machine_nanos();
        let decision = match leased {
            true => lender.check("all").await,
            false => limiter.check("all").await,
        };
        // A store may be blocked by a dead process's transaction.
        let allowed = decision.is_ok_and(|decision| decision.is_allowed());
        if allowed {
            used(before, machine_nanos());
        }
        allowed
    };
    let sleep_until = async |moment: u64| {
        let left = moment.saturating_sub(machine_nanos());
        tokio::time::sleep(Duration::from_nanos(left)).await;
    };
    while machine_nanos() < until {
        let mut next = (machine_nanos() + WARM_UP) / RUSH_EVERY * RUSH_EVERY + RUSH_EVERY;
        sleep_until(next - WARM_UP).await;
        // Enough demand for a large prefetch, most of which is left.
        for _ in 0..12 {
            take().await;
        }
        // Sometimes, keep it until long after its expiry, when the bucket is full again.
        if machine_nanos() / 1_000 % 5 < 2 {
            next += RUSH_EVERY;
        }
        sleep_until(next).await;
        while machine_nanos() < next + RUSH_FOR {
            if !take().await {
                tokio::time::sleep(Duration::from_micros(200)).await;
            }
        }
    }
}

/// Fails if more than the bucket allows was certainly consumed within any interval.
pub fn never_exceeds(uses: &mut [(u64, u64)]) {
    uses.sort_unstable();
    let mut ends: Vec<(u64, u64)> = uses.iter().map(|&(from, to)| (to, from)).collect();
    ends.sort_unstable();
    let mut last = 0;
    for &(from, _) in uses.iter() {
        // Intervals that begin within a microsecond make no difference.
        if from < last + 1_000 {
            continue;
        }
        last = from;
        let first = ends.partition_point(|end| end.0 < from);
        let mut sum = 0u64;
        for &(to, began) in &ends[first..] {
            sum += u64::from(began >= from);
            let seconds = (to - from) as f64 / 1e9;
            // Two clocks of one machine may differ slightly: one is disciplined, the other is not.
            let most = BURST as f64 + RATE as f64 * seconds * 1.001;
            assert!(
                sum as f64 <= most,
                "{sum} uses within {seconds} s, of {most}"
            );
            // Longer intervals allow more: no violation is possible beyond this.
            if seconds > 2.0 {
                break;
            }
        }
    }
}

/// Several clients that prefetch and one that does not: together never too many, and not too few
/// either.
pub async fn leased_clients_together_never_exceed_the_quota(store: &TestStore) {
    let uses: Arc<Mutex<Vec<(u64, u64)>>> = Arc::default();
    let end = machine_nanos() + 2_500_000_000;
    let mut tasks = Vec::new();
    for i in 0..6 {
        let limiter = store
            .connect()
            .await
            .limiter("fleet", Quota::per_second(RATE).burst(BURST));
        let uses = Arc::clone(&uses);
        tasks.push(tokio::spawn(async move {
            let used = |from, to| uses.lock().unwrap().push((from, to));
            rush(&limiter, i > 0, end, used).await;
        }));
    }
    for task in tasks {
        task.await.unwrap();
    }
    let mut uses = std::mem::take(&mut *uses.lock().unwrap());
    never_exceeds(&mut uses);
    // At least five bursts, each with a full bucket before it.
    assert!(
        uses.len() as u64 > 5 * BURST * 6 / 10,
        "{} is too little",
        uses.len()
    );
}

/// Steady demand costs few store calls.
pub async fn steady_demand_costs_few_store_calls(store: &TestStore) {
    let w = store.connect().await;
    let leased = w.limiter("steady", Quota::per_second(100_000)).leased();
    let key = leased.key("a").unwrap();
    let begun = Instant::now();
    let (mut allowed, mut from_leases, mut last) = (0u64, 0u64, 0);
    while begun.elapsed() < ms(1_000) {
        for _ in 0..20 {
            let decision = key.check().await.unwrap();
            assert!(decision.is_allowed(), "{decision:?}");
            allowed += 1;
            from_leases += u64::from(decision.basis() == Basis::Leased);
        }
        if begun.elapsed() < ms(400) {
            last = leased.store_calls();
        }
        tokio::time::sleep(ms(1)).await;
    }
    let calls = leased.store_calls();
    assert!(allowed > 2_000, "{allowed}");
    // A few calls to estimate the demand, then a dozen per second.
    assert!(calls < 30, "{calls} calls");
    assert!(calls - last <= 14, "{} calls in 600 ms", calls - last);
    assert!(from_leases * 10 > allowed * 9, "{from_leases} of {allowed}");
}

/// Unused tokens are returned: on request, on drop, and after their expiry.
pub async fn unused_tokens_are_returned(store: &TestStore) {
    let w = store.connect().await;
    let quota = Quota::per_hour(1_000);
    for (i, how) in ["asked", "dropped", "late"].into_iter().enumerate() {
        let name = format!("back-{how}");
        let (quota, used) = match how {
            // Nothing is refilled meanwhile.
            "late" => (quota.fixed_window(), 10),
            _ => (quota, 10),
        };
        let limiter = w.limiter(&name, quota);
        let leased = limiter.leased();
        for _ in 0..used {
            assert!(leased.check("a").await.unwrap().is_allowed(), "{i}");
        }
        match how {
            "asked" => drop(leased.give_back().await.unwrap()),
            "dropped" => drop(leased),
            _ => {
                let calls = leased.store_calls();
                let back = eventually(SOON, || async {
                    limiter.peek("a").await.unwrap().remaining() == 1_000 - used
                });
                assert!(back.await, "{how}: {:?}", limiter.peek("a").await);
                assert!(leased.store_calls() <= calls + 2);
                continue;
            }
        }
        let back = eventually(SOON, || async {
            // A prefetch moves the bucket's time by a quarter of its burst for a while.
            limiter.peek("a").await.unwrap().remaining() >= 1_000 - used - 260
        });
        assert!(back.await, "{how}: {:?}", limiter.peek("a").await);
    }
}

/// Tokens of a window are valid until it ends, and no longer.
pub async fn prefetched_tokens_end_with_their_window(store: &TestStore) {
    for (name, quota) in [
        ("fixed", Quota::new(100, ms(1_200)).fixed_window()),
        ("sliding", Quota::new(100, ms(1_200)).sliding_window()),
    ] {
        let (a, b) = (store.connect().await, store.connect().await);
        let (a, b) = (
            a.limiter(name, quota).leased(),
            b.limiter(name, quota).leased(),
        );
        let begun = Instant::now();
        let mut allowed = 0;
        while begun.elapsed() < ms(1_000) {
            allowed += u64::from(a.check("x").await.unwrap().is_allowed());
            allowed += u64::from(b.check("x").await.unwrap().is_allowed());
            tokio::time::sleep(ms(1)).await;
        }
        assert!(
            allowed <= 100 || begun.elapsed() >= ms(1_200),
            "{name}: {allowed}"
        );
        assert!(allowed >= 50, "{name}: {allowed}");
    }
}

/// A sliding log is exact, so the store decides every call.
pub async fn sliding_log_is_not_prefetched(store: &TestStore) {
    let (a, b) = (store.connect().await, store.connect().await);
    let quota = Quota::per_hour(50).sliding_log();
    let (a, b) = (
        a.limiter("log", quota).leased(),
        b.limiter("log", quota).leased(),
    );
    let mut allowed = 0;
    for _ in 0..40 {
        for limiter in [&a, &b] {
            let decision = limiter.check("x").await.unwrap();
            allowed += u64::from(decision.is_allowed());
            let stored = decision.basis() == Basis::Store;
            assert!(stored || !decision.is_allowed(), "{decision:?}");
        }
    }
    assert_eq!(allowed, 50);
    assert_eq!(a.give_back().await.unwrap(), 0);
}

/// The store decides what cannot be prefetched; what can never be allowed is reported as such.
pub async fn requests_that_cannot_be_prefetched_go_to_the_store(store: &TestStore) {
    let w = store.connect().await;
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
    // Fills within a moment: a prefetch would expire before it arrives.
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
