//! What version 0.1.0 stored on Redis is read by this version.
//!
//! `fixtures/redis-0.1.rdb` is a dump of a Redis 7.0 that the command line of version 0.1.0 wrote to. The
//! server that loads it has the clock of that day, so nothing in it has expired.

use std::time::{SystemTime, UNIX_EPOCH};

use windlass::{Coordinator, ErrorKind, Fence, Quota, connect};
use windlass_testkit::{Flavor, RedisServer};

/// When the dump was written, in seconds since 1970.
const WRITTEN_AT: i64 = 1_794_819_711;
/// The highest fence in it.
const LAST_FENCE: u64 = 1_794_819_710_897_640;

async fn load() -> (RedisServer, Coordinator) {
    let server = RedisServer::builder()
        .binary(Flavor::Valkey)
        .movable_clock()
        .start()
        .unwrap();
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    server
        .shift_clock(WRITTEN_AT - now.as_secs() as i64)
        .unwrap();
    let folder = server.command(&["CONFIG", "GET", "dir"]).unwrap();
    let folder = folder.lines().last().unwrap();
    let dump = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/redis-0.1.rdb");
    server.kill().unwrap();
    std::fs::copy(dump, format!("{folder}/dump.rdb")).unwrap();
    server.restart().unwrap();
    let w = connect(&server.url()).await.unwrap();
    (server, w)
}

#[tokio::test]
async fn held_locks_stay_held() {
    let (_server, w) = load().await;
    let state = w.lock("invoice/42").inspect().await.unwrap();
    let holder = state.holder.expect("ann holds it");
    assert_eq!(holder.owner, "ann");
    assert_eq!(holder.note.as_deref(), Some("moving disks"));
    let fence = Fence::new(1_794_819_710_897_636);
    assert_eq!(holder.fence, Some(fence));
    assert!(w.lock("{tag}lock").try_acquire().await.unwrap().is_busy());
    // The same owner gets its lock back, with the same fence.
    let ours = w.lock("invoice/42").owner("ann").try_acquire().await;
    let ours = ours.unwrap().acquired().expect("it is ann's");
    assert_eq!(ours.fence(), fence);
    assert!(ours.release().await.unwrap().was_held());
    let next = w.lock("invoice/42").acquire().await.unwrap();
    assert!(next.fence().get() > LAST_FENCE);
}

#[tokio::test]
async fn pool_permits_stay_held() {
    let (_server, w) = load().await;
    let downloads = w.semaphore("downloads", 5);
    let state = downloads.inspect().await.unwrap();
    assert_eq!((state.size, state.used, state.holders.len()), (5, 3, 2));
    let two = downloads.try_acquire_many(2).await.unwrap();
    assert!(two.acquired().is_some());
    assert!(downloads.try_acquire_many(3).await.unwrap().is_busy());
    assert!(w.rwlock("prices").try_write().await.unwrap().is_busy());
    assert!(
        w.rwlock("prices")
            .try_read()
            .await
            .unwrap()
            .acquired()
            .is_some()
    );
}

#[tokio::test]
async fn limiters_counters_gates_and_latches_continue() {
    let (_server, w) = load().await;
    let api = w.limiter("api", Quota::per_day(3));
    assert_eq!(api.peek("").await.unwrap().remaining(), 1);
    assert_eq!(w.counter("visits").get().await.unwrap(), 42);
    let stock = w.gate("stock");
    let stale = stock.admit(Fence::new(1_999_999_999_999_999)).await;
    assert!(!stale.unwrap().is_admitted());
    let state = w.latch("ready").generation("deploy-17").inspect().await;
    let state = state.unwrap().expect("it was kept");
    assert_eq!((state.count, state.remaining), (3, 2));
}

#[tokio::test]
async fn filters_permissions_and_results_are_kept() {
    let (_server, w) = load().await;
    let crawled = w.bloom("crawled").open().await.unwrap();
    assert!(crawled.contains("https://example.org/").await.unwrap());
    assert!(!crawled.contains("https://example.net/").await.unwrap());
    let growing = w.bloom("growing").open().await.unwrap();
    assert!(growing.contains("one").await.unwrap());
    let repos = w.permissions("repos").open().await.unwrap();
    assert_eq!(repos.get("piers", "repo1").await.unwrap(), "read-write");
    assert_eq!(repos.get("fiers", "repo3").await.unwrap(), "read");
    assert!(w.seen("orders").contains("order-42").await.unwrap());
    // The result is stored for the command that ran; another payload is rejected.
    let other = w.once("invoice-7").try_begin().await.unwrap_err();
    assert_eq!(other.kind(), ErrorKind::Mismatch, "{other}");
}
