//! The wait queue: wake-ups and fences of waiters.

use std::time::Duration;

use windlass::RetryPolicy;
use windlass_testkit::conformance::{SOON, wait_for_waiters};
use windlass_testkit::{EtcdCluster, FaultProxy, eventually};

const MS: Duration = Duration::from_millis(1);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn try_acquire_by_same_owner_keeps_the_waiters_wake_up() {
    let cluster = EtcdCluster::start().unwrap();
    let w = windlass::connect(&cluster.url()).await.unwrap();
    let ttl = 60_000 * MS; // so that the next heartbeat is far away
    let holder = w.lock("stock").acquire().await.unwrap();
    let waits = w.lock("stock").owner("job").ttl(ttl);
    let waiting = tokio::spawn({
        let waits = waits.clone();
        async move { waits.acquire().await.unwrap() }
    });
    wait_for_waiters(&w, "stock", 1).await;
    tokio::time::sleep(100 * MS).await; // let it watch
    let several = w.locks(["stock", "yard"]).owner("job");
    assert!(several.try_acquire().await.unwrap().is_busy());
    assert!(waits.try_acquire().await.unwrap().is_busy());
    assert!(holder.release().await.unwrap().was_held());
    drop(tokio::time::timeout(SOON, waiting).await.unwrap().unwrap());

    let jobs = w.semaphore("jobs", 1);
    let holder = jobs.acquire().await.unwrap();
    let waits = w.semaphore("jobs", 1).owner("job").ttl(ttl);
    let waiting = tokio::spawn({
        let waits = waits.clone();
        async move { waits.acquire().await.unwrap() }
    });
    let lined_up = || async { jobs.inspect_up_to(0).await.unwrap().waiters == 1 };
    assert!(eventually(SOON, lined_up).await);
    tokio::time::sleep(100 * MS).await; // let it watch
    assert!(waits.try_acquire().await.unwrap().is_busy());
    assert!(holder.release().await.unwrap().was_held());
    drop(tokio::time::timeout(SOON, waiting).await.unwrap().unwrap());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn waiter_passed_over_as_too_heavy_gets_a_higher_fence() {
    let cluster = EtcdCluster::start().unwrap();
    let proxy = FaultProxy::start(cluster.addr(0)).unwrap();
    let w = windlass::connect(&cluster.url()).await.unwrap();
    let far = cluster.url_of(&proxy.addr().to_string());
    let far = windlass::connect(&far).await.unwrap();
    let large = w.semaphore("jobs", 4);
    let held = large.acquire_many(2).await.unwrap();
    let patient = RetryPolicy::tries(100);
    let waits = far.semaphore("jobs", 4).ttl(60_000 * MS).retry(patient);
    let waiting = tokio::spawn(async move { waits.acquire_many(3).await.unwrap() });
    let lined_up = || async { large.inspect_up_to(0).await.unwrap().waiters == 1 };
    assert!(eventually(SOON, lined_up).await);
    tokio::time::sleep(100 * MS).await; // let it learn that it is queued
    // It is disconnected while it becomes too heavy, and then no longer is.
    proxy.refuse(true);
    proxy.reset_all();
    large.resize(2).await.unwrap();
    assert!(held.release().await.unwrap().was_held());
    let passes = w.semaphore("jobs", 2).acquire().await.unwrap();
    let fence = passes.fence();
    assert!(passes.release().await.unwrap().was_held());
    large.resize(4).await.unwrap();
    proxy.refuse(false);
    let heavy = tokio::time::timeout(6 * SOON, waiting).await;
    let heavy = heavy.unwrap().unwrap();
    assert!(heavy.fence() > fence, "{:?} after {fence:?}", heavy.fence());
}
