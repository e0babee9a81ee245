//! Grants that count only once replicas or disks have them.

use std::sync::Arc;

use windlass::{Coordinator, ErrorKind, Options};
use windlass_testkit::conformance::{SOON, wait_for_waiters};
use windlass_testkit::{RedisReplicated, RedisServer, eventually, eventually_blocking};

use super::{MS, PROMOTION, RESUMED, blocking, connect, cut_replication};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn grant_counts_once_replicas_have_it() {
    let redis = Arc::new(RedisReplicated::start().unwrap());
    let w = connect(&redis).await;
    let plenty = 5000 * MS;
    // All replicas have it: granted to a waiter, as a permit, and for several locks.
    let first = w.lock("stock").replicas(2, plenty).acquire().await.unwrap();
    let waiting = tokio::spawn({
        let w = connect(&redis).await;
        async move { w.lock("stock").replicas(2, plenty).acquire().await }
    });
    wait_for_waiters(&w, "stock", 1).await;
    assert!(first.release().await.unwrap().was_held());
    let handed = tokio::time::timeout(SOON, waiting)
        .await
        .unwrap()
        .unwrap()
        .unwrap();
    let permit = w
        .semaphore("jobs", 2)
        .replicas(2, plenty)
        .acquire()
        .await
        .unwrap();
    let both = w
        .locks(["a", "b"])
        .replicas(2, plenty)
        .acquire()
        .await
        .unwrap();
    // Concurrent requests share a round.
    let many: Vec<_> = (0..50)
        .map(|i| {
            let w = w.clone();
            tokio::spawn(async move {
                let lock = w.lock(&format!("n{i}")).replicas(1, plenty);
                lock.acquire().await.unwrap().release().await.unwrap()
            })
        })
        .collect();
    for one in many {
        assert!(one.await.unwrap().was_held());
    }
    drop((permit, both));

    // What all replicas have survives the master.
    let old = redis.master().unwrap().port();
    redis.master().unwrap().kill().unwrap();
    let promoted = blocking(&redis, move |redis| redis.await_promotion(old, PROMOTION));
    promoted.await.unwrap().unwrap();
    let still = eventually(RESUMED, || async { handed.renew().await.is_ok() }).await;
    assert!(still && handed.is_held(), "the new master has it");

    // No replica has it: undone, with an error.
    redis
        .servers()
        .iter()
        .find(|s| s.port() == old)
        .unwrap()
        .restart()
        .unwrap();
    let back = blocking(&redis, |redis| {
        eventually_blocking(PROMOTION, || redis.in_sync() == 2)
    });
    assert!(back.await.unwrap());
    cut_replication(&redis);
    let url = format!("{}?replicas=1&replicas_timeout=200ms", redis.url());
    let strict = windlass::connect(&url).await.unwrap();
    for refused in [
        w.lock("alone")
            .replicas(1, 200 * MS)
            .acquire()
            .await
            .map(drop),
        strict.lock("alone").acquire().await.map(drop),
        strict.semaphore("some", 3).acquire().await.map(drop),
        strict.locks(["c", "d"]).acquire().await.map(drop),
    ] {
        let refused = refused.expect_err("no replica is there");
        assert!(
            refused.to_string().contains("0 of the 1 replicas"),
            "{refused}"
        );
        assert_eq!(refused.kind(), ErrorKind::Unreachable);
    }
    assert!(
        w.lock("alone").inspect().await.unwrap().holder.is_none(),
        "it was given up"
    );
    assert!(
        w.lock("c")
            .try_acquire()
            .await
            .unwrap()
            .acquired()
            .is_some()
    );
    assert!(
        w.lock("alone").acquire().await.is_ok(),
        "without replicas it is granted"
    );
}

/// Acquires and releases `count` times. Returns the fences of the grants that count.
async fn fences(w: &Coordinator, count: usize) -> Vec<u64> {
    let mut fences = Vec::new();
    for _ in 0..count {
        if let Ok(guard) = w.lock("stock").acquire().await {
            fences.push(guard.fence().get());
            assert!(guard.release().await.unwrap().was_held());
        }
    }
    fences
}

/// No sentinel numbers the new master, the clock is behind the counter, and the old master goes on
/// serving its clients.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fences_that_all_replicas_have_never_go_back() {
    let old = RedisServer::start().unwrap();
    let new = RedisServer::start().unwrap();
    let port = old.port().to_string();
    new.command(&["REPLICAOF", "127.0.0.1", &port]).unwrap();
    let plain = windlass::connect(&old.url()).await.unwrap();
    let url = format!("{}?replicas=1&replicas_timeout=300ms", old.url());
    let safe = windlass::connect(&url).await.unwrap();
    let ahead = ["INCRBY", "windlass:fence", "3600000000"];
    fences(&plain, 1).await;
    old.command(&ahead).unwrap();
    let in_sync = eventually(4 * SOON, || async { !fences(&safe, 1).await.is_empty() });
    assert!(in_sync.await, "the replica is in sync");
    let before = fences(&safe, 20).await;
    assert_eq!(before.len(), 20);

    new.command(&["REPLICAOF", "NO", "ONE"]).unwrap();
    let next = windlass::connect(&new.url()).await.unwrap();
    let after = fences(&next, 20).await;
    assert!(after.iter().all(|fence| fence > before.last().unwrap()));
    let uncounted = fences(&safe, 3).await;
    assert!(uncounted.is_empty(), "the old master has no replica left");
    // What the mode prevents: a later grant of the old master has a lower fence.
    let late = fences(&plain, 1).await;
    assert!(late[0] < *after.last().unwrap());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn other_stores_reject_waiting_for_replicas() {
    let w = Options::new()
        .replicas(1, 100 * MS)
        .connect("memory:")
        .await
        .unwrap();
    let refused = w.lock("x").acquire().await.expect_err("there are none");
    assert_eq!(refused.kind(), ErrorKind::Unsupported, "{refused}");
    assert!(refused.to_string().contains("memory:"), "{refused}");
    // A single server without replicas cannot wait for any, and returns an error in time.
    let server = RedisServer::start().unwrap();
    let w = Options::new()
        .replicas(1, 100 * MS)
        .connect(&server.url())
        .await
        .unwrap();
    let refused = w.lock("x").acquire().await.expect_err("there are none");
    assert!(
        refused.to_string().contains("0 of the 1 replicas"),
        "{refused}"
    );
    let on_disk = Options::new()
        .replicas_on_disk(0, 100 * MS)
        .connect(&server.url())
        .await
        .unwrap();
    let refused = on_disk
        .lock("x")
        .acquire()
        .await
        .expect_err("Redis 7.0 has no WAITAOF");
    assert_eq!(refused.kind(), ErrorKind::Unsupported, "{refused}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn grant_counts_once_disks_have_it() {
    let server = RedisServer::builder().binary(windlass_testkit::Flavor::Valkey);
    let server = server.append_only(true).start().unwrap();
    let url = format!(
        "{}?replicas=0&replicas_on_disk=yes&replicas_timeout=2s",
        server.url()
    );
    let w = windlass::connect(&url).await.unwrap();
    let guard = w.lock("x").acquire().await.unwrap();
    server.restart().unwrap();
    assert!(
        eventually(SOON, || async { guard.renew().await.is_ok() }).await,
        "it was on disk"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn waiting_for_replicas_blocks_no_other_call() {
    let server = RedisServer::start().unwrap();
    let w = windlass::connect(&server.url()).await.unwrap();
    // All of these wait for a replica that does not exist, concurrently.
    let patient: Vec<_> = [40, 40, 40, 41, 42]
        .into_iter()
        .enumerate()
        .map(|(i, seconds)| {
            let w = w.clone();
            let patience = std::time::Duration::from_secs(seconds);
            tokio::spawn(async move {
                let lock = w.lock(&format!("patient{i}")).replicas(1, patience);
                lock.acquire().await.map(drop)
            })
        })
        .collect();
    let waits = eventually(SOON, || async {
        let clients = server.command(&["CLIENT", "LIST"]).unwrap();
        clients
            .lines()
            .filter(|line| line.contains("cmd=wait"))
            .count()
            >= 3
    });
    assert!(waits.await, "they wait side by side");
    let hasty = w.lock("hasty").replicas(0, 100 * MS);
    let granted = tokio::time::timeout(4 * SOON, hasty.acquire()).await;
    assert!(granted.expect("before any of them").is_ok());
    for one in patient {
        one.abort();
    }
}
