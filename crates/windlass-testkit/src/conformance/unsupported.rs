//! Primitives that a store does not support: each is an error that names the store.

use std::time::Duration;

use windlass::{Error, ErrorKind, Quota};

use super::TestStore;

fn is_unsupported<T: std::fmt::Debug>(
    answer: Result<T, Error>,
    store: &TestStore,
    what: &str,
) -> Error {
    let error = answer.expect_err(what);
    assert_eq!(error.kind(), ErrorKind::Unsupported, "{what}: {error}");
    let scheme = store.url().split(':').next().expect("a URL has a scheme");
    let text = error.to_string();
    assert!(
        text.contains(scheme),
        "{what}: {text} does not name {scheme}"
    );
    error
}

/// The message names the primitive, and the hint the stores that support it.
fn is_unsupported_with_hint<T: std::fmt::Debug>(
    answer: Result<T, Error>,
    store: &TestStore,
    what: &str,
) {
    let error = is_unsupported(answer, store, what);
    let text = error.to_string();
    assert!(text.contains(what), "{text} does not name {what}");
    let hint = error.hint().expect("a refusal says where to go");
    let stores = [
        "memory:",
        "file:",
        "redis://",
        "redis+sentinel://",
        "redis+cluster://",
        "etcd://",
        "zookeeper://",
    ];
    for store in stores {
        assert!(hint.contains(store), "{what}: {hint} does not name {store}");
    }
}

/// Every call is an error, also those that only inspect, leave or wait.
pub async fn latches_and_barriers_are_unsupported(store: &TestStore) {
    let w = store.connect().await;
    let (wait, soon) = (Duration::from_secs(1), Duration::from_secs(20));
    let latch = w.latch("ready");
    is_unsupported_with_hint(latch.reset(2).await, store, "latches");
    is_unsupported_with_hint(latch.count_down().await, store, "latches");
    is_unsupported_with_hint(latch.inspect().await, store, "latches");
    is_unsupported_with_hint(latch.wait_within(wait).await, store, "latches");
    let waiting = tokio::time::timeout(soon, latch.wait()).await;
    is_unsupported_with_hint(waiting.expect("it is refused at once"), store, "latches");
    let barrier = w.barrier("start", 1);
    is_unsupported_with_hint(barrier.enter().await, store, "barriers");
    is_unsupported_with_hint(barrier.enter_within(wait).await, store, "barriers");
    is_unsupported_with_hint(barrier.inspect().await, store, "barriers");
    is_unsupported_with_hint(barrier.leave_as("me").await, store, "barriers");
    let all = w.survey("*", 1).await;
    assert_eq!(all.expect("others are listed"), [], "nothing was stored");
}

/// No primitive answers as if it were supported.
pub async fn flow_and_data_are_unsupported(store: &TestStore) {
    let w = store.connect().await;
    let second = Duration::from_secs(1);
    let limiter = w.limiter("flow", Quota::per_second(1));
    is_unsupported(limiter.check("key").await, store, "limiter");
    is_unsupported(w.survey_limiters("*", 1).await, store, "limiters");
    is_unsupported(w.counter("flow").add(1).await, store, "counter");
    let filter = w.bloom("data").capacity(100).error_rate(0.01);
    is_unsupported(filter.create().await, store, "bloom");
    is_unsupported(w.permissions("data").open().await, store, "permissions");
    is_unsupported(
        w.seen("data").window(second).first("item").await,
        store,
        "seen",
    );
    let once = w.once("data");
    is_unsupported(once.begin().await, store, "once");
    is_unsupported(w.topic::<u32>("data").publish(&1).await, store, "topic");
    is_unsupported(w.topic::<u32>("data").subscribe().await, store, "topic");
}
