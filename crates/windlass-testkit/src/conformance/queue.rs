//! The order of the wait queue.

use std::time::{Duration, Instant};

use tokio::sync::{mpsc, oneshot};
use windlass::Attempt;

use super::{SOON, TestStore, wait_for_waiters, wait_until_free};
use crate::eventually;

/// Waiters of all clients are served in the order of their requests.
pub async fn first_come_first_served(store: &TestStore) {
    const WAITERS: u64 = 20;
    let (a, b) = (store.connect().await, store.connect().await);
    let holder = a.lock("stock").acquire().await.unwrap();
    let (served, mut order) = mpsc::unbounded_channel();
    for i in 0..WAITERS {
        let w = if i % 2 == 0 { a.clone() } else { b.clone() };
        let served = served.clone();
        tokio::spawn(async move {
            let guard = w.lock("stock").acquire().await.unwrap();
            served.send((i, guard.fence())).unwrap();
            assert!(guard.release().await.unwrap().was_held());
        });
        wait_for_waiters(&a, "stock", i + 1).await;
    }
    let mut last = holder.fence();
    assert!(holder.release().await.unwrap().was_held());
    for i in 0..WAITERS {
        let (who, fence) = order.recv().await.unwrap();
        assert_eq!(who, i);
        assert!(fence > last);
        last = fence;
    }
    wait_until_free(&b, "stock").await;
}

/// By a wake-up, not by polling: long before the next heartbeat, which would be 20 s away.
pub async fn waiter_of_another_client_is_woken_immediately(store: &TestStore) {
    let (a, b) = (store.connect().await, store.connect().await);
    for _ in 0..5 {
        let holder = a.lock("stock").acquire().await.unwrap();
        let waiting = tokio::spawn({
            let b = b.clone();
            async move {
                b.lock("stock")
                    .ttl(Duration::from_secs(60))
                    .acquire()
                    .await
                    .unwrap()
            }
        });
        wait_for_waiters(&a, "stock", 1).await;
        let released = Instant::now();
        assert!(holder.release().await.unwrap().was_held());
        let guard = waiting.await.unwrap();
        assert!(
            released.elapsed() < SOON,
            "woken after {:?}",
            released.elapsed()
        );
        assert!(guard.is_held());
        assert!(guard.release().await.unwrap().was_held());
    }
}

/// The result is "busy" with the holder, and the waiter leaves the queue.
pub async fn wait_times_out_and_leaves_the_queue(store: &TestStore) {
    let (a, b) = (store.connect().await, store.connect().await);
    let holder = a.lock("stock").note("busy").acquire().await.unwrap();
    let asked = Instant::now();
    match b
        .lock("stock")
        .acquire_within(Duration::from_millis(80))
        .await
        .unwrap()
    {
        Attempt::Acquired(_) => panic!("two holders"),
        Attempt::Busy(by) => assert_eq!(by.unwrap().owner, holder.owner().as_str()),
    }
    assert!(asked.elapsed() >= Duration::from_millis(80));
    wait_for_waiters(&a, "stock", 0).await;
    let e = b
        .lock("stock")
        .wait(Duration::from_millis(20))
        .acquire()
        .await
        .unwrap_err();
    assert_eq!(e.kind(), windlass::ErrorKind::WaitElapsed);
    assert!(e.to_string().contains(holder.owner().as_str()), "{e}");
    wait_for_waiters(&a, "stock", 0).await;
    assert!(holder.release().await.unwrap().was_held());
}

/// A new request does not slip in between a release and the first waiter.
pub async fn newcomer_does_not_overtake_the_queue(store: &TestStore) {
    let (a, b) = (store.connect().await, store.connect().await);
    let holder = a.lock("stock").acquire().await.unwrap();
    let waiting = tokio::spawn({
        let b = b.clone();
        async move { b.lock("stock").acquire().await.unwrap() }
    });
    wait_for_waiters(&a, "stock", 1).await;
    assert!(holder.release().await.unwrap().was_held());
    // Immediately, perhaps before the waiter knows of its grant.
    assert!(a.lock("stock").try_acquire().await.unwrap().is_busy());
    let guard = waiting.await.unwrap();
    assert!(guard.release().await.unwrap().was_held());
}

/// A waiter whose process ended does not block those behind it: its claim was removed or has
/// expired.
pub async fn dead_waiter_is_skipped(store: &TestStore) {
    let a = store.connect().await;
    let holder = a.lock("stock").acquire().await.unwrap();
    let (url, options) = (store.url().to_owned(), store.options());
    // A separate process, as far as the store can tell; then everything in it stops.
    let doomed = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .unwrap();
    doomed.spawn(async move {
        let w = options.connect(&url).await.unwrap();
        let _ = w
            .lock("stock")
            .ttl(Duration::from_millis(300))
            .acquire()
            .await;
    });
    wait_for_waiters(&a, "stock", 1).await;
    let waiting = tokio::spawn({
        let a = a.clone();
        async move { a.lock("stock").acquire().await.unwrap() }
    });
    wait_for_waiters(&a, "stock", 2).await;
    doomed.shutdown_background();
    tokio::time::sleep(Duration::from_millis(400)).await; // its claim must have expired
    assert!(holder.release().await.unwrap().was_held());
    let guard = tokio::time::timeout(SOON, waiting)
        .await
        .expect("not held up")
        .unwrap();
    assert!(guard.release().await.unwrap().was_held());
    wait_until_free(&a, "stock").await;
}

/// A waiter that died is shown for as long as its claim lives, and no longer, even if no client
/// takes a decision on the name meanwhile.
pub async fn expired_waiter_is_not_shown(store: &TestStore) {
    let a = store.connect().await;
    let held = (
        a.lock("stock").acquire().await.unwrap(),
        a.rwlock("table").write().await.unwrap(),
    );
    let (url, options) = (store.url().to_owned(), store.options());
    let ttl = store.ttl(Duration::from_millis(300));
    let (stop, stopped) = oneshot::channel::<()>();
    // A process that is killed, as far as the store can tell: nothing in it runs on, and nothing is
    // dropped, which would withdraw the claims.
    std::thread::spawn(move || {
        let doomed = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        doomed.spawn(async move {
            let w = options.connect(&url).await.unwrap();
            let (lock, table) = (w.lock("stock").ttl(ttl), w.rwlock("table").ttl(ttl));
            let _ = tokio::join!(lock.acquire(), table.read());
        });
        let _ = doomed.block_on(stopped);
        std::mem::forget(doomed);
    });
    let waiters = async || {
        let table = a.rwlock("table").inspect().await.unwrap();
        [
            a.lock("stock").inspect().await.unwrap().waiters,
            table.waiters,
        ]
    };
    assert!(eventually(SOON, async || waiters().await == [1, 1]).await);
    let behind = tokio::spawn({
        let a = a.clone();
        async move {
            let (lock, table) = (a.lock("stock"), a.rwlock("table"));
            tokio::join!(lock.acquire(), table.read())
        }
    });
    assert!(eventually(SOON, async || waiters().await == [2, 2]).await);
    stop.send(()).unwrap();
    let limit = store.dead_claim_lifetime(ttl) + store.expiry_delay() + SOON;
    let gone = eventually(limit, async || waiters().await == [1, 1]).await;
    assert!(gone, "{:?} waiters after {limit:?}", waiters().await);
    for state in a.survey("*", 1).await.unwrap() {
        assert_eq!(state.waiters, 1, "{state:?}");
    }
    assert!(held.0.release().await.unwrap().was_held());
    assert!(held.1.release().await.unwrap().was_held());
    let (lock, table) = tokio::time::timeout(SOON, behind).await.unwrap().unwrap();
    assert!(lock.unwrap().is_held() && table.unwrap().is_held());
}

/// The first waiter follows a dead holder one TTL later, and not much more.
pub async fn first_waiter_is_granted_when_the_holder_dies(store: &TestStore) {
    let (a, b) = (store.connect().await, store.connect().await);
    let ttl = store.ttl(Duration::from_millis(500));
    let holder = a
        .lock("stock")
        .ttl(ttl)
        .without_renewal()
        .acquire()
        .await
        .unwrap();
    let since = Instant::now();
    std::mem::forget(holder);
    let guard = b.lock("stock").acquire().await.unwrap();
    let waited = since.elapsed();
    let limit = ttl + store.expiry_delay() + Duration::from_secs(1);
    assert!(waited < limit, "{waited:?}");
    assert!(guard.release().await.unwrap().was_held());
}

/// Heartbeats keep a ticket for longer than its TTL.
pub async fn heartbeats_keep_a_short_ttl_ticket(store: &TestStore) {
    let (a, b) = (store.connect().await, store.connect().await);
    let holder = a.lock("stock").acquire().await.unwrap();
    let first = tokio::spawn({
        let b = b.clone();
        async move {
            b.lock("stock")
                .ttl(Duration::from_millis(600))
                .acquire()
                .await
                .unwrap()
        }
    });
    wait_for_waiters(&a, "stock", 1).await;
    let second = tokio::spawn({
        let a = a.clone();
        async move { a.lock("stock").acquire().await.unwrap() }
    });
    wait_for_waiters(&a, "stock", 2).await;
    tokio::time::sleep(Duration::from_millis(1500)).await; // longer than the first claim would live without heartbeats
    assert!(holder.release().await.unwrap().was_held());
    let guard = tokio::time::timeout(SOON, first)
        .await
        .expect("still first")
        .unwrap();
    assert!(!second.is_finished());
    assert!(guard.release().await.unwrap().was_held());
    assert!(second.await.unwrap().release().await.unwrap().was_held());
}
