//! Semaphores.

mod capacity;

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use windlass::{Coordinator, ErrorKind, Options, Order, Released};

pub use self::capacity::{
    different_capacity_is_rejected, growing_wakes_waiters, shrinking_revokes_no_permit,
};
use super::{CASE_TIMEOUT, SOON, TestStore};
use crate::eventually;

/// Waits until the semaphore `jobs` has `count` waiters.
async fn wait_for_waiters(w: &Coordinator, count: u64) {
    let look = || async {
        w.semaphore("jobs", 1)
            .inspect_up_to(0)
            .await
            .unwrap()
            .waiters
    };
    let seen = eventually(SOON, || async { look().await == count }).await;
    assert!(seen, "expected {count} waiters, found {}", look().await);
}

async fn wait_until_free(w: &Coordinator, size: u32) {
    let free = eventually(SOON, || async {
        let seen = w.semaphore("jobs", size).inspect_up_to(9).await.unwrap();
        seen.used == 0 && seen.waiters == 0
    });
    assert!(free.await, "something was left behind");
}

/// With many concurrent clients.
pub async fn never_exceeds_its_capacity(store: &TestStore) {
    const SIZE: u32 = 3;
    let (a, b) = (store.connect().await, store.connect().await);
    let (inside, most) = (Arc::new(AtomicU32::new(0)), Arc::new(AtomicU32::new(0)));
    let tasks: Vec<_> = (0..30)
        .map(|i| {
            let w = if i % 2 == 0 { a.clone() } else { b.clone() };
            let (inside, most) = (Arc::clone(&inside), Arc::clone(&most));
            tokio::spawn(async move {
                let permit = w.semaphore("jobs", SIZE).acquire().await.unwrap();
                let now = inside.fetch_add(1, Ordering::SeqCst) + 1;
                most.fetch_max(now, Ordering::SeqCst);
                tokio::time::sleep(Duration::from_millis(20)).await; // work
                inside.fetch_sub(1, Ordering::SeqCst);
                assert!(permit.release().await.unwrap().was_held());
            })
        })
        .collect();
    for task in tasks {
        task.await.unwrap();
    }
    assert_eq!(most.load(Ordering::SeqCst), SIZE, "no more, and no fewer");
    wait_until_free(&a, SIZE).await;
}

/// Granted or denied immediately, without disturbing the holders.
pub async fn try_acquire_answers_immediately(store: &TestStore) {
    let w = store.connect().await;
    let jobs = w.semaphore("jobs", 5);
    let two = jobs.try_acquire_many(2).await.unwrap().acquired().unwrap();
    let three = jobs.try_acquire_many(3).await.unwrap().acquired().unwrap();
    assert_eq!((two.weight(), three.weight()), (2, 3));
    assert!(jobs.try_acquire().await.unwrap().is_busy());
    assert_eq!(jobs.available().await.unwrap(), 0);
    assert!(two.release().await.unwrap().was_held());
    assert_eq!(jobs.available().await.unwrap(), 2);
    assert!(
        jobs.try_acquire_many(3).await.unwrap().is_busy(),
        "all or none"
    );
    let one = jobs.try_acquire().await.unwrap().acquired().unwrap();
    assert!(one.fence() > three.fence());
    drop((one, three));
    wait_until_free(&w, 5).await;
}

/// A heavy waiter is not starved by later light ones.
pub async fn heavy_waiters_are_not_starved(store: &TestStore) {
    let (a, b) = (store.connect().await, store.connect().await);
    let mut light = Vec::new();
    for _ in 0..5 {
        light.push(a.semaphore("jobs", 5).acquire().await.unwrap());
    }
    let heavy = tokio::spawn(async move { b.semaphore("jobs", 5).acquire_many(5).await.unwrap() });
    wait_for_waiters(&a, 1).await;
    let mut later = Vec::new();
    for i in 0..3 {
        let a = a.clone();
        later.push(tokio::spawn(async move {
            a.semaphore("jobs", 5).acquire().await.unwrap()
        }));
        let w = store.connect().await;
        wait_for_waiters(&w, i + 2).await;
    }
    let last = light.pop().unwrap();
    for permit in light {
        assert!(permit.release().await.unwrap().was_held());
        // One unit is free, and the waiter wants one, but it is not first.
        assert!(
            a.semaphore("jobs", 5)
                .try_acquire()
                .await
                .unwrap()
                .is_busy()
        );
    }
    assert!(later.iter().all(|task| !task.is_finished()));
    assert!(last.release().await.unwrap().was_held());
    let heavy = tokio::time::timeout(SOON, heavy).await.unwrap().unwrap();
    assert!(later.iter().all(|task| !task.is_finished()));
    let fence = heavy.fence();
    assert!(heavy.release().await.unwrap().was_held());
    for task in later {
        let permit = tokio::time::timeout(SOON, task).await.unwrap().unwrap();
        assert!(permit.fence() > fence);
        drop(permit);
    }
    wait_until_free(&a, 5).await;
}

/// A barging client takes what is free; fences still increase from grant to grant.
pub async fn barging_overtakes_waiters(store: &TestStore) {
    let (a, b) = (store.connect().await, store.connect().await);
    let jobs = a.semaphore("jobs", 3);
    let held = jobs.acquire_many(2).await.unwrap();
    let waiting =
        tokio::spawn(async move { b.semaphore("jobs", 3).acquire_many(2).await.unwrap() });
    wait_for_waiters(&a, 1).await;
    assert!(jobs.try_acquire().await.unwrap().is_busy(), "in turn");
    let barging = jobs.clone().order(Order::Barging);
    let barged = barging.try_acquire().await.unwrap().acquired().unwrap();
    assert!(barged.fence() > held.fence());
    assert!(held.release().await.unwrap().was_held());
    let served = tokio::time::timeout(SOON, waiting).await.unwrap().unwrap();
    assert!(
        served.fence() > barged.fence(),
        "granted later, so its fence is higher: {} and {}",
        served.fence(),
        barged.fence()
    );
    assert!(served.is_held());
    drop((served, barged));
    wait_until_free(&a, 3).await;
}

/// By a wake-up, not by polling: long before the next heartbeat, which would be 20 s away. One
/// release may admit several waiters.
pub async fn waiters_that_fit_are_woken_immediately(store: &TestStore) {
    let b = store.connect().await;
    are_woken_at_once(store, [b.clone(), b.clone(), b.clone(), b]).await;
}

/// The same for waiters of different clients, none of which can wake another.
pub async fn waiters_that_fit_of_other_clients_are_woken(store: &TestStore) {
    let [b, c, d, e] = [(); 4].map(|()| store.connect());
    are_woken_at_once(store, [b.await, c.await, d.await, e.await]).await;
}

async fn are_woken_at_once(store: &TestStore, clients: [Coordinator; 4]) {
    let a = store.connect().await;
    let all = a.semaphore("jobs", 4).acquire_many(4).await.unwrap();
    let mut waiting = Vec::new();
    for (client, before) in clients.into_iter().zip(0..) {
        waiting.push(tokio::spawn(async move {
            let jobs = client.semaphore("jobs", 4).ttl(Duration::from_secs(60));
            jobs.acquire().await.unwrap()
        }));
        wait_for_waiters(&a, before + 1).await;
    }
    let released = Instant::now();
    assert!(all.release().await.unwrap().was_held());
    let mut served = Vec::new();
    for task in waiting {
        served.push(task.await.unwrap());
    }
    assert!(
        released.elapsed() < SOON,
        "woken after {:?}",
        released.elapsed()
    );
    assert!(served.is_sorted_by_key(|permit| permit.fence()));
    drop(served);
    wait_until_free(&a, 4).await;
}

/// A crash frees the permits after the TTL, once.
pub async fn crashed_holder_frees_its_permits_after_the_ttl(store: &TestStore) {
    let (a, b) = (store.connect().await, store.connect().await);
    let ttl = store.ttl(Duration::from_millis(400));
    let dying = a.semaphore("jobs", 3).ttl(ttl).without_renewal();
    let dead = dying.acquire_many(2).await.unwrap();
    let since = Instant::now();
    std::mem::forget(dead);
    let alive = a.semaphore("jobs", 3).acquire().await.unwrap();
    let jobs = b.semaphore("jobs", 3);
    let served = tokio::time::timeout(SOON, jobs.acquire_many(2)).await;
    let served = served.expect("the dead make room").unwrap();
    let waited = since.elapsed();
    let limit = ttl + store.expiry_delay() + Duration::from_secs(1);
    assert!(waited < limit, "{waited:?}");
    assert!(
        jobs.try_acquire().await.unwrap().is_busy(),
        "not freed twice"
    );
    drop((alive, served));
    wait_until_free(&a, 3).await;
    drop(jobs.try_acquire_many(3).await.unwrap().acquired().unwrap());
}

/// A permit lives as long as it is renewed, and no longer.
pub async fn permit_lives_while_renewed(store: &TestStore) {
    let (a, b) = (store.connect().await, store.connect().await);
    let ttl = store.ttl(Duration::from_millis(600));
    let renewed = a.semaphore("jobs", 1).ttl(ttl).acquire().await.unwrap();
    tokio::time::sleep(2 * ttl).await; // two TTLs
    assert!(renewed.is_held());
    assert!(
        b.semaphore("jobs", 1)
            .try_acquire()
            .await
            .unwrap()
            .is_busy()
    );
    // Broken by force: reported at the next renewal.
    let owner = renewed.owner().to_string();
    assert!(
        b.semaphore("jobs", 1)
            .release_as(owner)
            .await
            .unwrap()
            .was_held()
    );
    tokio::time::timeout(SOON, renewed.lost())
        .await
        .expect("the loss is reported");
    assert!(!renewed.release().await.unwrap().was_held());
    // Manual renewal works while the permit lives, and fails afterwards.
    let by_hand = b.semaphore("jobs", 1).ttl(ttl).without_renewal();
    let permit = by_hand.acquire().await.unwrap();
    tokio::time::sleep(ttl / 2).await; // half a TTL
    permit.renew().await.unwrap();
    tokio::time::sleep(2 * ttl + store.expiry_delay()).await; // the whole TTL, and more
    assert_eq!(permit.renew().await.unwrap_err().kind(), ErrorKind::Lost);
    assert!(!permit.is_held());
    assert_eq!(permit.release().await.unwrap(), Released::WasGone);
    wait_until_free(&a, 1).await;
}

/// Only its own permit, and only once.
pub async fn only_the_owner_releases_once(store: &TestStore) {
    let (a, b) = (store.connect().await, store.connect().await);
    let jobs = a.semaphore("jobs", 2);
    let permit = jobs.clone().owner("me").acquire().await.unwrap();
    let stranger = b.semaphore("jobs", 2);
    assert_eq!(stranger.release_as("you").await.unwrap(), Released::WasGone);
    assert_eq!(jobs.available().await.unwrap(), 1);
    assert!(stranger.release_as("me").await.unwrap().was_held());
    assert_eq!(stranger.release_as("me").await.unwrap(), Released::WasGone);
    assert_eq!(jobs.available().await.unwrap(), 2, "freed once");
    assert_eq!(permit.release().await.unwrap(), Released::WasGone);
    assert_eq!(jobs.available().await.unwrap(), 2, "freed once");
}

/// The same owner keeps its permit, and cannot have a second one.
pub async fn same_owner_reacquires(store: &TestStore) {
    let w = store.connect().await;
    let jobs = w.semaphore("jobs", 3).owner("me");
    let first = jobs.acquire_many(2).await.unwrap();
    let again = jobs.acquire_many(2).await.unwrap();
    assert_eq!(first.fence(), again.fence());
    assert_eq!(jobs.available().await.unwrap(), 1);
    let e = jobs.acquire().await.unwrap_err();
    assert_eq!(e.kind(), ErrorKind::Mismatch);
    assert!(e.to_string().contains("claim to 2"), "{e}");
    assert!(again.release().await.unwrap().was_held());
    drop(first);
    wait_until_free(&w, 3).await;
}

/// Holders, weights, times and notes.
pub async fn inspect_reports_holders_and_weights(store: &TestStore) {
    let w = store.connect().await;
    let jobs = w.semaphore("jobs", 10).ttl(Duration::from_secs(40));
    let a = jobs.clone().note("nightly").acquire_many(3).await.unwrap();
    let b = jobs
        .clone()
        .ttl(Duration::from_secs(20))
        .acquire()
        .await
        .unwrap();
    let seen = jobs.inspect().await.unwrap();
    assert_eq!((seen.size, seen.used, seen.waiters), (10, 4, 0));
    let holders = seen.holders;
    assert_eq!(holders.len(), 2);
    assert_eq!(holders[0].owner, b.owner().as_str(), "ends first");
    assert_eq!(
        (holders[1].weight, holders[1].note.as_deref()),
        (3, Some("nightly"))
    );
    assert_eq!(holders[1].fence, Some(a.fence()));
    assert!(holders[1].remaining.unwrap() > Duration::from_secs(30));
    assert_eq!(jobs.inspect_up_to(1).await.unwrap().holders.len(), 1);
    let all = w.survey("j*", 10).await.unwrap();
    assert_eq!((all.len(), all[0].kind.word()), (1, "sem"));
    assert!(w.list_locks("*").await.unwrap().is_empty(), "no lock");
    // A lock of the same name is independent.
    let lock = w.lock("jobs").note("mine").acquire().await.unwrap();
    assert_eq!(w.survey("*", 1).await.unwrap().len(), 2);
    drop((a, b, lock));
    wait_until_free(&w, 10).await;
}

/// A permit can be handed to another process.
pub async fn detached_permit_can_be_attached(store: &TestStore) {
    let (a, b) = (store.connect().await, store.connect().await);
    let permit = a.semaphore("jobs", 3).acquire_many(2).await.unwrap();
    let fence = permit.fence();
    let detached = permit.detach().await.unwrap();
    assert_eq!(b.semaphore("jobs", 3).available().await.unwrap(), 1);
    let owner = detached.owner.as_str();
    let taken = b.semaphore("jobs", 3).attach(owner).await.unwrap();
    assert_eq!((taken.fence(), taken.weight()), (fence, 2));
    assert!(taken.release().await.unwrap().was_held());
    let e = b.semaphore("jobs", 3).attach(owner).await.unwrap_err();
    assert_eq!(e.kind(), ErrorKind::Lost);
}

/// Each invalid input has its own error, before anything is sent.
pub async fn invalid_input_is_rejected(store: &TestStore) {
    let w = store.connect().await;
    for size in [0, 1_000_001] {
        let e = w.semaphore("jobs", size).try_acquire().await.unwrap_err();
        assert_eq!(e.kind(), ErrorKind::InvalidInput, "{size}");
        let e = w.semaphore("jobs", 1).resize(size).await.unwrap_err();
        assert_eq!(e.kind(), ErrorKind::InvalidInput, "{size}");
    }
    for weight in [0, 4, 1_000_001] {
        let e = w
            .semaphore("jobs", 3)
            .acquire_many(weight)
            .await
            .unwrap_err();
        assert_eq!(e.kind(), ErrorKind::InvalidInput, "{weight}");
    }
    assert!(w.semaphore("", 1).acquire().await.is_err());
    drop(w.semaphore("jobs", 1_000_000).acquire().await.unwrap());
}

/// A dropped future leaves no permit and no ticket.
pub async fn cancellation_leaves_nothing_behind(store: &TestStore) {
    let (a, b) = (store.connect().await, store.connect().await);
    for after in [0, 1, 100, 300, 1000, 3000] {
        let jobs = a.semaphore("jobs", 2);
        let acquire = jobs.acquire_many(2);
        let _ = tokio::time::timeout(Duration::from_micros(after), acquire).await;
        wait_until_free(&b, 2).await;
    }
    let all = a.semaphore("jobs", 2).acquire_many(2).await.unwrap();
    for after in [0, 1, 100, 300, 1000, 3000, 20_000] {
        let jobs = b.semaphore("jobs", 2);
        let waiting = jobs.acquire();
        let _ = tokio::time::timeout(Duration::from_micros(after), waiting).await;
        wait_for_waiters(&a, 0).await;
    }
    assert!(all.release().await.unwrap().was_held());
    wait_until_free(&b, 2).await;
}

/// A dead first waiter blocks those behind it for its own TTL, not for theirs.
pub async fn dead_first_waiter_blocks_for_its_own_ttl(store: &TestStore) {
    let (a, b) = (store.connect().await, store.connect().await);
    let ttl = Duration::from_millis(500);
    let held = a.semaphore("jobs", 3).acquire().await.unwrap();
    // A separate process, as far as the store can tell; then everything in it stops.
    let doomed = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .unwrap();
    let (url, options) = (store.url().to_owned(), store.options());
    doomed.spawn(async move {
        let w = options.connect(&url).await.unwrap();
        let _ = w.semaphore("jobs", 3).ttl(ttl).acquire_many(3).await;
    });
    wait_for_waiters(&a, 1).await;
    let waiting = tokio::spawn(async move {
        let long = Duration::from_secs(120);
        b.semaphore("jobs", 3).ttl(long).acquire().await.unwrap()
    });
    wait_for_waiters(&a, 2).await;
    doomed.shutdown_background();
    let served = tokio::time::timeout(SOON, waiting).await;
    assert!(
        served
            .expect("not for a third of its own ttl")
            .unwrap()
            .is_held()
    );
    drop(held);
}

/// Very many concurrent waiters.
pub async fn many_concurrent_waiters_are_served(store: &TestStore) {
    // More than the number of arguments that a script can pass.
    let crowd = store.concurrency(5000);
    // One decision admits all of them, and may take seconds on a busy machine.
    let w = store
        .connect_with(Options::new().call_timeout(CASE_TIMEOUT))
        .await;
    let all = w.semaphore("jobs", 1).acquire().await.unwrap();
    let tasks: Vec<_> = (0..crowd)
        .map(|_| {
            let jobs = w.semaphore("jobs", 1).ttl(Duration::from_secs(60));
            tokio::spawn(async move { jobs.acquire().await.unwrap() })
        })
        .collect();
    let lined_up = eventually(CASE_TIMEOUT, || async {
        let seen = w.semaphore("jobs", 1).inspect_up_to(0).await.unwrap();
        seen.waiters == u64::from(crowd)
    });
    assert!(lined_up.await);
    let larger = w.semaphore("jobs", 1).resize(crowd + 1).await.unwrap();
    assert_eq!(larger, Some(1));
    let mut permits = Vec::new();
    for task in tasks {
        permits.push(
            tokio::time::timeout(CASE_TIMEOUT, task)
                .await
                .unwrap()
                .unwrap(),
        );
    }
    let seen = w
        .semaphore("jobs", crowd + 1)
        .inspect_up_to(0)
        .await
        .unwrap();
    assert_eq!((seen.used, seen.waiters), (u64::from(crowd) + 1, 0));
    let fences: std::collections::BTreeSet<_> = permits.iter().map(|p| p.fence()).collect();
    assert_eq!(fences.len(), permits.len());
    drop((permits, all));
    let free = eventually(CASE_TIMEOUT, || async {
        let seen = w
            .semaphore("jobs", crowd + 1)
            .inspect_up_to(0)
            .await
            .unwrap();
        seen.used == 0
    });
    assert!(free.await);
}
