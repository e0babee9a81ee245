//! Locks whose names contain each other, such as `shop` and `shop/7`, are independent.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::task::JoinSet;
use windlass::Coordinator;
use windlass_testkit::conformance::{SOON, wait_for_waiters};
use windlass_testkit::{Direction, EtcdCluster, FaultProxy, eventually};

const MS: Duration = Duration::from_millis(1);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nested_names_and_kinds_are_independent() {
    let cluster = EtcdCluster::start().unwrap();
    let w = windlass::connect(&cluster.url()).await.unwrap();
    let outer = w.lock("shop").acquire().await.unwrap();
    let inner = w
        .lock("shop/7")
        .try_acquire()
        .await
        .unwrap()
        .acquired()
        .unwrap();
    let leader = w
        .election("shop")
        .try_campaign("me")
        .await
        .unwrap()
        .acquired()
        .unwrap();
    let again = w.lock("shop").try_acquire().await.unwrap();
    assert!(again.is_busy());
    assert!(outer.release().await.unwrap().was_held());
    // With foreign keys below the name, both try and wait still work.
    let outer = w
        .lock("shop")
        .try_acquire()
        .await
        .unwrap()
        .acquired()
        .unwrap();
    let waiting = tokio::spawn({
        let w = w.clone();
        async move { w.lock("shop").acquire().await.unwrap() }
    });
    wait_for_waiters(&w, "shop", 1).await;
    assert!(outer.release().await.unwrap().was_held());
    let outer = tokio::time::timeout(SOON, waiting).await.unwrap().unwrap();
    assert_eq!(w.list_locks("*").await.unwrap().len(), 2);
    drop((outer, inner, leader));
}

/// Acquires and releases locks below a name continuously, until the result is dropped.
async fn churn_nested_names(w: &Coordinator, within: &str) -> JoinSet<()> {
    let mut busy = JoinSet::new();
    for n in 0..16 {
        let lock = w.lock(&format!("{within}/{n}"));
        busy.spawn(async move {
            loop {
                let guard = lock.acquire().await.unwrap();
                // Held for a moment, so that there is always a key that is newer than another
                // client's read.
                tokio::time::sleep(5 * MS).await;
                let _ = guard.release().await;
            }
        });
    }
    let within = format!("{within}/*");
    let has_begun = || async { !w.list_locks(&within).await.unwrap().is_empty() };
    assert!(eventually(SOON, has_begun).await);
    busy
}

async fn assert_free(w: &Coordinator, names: &[&str]) {
    for name in names {
        let left = w.lock(name).inspect().await.unwrap();
        assert!(left.holder.is_none() && left.waiters == 0, "{left:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn try_acquire_works_while_nested_names_change() {
    let cluster = EtcdCluster::start().unwrap();
    let w = windlass::connect(&cluster.url()).await.unwrap();
    let _busy = churn_nested_names(&w, "shop").await;
    for _ in 0..20 {
        let tried = w.lock("shop").try_acquire().await.unwrap();
        let guard = tried.acquired().expect("nobody has it");
        let again = w.lock("shop").try_acquire().await.unwrap();
        assert!(again.is_busy());
        assert!(guard.release().await.unwrap().was_held());
    }
    assert_free(&w, &["shop"]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slow_client_gets_several_locks_while_nested_names_change() {
    let cluster = EtcdCluster::start().unwrap();
    let proxy = FaultProxy::start(cluster.addr(0)).unwrap();
    let w = windlass::connect(&cluster.url()).await.unwrap();
    let slow = cluster.url_of(&proxy.addr().to_string());
    let slow = windlass::connect(&slow).await.unwrap();
    let warm = slow.locks(["warm"]).acquire().await.unwrap();
    assert!(warm.release().await.unwrap().was_held());
    let _busy = churn_nested_names(&w, "shop").await;
    // By the time it decides, what it has read below the name has changed.
    proxy.delay(Direction::ToClient, 100 * MS);
    let both = slow.locks(["shop", "yard"]).try_acquire().await.unwrap();
    let both = both.acquired().expect("nobody has either");
    let again = slow.locks(["yard", "shop"]).try_acquire().await.unwrap();
    assert!(again.is_busy());
    assert!(both.release().await.unwrap().was_held());
    assert_free(&w, &["shop", "yard"]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn several_clients_get_several_locks_while_nested_names_change() {
    let cluster = EtcdCluster::start().unwrap();
    let w = windlass::connect(&cluster.url()).await.unwrap();
    let _busy = churn_nested_names(&w, "shop").await;
    let inside = Arc::new(AtomicU64::new(0));
    let mut had = 0;
    let mut tasks = JoinSet::new();
    for names in [["shop", "yard"], ["yard", "shop"], ["shop", "barn"]] {
        let (locks, inside) = (w.locks(names), Arc::clone(&inside));
        tasks.spawn(async move {
            let mut had = 0;
            for _ in 0..40 {
                let tried = locks.try_acquire().await.unwrap();
                let Some(guard) = tried.acquired() else {
                    continue;
                };
                assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0, "two at once");
                tokio::task::yield_now().await;
                inside.fetch_sub(1, Ordering::SeqCst);
                assert!(guard.release().await.unwrap().was_held());
                had += 1;
            }
            had
        });
    }
    while let Some(task) = tasks.join_next().await {
        had += task.unwrap();
    }
    assert!(had > 0, "nobody had any");
    assert_free(&w, &["shop", "yard", "barn"]).await;
}
