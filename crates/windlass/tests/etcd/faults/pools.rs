//! Semaphores with concurrent decisions of other clients.

use windlass::{Order, Permit, Semaphore};
use windlass_testkit::conformance::SOON;
use windlass_testkit::{Direction, eventually};

use super::*;

/// Acquires `count` permits, each a separate claim.
pub(super) async fn many(semaphore: &Semaphore, count: u32) -> Vec<Permit> {
    let asked: Vec<_> = (0..count)
        .map(|_| {
            let semaphore = semaphore.clone();
            tokio::spawn(async move { semaphore.acquire().await.unwrap() })
        })
        .collect();
    let mut permits = Vec::new();
    for asked in asked {
        permits.push(asked.await.unwrap());
    }
    permits
}

/// Starts a waiter for this weight, and waits until it is in the queue.
async fn wait_until_queued(semaphore: &Semaphore, weight: u32) -> tokio::task::JoinHandle<Permit> {
    let waits = semaphore.clone();
    let waiting = tokio::spawn(async move { waits.acquire_many(weight).await.unwrap() });
    let lined_up = || async { semaphore.inspect_up_to(0).await.unwrap().waiters == 1 };
    assert!(eventually(SOON, lined_up).await);
    waiting
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn barging_never_displaces_a_granted_waiter() {
    let cluster = EtcdCluster::start().unwrap();
    let proxy = FaultProxy::start(cluster.addr(0)).unwrap();
    let (a, b) = (connect(&cluster).await, connect(&cluster).await);
    let slow = through(&cluster, &proxy, SOON).await;
    let barging = slow.semaphore("jobs", 2).order(Order::Barging);
    let warm = barging.acquire().await.unwrap(); // so that it has all its leases
    assert!(warm.release().await.unwrap().was_held());
    for round in 0..3 {
        let held = a.semaphore("jobs", 2).acquire().await.unwrap();
        let waiting = wait_until_queued(&b.semaphore("jobs", 2), 2).await;
        // It reads free capacity immediately and writes 400 ms later; meanwhile two waiters are
        // granted.
        proxy.delay(Direction::ToClient, 400 * MS);
        let barges = {
            let barging = barging.clone();
            tokio::spawn(async move { barging.try_acquire().await.unwrap() })
        };
        tokio::time::sleep(200 * MS).await;
        assert!(held.release().await.unwrap().was_held());
        let heavy = tokio::time::timeout(SOON, waiting).await.unwrap().unwrap();
        let barged = barges.await.unwrap();
        proxy.heal();
        assert!(heavy.is_held());
        assert!(barged.is_busy(), "three permits of two, round {round}");
        assert!(heavy.release().await.unwrap().was_held());
    }
}

/// More claims than one transaction can check.
const LARGE: u32 = 130;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn shrinking_a_large_semaphore_keeps_all_holders() {
    let cluster = EtcdCluster::start().unwrap();
    let proxy = FaultProxy::start(cluster.addr(0)).unwrap();
    let (a, b) = (connect(&cluster).await, connect(&cluster).await);
    let slow = through(&cluster, &proxy, SOON).await;
    let of = |w: &Coordinator| w.semaphore("jobs", LARGE).adopt_size();
    assert_eq!(of(&slow).resize(LARGE).await.unwrap(), None); // so that it has all its leases
    let mut held = many(&of(&a), LARGE).await;
    let waiting = wait_until_queued(&of(&b), 1).await;
    // It reads the holders immediately and decides 400 ms later; meanwhile the waiter is granted.
    proxy.delay(Direction::ToClient, 400 * MS);
    let smaller = {
        let semaphore = of(&slow);
        tokio::spawn(async move { semaphore.resize(10).await.unwrap() })
    };
    tokio::time::sleep(200 * MS).await;
    assert!(held.pop().unwrap().release().await.unwrap().was_held());
    let late = tokio::time::timeout(SOON, waiting).await.unwrap().unwrap();
    assert_eq!(smaller.await.unwrap(), Some(LARGE));
    proxy.heal();
    let seen = of(&a).inspect_up_to(0).await.unwrap();
    assert_eq!((seen.size, seen.used), (10, u64::from(LARGE)), "{seen:?}");
    late.renew().await.unwrap();
    assert!(late.is_held());
    assert!(late.release().await.unwrap().was_held());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn barging_respects_the_capacity_of_a_large_semaphore() {
    let cluster = EtcdCluster::start().unwrap();
    let proxy = FaultProxy::start(cluster.addr(0)).unwrap();
    let (a, b) = (connect(&cluster).await, connect(&cluster).await);
    let slow = through(&cluster, &proxy, SOON).await;
    let of = |w: &Coordinator| w.semaphore("jobs", LARGE);
    let barging = of(&slow).order(Order::Barging);
    let warm = barging.acquire().await.unwrap(); // so that it has all its leases
    assert!(warm.release().await.unwrap().was_held());
    let mut held = many(&of(&a), LARGE - 1).await;
    let waiting = wait_until_queued(&of(&b), 2).await;
    // It reads free capacity immediately and writes 400 ms later; meanwhile two waiters are
    // granted.
    proxy.delay(Direction::ToClient, 400 * MS);
    let barges = {
        let barging = barging.clone();
        tokio::spawn(async move { barging.try_acquire().await.unwrap() })
    };
    tokio::time::sleep(200 * MS).await;
    assert!(held.pop().unwrap().release().await.unwrap().was_held());
    let heavy = tokio::time::timeout(SOON, waiting).await.unwrap().unwrap();
    let barged = barges.await.unwrap();
    proxy.heal();
    assert!(barged.is_busy(), "more permits than the capacity");
    // Now two units are free, but the first waiter wants three.
    assert!(heavy.release().await.unwrap().was_held());
    let waiting = wait_until_queued(&of(&b), 3).await;
    let barged = barging.try_acquire().await.unwrap();
    let barged = barged.acquired().expect("there is a free permit");
    assert!(held.pop().unwrap().release().await.unwrap().was_held());
    assert!(barged.release().await.unwrap().was_held());
    let heavy = tokio::time::timeout(SOON, waiting).await.unwrap().unwrap();
    assert!(heavy.release().await.unwrap().was_held());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn busy_semaphore_is_resized_in_time() {
    let cluster = EtcdCluster::start().unwrap();
    let (a, b) = (connect(&cluster).await, connect(&cluster).await);
    let of = |w: &Coordinator| w.semaphore("jobs", 8).adopt_size();
    let mut busy = tokio::task::JoinSet::new();
    for _ in 0..16 {
        let semaphore = of(&a);
        busy.spawn(async move {
            loop {
                let permit = semaphore.acquire().await.unwrap();
                tokio::time::sleep(5 * MS).await;
                let _ = permit.release().await;
            }
        });
    }
    for size in [4, 9, 3, 8] {
        let since = std::time::Instant::now();
        of(&b).resize(size).await.unwrap();
        println!("resized to {size} after {:?}", since.elapsed());
    }
}

/// Waiters behind one that gives up may be granted without a release: it was the one that watched
/// for its client.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn waiter_that_gives_up_lets_the_next_of_its_client_in() {
    let cluster = EtcdCluster::start().unwrap();
    let (a, b) = (connect(&cluster).await, connect(&cluster).await);
    // The next heartbeat of the waiters is 40 s away.
    let jobs = |w: &Coordinator| w.semaphore("jobs", 3).ttl(120_000 * MS);
    let inside = jobs(&a).acquire_many(2).await.unwrap();
    for _ in 0..5 {
        let heavy = wait_until_queued(&jobs(&b), 2).await;
        let light = jobs(&b);
        let light = tokio::spawn(async move { light.acquire().await.unwrap() });
        let lined_up = || async { jobs(&a).inspect_up_to(0).await.unwrap().waiters == 2 };
        assert!(eventually(SOON, lined_up).await);
        heavy.abort();
        let let_in = tokio::time::timeout(2 * SOON, light).await;
        let permit = let_in.expect("it fits now").unwrap();
        assert!(permit.release().await.unwrap().was_held());
    }
    assert!(inside.release().await.unwrap().was_held());
}
