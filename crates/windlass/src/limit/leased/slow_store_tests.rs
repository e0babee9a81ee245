//! Leased limiters over a store with a slow round trip, in simulated time: the figures are exact, and do not depend on
//! the load of the machine.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::lease::{Clock, Moment};
use crate::{Coordinator, LeasedLimiter, Limiter, Options, Quota};
use windlass_core::error::Result;
use windlass_core::memory::MemoryStore;
use windlass_core::name::Name;
use windlass_core::store::Pending;
use windlass_core::store::limit::{
    LimitOutcome, LimitRequest, LimitStore, LimiterPage, LimiterQuery,
};

const RATE: u64 = 1_000;
const BURST: u64 = 100;

const fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

/// A store in memory that is half a round trip away.
#[derive(Clone, Debug)]
struct SlowLimits {
    store: Arc<MemoryStore>,
    clock: Clock,
    round_trip: Arc<Mutex<Duration>>,
    calls: Arc<AtomicU64>,
}

impl SlowLimits {
    fn new(round_trip: Duration) -> SlowLimits {
        let clock = Clock::manual();
        SlowLimits {
            store: MemoryStore::private(clock.clone()),
            clock,
            round_trip: Arc::new(Mutex::new(round_trip)),
            calls: Arc::default(),
        }
    }

    async fn client(&self) -> Coordinator {
        let options = Options::new().clock(self.clock.clone());
        let client = options.call_timeout(ms(60_000)).connect("memory:").await;
        client.unwrap().with_limits(Arc::new(self.clone()))
    }

    async fn limiter(&self, quota: Quota) -> Limiter {
        self.client().await.limiter("api", quota)
    }

    fn calls(&self) -> u64 {
        self.calls.load(Ordering::Relaxed)
    }

    /// Lets simulated time pass.
    async fn pass(&self, time: Duration) {
        let end = self.clock.now() + time;
        let step = (*self.round_trip.lock().unwrap() / 4).min(ms(1));
        while self.clock.now() < end {
            self.clock.advance(step);
            // All tasks run until each of them waits for the clock.
            for _ in 0..12 {
                tokio::task::yield_now().await;
            }
        }
    }
}

impl LimitStore for SlowLimits {
    fn decide(&self, request: LimitRequest) -> Pending<'static, LimitOutcome> {
        self.calls.fetch_add(1, Ordering::Relaxed);
        let slow = self.clone();
        let way = *self.round_trip.lock().unwrap() / 2;
        let arrival = self.clock.now() + way;
        Box::pin(async move {
            slow.clock.sleep_until(arrival).await;
            let outcome = slow.store.decide_alone(&request);
            slow.clock.sleep_until(arrival + way).await;
            outcome
        })
    }

    fn decide_all(&self, requests: Vec<LimitRequest>) -> Pending<'_, Vec<Result<LimitOutcome>>> {
        self.store.decide_all(requests)
    }

    fn reset(&self, name: Name) -> Pending<'_, bool> {
        self.store.reset(name)
    }

    fn list(&self, search: LimiterQuery) -> Pending<'_, LimiterPage> {
        self.store.list(search)
    }
}

#[derive(Clone)]
enum LimiterMode {
    Plain(Limiter),
    Leased(LeasedLimiter),
}

/// What callers saw: when units were admitted, and the longest wait for an answer.
#[derive(Debug, Default)]
struct Observed {
    admitted: Vec<Moment>,
    worst: Duration,
}

impl Observed {
    /// Panics if more was admitted than the bucket allows within any time. A unit counts when its caller was told,
    /// up to half a round trip after the store decided.
    fn check(&self, late: Duration) {
        let mut most = 0.0_f64;
        let mut ahead = 0.0_f64;
        let mut last = None;
        for at in &self.admitted {
            let passed = last.map_or(Duration::ZERO, |last| at.since(last));
            ahead = (ahead - passed.as_secs_f64() * RATE as f64).max(0.0) + 1.0;
            most = most.max(ahead);
            last = Some(*at);
        }
        let allowed = BURST as f64 + late.as_secs_f64() * RATE as f64;
        assert!(most <= allowed + 1.0, "{most} units at once, of {allowed}");
    }
}

/// Tasks that check in a loop, with a pause of a millisecond after each denial.
async fn run(
    store: &SlowLimits,
    limiters: &[LimiterMode],
    tasks: usize,
    length: Duration,
) -> Observed {
    let seen: Arc<Mutex<Observed>> = Arc::default();
    let running: Vec<_> = (0..tasks)
        .map(|i| {
            let (limiter, seen) = (limiters[i % limiters.len()].clone(), Arc::clone(&seen));
            let clock = store.clock.clone();
            tokio::spawn(async move {
                loop {
                    let asked = clock.now();
                    let decision = match &limiter {
                        LimiterMode::Plain(limiter) => limiter.check("all").await,
                        LimiterMode::Leased(limiter) => limiter.check("all").await,
                    };
                    let allowed = decision.unwrap().is_allowed();
                    let now = clock.now();
                    {
                        let mut seen = seen.lock().unwrap();
                        seen.worst = seen.worst.max(now.since(asked));
                        if allowed {
                            seen.admitted.push(now);
                        }
                    }
                    match allowed {
                        true => tokio::task::yield_now().await,
                        false => clock.sleep(ms(1)).await,
                    }
                }
            })
        })
        .collect();
    store.pass(length).await;
    for task in &running {
        task.abort();
    }
    std::mem::take(&mut *seen.lock().unwrap())
}

fn quota() -> Quota {
    Quota::per_second(RATE).burst(BURST)
}

async fn both(round_trip: Duration, tasks: usize, length: Duration) -> (Observed, Observed, u64) {
    let store = SlowLimits::new(round_trip);
    let plain = LimiterMode::Plain(store.limiter(quota()).await);
    let plain = run(&store, &[plain], tasks, length).await;
    let store = SlowLimits::new(round_trip);
    let leased = LimiterMode::Leased(store.limiter(quota()).await.leased());
    let leased = run(&store, &[leased], tasks, length).await;
    (plain, leased, store.calls())
}

/// The reported case, and all others: admits at least what a plain limiter does, with the same longest wait, and never
/// too much.
#[tokio::test]
async fn a_slow_store_makes_it_no_worse_than_a_plain_limiter() {
    for round_trip in [1, 10, 30, 100, 200].map(ms) {
        let length = (round_trip * 8).max(ms(500));
        for tasks in [1, 20, 200] {
            let (plain, leased, calls) = both(round_trip, tasks, length).await;
            let (fewest, units) = (plain.admitted.len(), leased.admitted.len());
            println!(
                "{round_trip:?} {tasks}: {fewest} {units}, {:?} {:?}, {calls} calls",
                plain.worst, leased.worst
            );
            plain.check(round_trip / 2);
            leased.check(round_trip / 2);
            // The first lease moves the bucket's time on by up to a quarter of the burst, once.
            assert!(
                units + BURST as usize / 4 >= fewest && units as f64 >= 0.95 * fewest as f64,
                "{round_trip:?}, {tasks} tasks: {units} of {fewest}"
            );
            assert!(
                leased.worst <= round_trip * 3 / 2 + ms(2),
                "{round_trip:?}, {tasks} tasks: {:?}",
                leased.worst
            );
        }
    }
}

/// Callers admitted in the second half of the run, per second of it.
fn settled(seen: &Observed, end: Moment, length: Duration) -> f64 {
    let half = end - length / 2;
    let late = seen.admitted.iter().filter(|at| **at >= half).count();
    late as f64 / (length / 2).as_secs_f64()
}

/// At least 0.9 of the quota is used, by many callers of a slow store, and by a single one if tokens live long enough.
#[tokio::test]
async fn nine_tenths_of_the_quota_are_used() {
    for (round_trip, burst, tasks) in [
        (ms(1), 100, 1),
        (ms(10), 100, 1),
        (ms(10), 100, 200),
        (ms(30), 100, 200),
        (ms(100), 100, 200),
        (ms(100), 1_000, 1),
        (ms(100), 1_000, 50),
        (ms(200), 2_000, 1),
        (ms(200), 2_000, 20),
    ] {
        let length = (round_trip * 16).max(ms(800));
        let store = SlowLimits::new(round_trip);
        let limiter = store.limiter(Quota::per_second(RATE).burst(burst)).await;
        let seen = run(
            &store,
            &[LimiterMode::Leased(limiter.leased())],
            tasks,
            length,
        )
        .await;
        let rate = settled(&seen, store.clock.now(), length);
        println!(
            "{round_trip:?} {burst} {tasks}: {rate}/s, {} calls",
            store.calls()
        );
        assert!(
            rate >= 0.9 * RATE as f64,
            "{round_trip:?}, burst {burst}, {tasks} tasks: {rate}/s"
        );
        let calls = store.calls() as f64 / length.as_secs_f64();
        assert!(
            calls <= 200.0,
            "{round_trip:?}, {tasks} tasks: {calls} calls/s"
        );
    }
}

/// A store that becomes slow under a warm limiter.
#[tokio::test]
async fn a_store_that_becomes_slow_keeps_serving() {
    let store = SlowLimits::new(ms(2));
    let limiter = LimiterMode::Leased(store.limiter(quota()).await.leased());
    let warm = run(&store, std::slice::from_ref(&limiter), 200, ms(500)).await;
    assert!(warm.admitted.len() >= 540, "{}", warm.admitted.len());
    *store.round_trip.lock().unwrap() = ms(100);
    let length = ms(2_000);
    let slow = run(&store, &[limiter], 200, length).await;
    let rate = settled(&slow, store.clock.now(), length);
    assert!(rate >= 0.9 * RATE as f64, "{rate}/s");
}

/// Calls follow what is admitted, not the number of clients that want more.
#[tokio::test]
async fn saturated_clients_make_few_calls() {
    for round_trip in [1, 30].map(ms) {
        let store = SlowLimits::new(round_trip);
        let mut fleet = Vec::new();
        for _ in 0..64 {
            fleet.push(LimiterMode::Leased(store.limiter(quota()).await.leased()));
        }
        let length = ms(3_000);
        run(&store, &fleet, 128, length / 2).await;
        let before = store.calls();
        let seen = run(&store, &fleet, 128, length / 2).await;
        let calls = store.calls() - before;
        println!(
            "{round_trip:?}: {} admitted, {calls} calls",
            seen.admitted.len()
        );
        assert!(
            seen.admitted.len() as u64 >= 1_350,
            "{}",
            seen.admitted.len()
        );
        // At 30 ms nothing can be prefetched from this bucket: a call serves the two callers of a client.
        let most = if round_trip < ms(10) { 500 } else { 1_800 };
        assert!(calls <= most, "{calls} calls in 1.5 s");
        seen.check(round_trip / 2);
    }
}
