//! More keys at once than one call can take.

use std::time::{Duration, Instant};

use windlass::{Options, Quota};
use windlass_testkit::conformance::TestStore;
use windlass_testkit::{Direction, FaultProxy, RedisServer};

const MS: Duration = Duration::from_millis(1);

fn keys(count: usize) -> Vec<String> {
    (0..count).map(|i| i.to_string()).collect()
}

/// The time limit of a call is for so many keys, not for all of them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_keys_may_exceed_one_call_timeout() {
    let store = TestStore::file();
    let quota = Quota::per_hour(1);
    let w = store.connect().await;
    // How long so many take here and now, the first time.
    let begun = Instant::now();
    assert!(
        w.limiter("first", quota)
            .check_all(keys(4_000))
            .await
            .iter()
            .all(Result::is_ok)
    );
    let limit = (6 * begun.elapsed()).max(150 * MS);
    let w = Options::new()
        .call_timeout(limit)
        .connect(store.url())
        .await
        .unwrap();
    let many = w.limiter("many", quota);
    let (mut count, mut took) = (40_000, Duration::ZERO);
    while took < limit {
        let begun = Instant::now();
        for answer in many.check_all(keys(count)).await {
            let _ = answer.unwrap();
        }
        took = begun.elapsed();
        count *= 2;
    }
}

/// A store that does not answer is waited for once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_keys_wait_once_for_a_dead_store() {
    let server = RedisServer::start().unwrap();
    let proxy = FaultProxy::start(server.addr()).unwrap();
    let limit = 300 * MS;
    let w = Options::new()
        .call_timeout(limit)
        .connect(&format!("redis://{}", proxy.addr()))
        .await
        .unwrap();
    let limiter = w.limiter("many", Quota::per_hour(5));
    assert!(limiter.check("a").await.unwrap().is_allowed());
    proxy.blackhole(Direction::Both);
    let (begun, keys) = (Instant::now(), keys(60_000));
    let answers = limiter.check_all(&keys).await;
    let took = begun.elapsed();
    assert_eq!(answers.len(), keys.len());
    assert!(answers.iter().all(Result::is_err));
    // Fifteen times 4,000 keys.
    assert!(took < 8 * limit, "{took:?}");
}

/// What belongs to the store's wrong question is no reason to stop.
#[tokio::test]
async fn invalid_request_does_not_open_the_circuit() {
    let store = TestStore::memory();
    let w = store.connect().await;
    let keys = keys(4_100);
    let windows = w.limiter("mixed", Quota::per_hour(5).fixed_window());
    for answer in windows.check_all(&keys[..4_000]).await {
        assert!(answer.unwrap().is_allowed());
    }
    let buckets = w.limiter("mixed", Quota::per_hour(5));
    let answers = buckets.check_all(&keys).await;
    assert!(answers[..4_000].iter().all(Result::is_err));
    assert!(answers[4_000..].iter().all(Result::is_ok));
}
