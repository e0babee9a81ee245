//! Those who wait, and what they are told.

use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use windlass::LockGuard;
use windlass_testkit::conformance::{SOON, wait_for_waiters, wait_until_free};
use windlass_testkit::{EtcdVersion, eventually};

use super::*;

/// One who waits far away, and has just been cut off.
struct DisconnectedWaiter {
    cluster: EtcdCluster,
    proxy: FaultProxy,
    holder: LockGuard,
    /// Its next heartbeat is 20 s away.
    waiting: JoinHandle<LockGuard>,
}

async fn disconnected_waiter() -> DisconnectedWaiter {
    let cluster = EtcdCluster::start().unwrap();
    let proxy = FaultProxy::start(cluster.addr(0)).unwrap();
    let (a, b) = (
        connect(&cluster).await,
        through(&cluster, &proxy, 1000 * MS).await,
    );
    let holder = a.lock("stock").acquire().await.unwrap();
    let waiting =
        tokio::spawn(async move { b.lock("stock").ttl(60_000 * MS).acquire().await.unwrap() });
    wait_for_waiters(&a, "stock", 1).await;
    tokio::time::sleep(100 * MS).await; // let it watch
    proxy.refuse(true);
    proxy.reset_all();
    DisconnectedWaiter {
        cluster,
        proxy,
        holder,
        waiting,
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn dead_waiter_is_never_granted() {
    let cluster = EtcdCluster::start().unwrap();
    let (a, b) = (connect(&cluster).await, connect(&cluster).await);
    let holder = a.lock("stock").acquire().await.unwrap();
    let waiting = tokio::spawn(async move {
        let guard = b.lock("stock").owner("waiter").acquire().await.unwrap();
        (guard.fence(), guard)
    });
    wait_for_waiters(&a, "stock", 1).await;
    let place = cluster
        .ctl(&["get", "--prefix", "stock/lock:waiter", "-w", "fields"])
        .unwrap();
    assert!(place.contains("CreateRevision"), "{place}");
    // Its key vanishes while it waits, as with an expired lease: it must not take an empty place for its own.
    cluster.ctl(&["del", "stock/lock:waiter"]).unwrap();
    let third = a.lock("stock").acquire_within(50 * MS).await.unwrap();
    assert!(third.is_busy());
    assert!(holder.release().await.unwrap().was_held());
    let (fence, guard) = tokio::time::timeout(SOON, waiting)
        .await
        .expect("lined up again")
        .unwrap();
    let holder = a
        .lock("stock")
        .inspect()
        .await
        .unwrap()
        .holder
        .expect("the key is there");
    assert_eq!(holder.owner, "waiter");
    assert_eq!(holder.fence, Some(fence));
    assert!(guard.release().await.unwrap().was_held());
    wait_until_free(&a, "stock").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn compaction_while_disconnected_loses_no_wake_up() {
    let DisconnectedWaiter {
        cluster,
        proxy,
        holder,
        waiting,
    } = disconnected_waiter().await;
    assert!(holder.release().await.unwrap().was_held());
    compact(&cluster);
    proxy.refuse(false);
    proxy.heal();
    // What it waited for is not in the history any more. Its next heartbeat would be 20 s away.
    let guard = tokio::time::timeout(2 * SOON, waiting)
        .await
        .expect("looked by itself")
        .unwrap();
    assert!(guard.is_held());
    assert!(guard.release().await.unwrap().was_held());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn compaction_keeps_watching_the_waiter_ahead() {
    let DisconnectedWaiter {
        cluster,
        proxy,
        holder,
        waiting,
    } = disconnected_waiter().await;
    compact(&cluster);
    proxy.refuse(false);
    proxy.heal();
    tokio::time::sleep(3000 * MS).await; // let it hear that its watch is over
    assert!(holder.release().await.unwrap().was_held());
    // Its next heartbeat would be 20 s away.
    let guard = tokio::time::timeout(SOON, waiting)
        .await
        .expect("still watches the one ahead")
        .unwrap();
    assert!(guard.release().await.unwrap().was_held());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn waiters_keep_their_tickets_over_a_restart() {
    let cluster = EtcdCluster::builder()
        .version(EtcdVersion::V3_5)
        .start()
        .unwrap();
    let w = connect(&cluster).await;
    let watcher = w.clone();
    let holder = w.lock("stock").ttl(20_000 * MS).acquire().await.unwrap();
    let (served, mut order) = mpsc::unbounded_channel();
    for i in 0..5 {
        let (w, served) = (w.clone(), served.clone());
        tokio::spawn(async move {
            let guard = w.lock("stock").ttl(20_000 * MS).acquire().await.unwrap();
            served.send(i).unwrap();
            tokio::time::sleep(5 * MS).await;
            while guard.renew().await.is_err() && guard.is_held() {}
            let _ = guard.release().await;
        });
        wait_for_waiters(&watcher, "stock", i + 1).await;
    }
    cluster.kill(0).unwrap();
    tokio::time::sleep(300 * MS).await;
    assert!(holder.is_held(), "its lease lives on");
    cluster.restart(0).unwrap();
    let released = eventually(SOON, || async { holder.renew().await.is_ok() });
    assert!(released.await);
    assert!(holder.release().await.unwrap().was_held());
    for i in 0..5 {
        let who = tokio::time::timeout(2 * SOON, order.recv())
            .await
            .expect("served")
            .unwrap();
        assert_eq!(who, i, "first come, first served");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn watches_resume_after_an_idle_period() {
    let cluster = EtcdCluster::start().unwrap();
    let proxy = FaultProxy::start(cluster.addr(0)).unwrap();
    let (a, b) = (
        connect(&cluster).await,
        through(&cluster, &proxy, 2000 * MS).await,
    );
    let wait = |w: &Coordinator| {
        let lock = w.lock("stock").ttl(60_000 * MS);
        tokio::spawn(async move { lock.acquire().await })
    };
    for _ in 0..5 {
        let holder = a.lock("stock").acquire().await.unwrap();
        let waiting = wait(&b);
        wait_for_waiters(&a, "stock", 1).await;
        tokio::time::sleep(50 * MS).await; // let it watch
        // The only watch ends between two connections.
        proxy.reset_all();
        tokio::time::sleep(2 * MS).await;
        waiting.abort();
        wait_for_waiters(&a, "stock", 0).await;
        let waiting = wait(&b);
        wait_for_waiters(&a, "stock", 1).await;
        assert!(holder.release().await.unwrap().was_held());
        // Its next heartbeat would be 20 s away.
        let guard = tokio::time::timeout(SOON, waiting)
            .await
            .expect("woken")
            .unwrap()
            .unwrap();
        assert!(guard.release().await.unwrap().was_held());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn queue_keeps_its_order_over_broken_connections() {
    const CROWD: usize = 200;
    let cluster = EtcdCluster::start().unwrap();
    let proxy = FaultProxy::start(cluster.addr(0)).unwrap();
    let (a, b) = (
        connect(&cluster).await,
        through(&cluster, &proxy, 2000 * MS).await,
    );
    let holder = a.lock("stock").ttl(60_000 * MS).acquire().await.unwrap();
    let (served, mut order) = mpsc::unbounded_channel();
    for i in 0..CROWD {
        let (w, served) = (b.clone(), served.clone());
        tokio::spawn(async move {
            let lock = w.lock("stock").ttl(60_000 * MS);
            let lock = lock.retry(windlass::RetryPolicy::tries(100));
            let guard = lock.acquire().await.unwrap();
            served.send((i, guard.fence())).unwrap();
            // Withdrawn by its owner if no answer comes.
            let _ = guard.release().await;
        });
        if i % 20 == 19 {
            wait_for_waiters(&a, "stock", i as u64 + 1).await;
        }
    }
    let before = proxy.connections();
    for _ in 0..10 {
        proxy.reset_all();
        tokio::time::sleep(30 * MS).await;
    }
    let made = proxy.connections() - before;
    // One for all of them each time, not one for each of them.
    assert!(made <= 40, "{made} connections");
    assert!(holder.release().await.unwrap().was_held());
    let mut last = None;
    for n in 0..CROWD {
        let (_, fence) = tokio::time::timeout(4 * SOON, order.recv())
            .await
            .expect("served")
            .unwrap();
        assert!(last < Some(fence), "{fence:?} after {last:?}");
        last = Some(fence);
        if n % 50 == 25 {
            proxy.reset_all();
        }
    }
    wait_until_free(&a, "stock").await;
}
