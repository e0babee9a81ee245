//! Primitives on a store that does not have them: each is refused, and the store is named.

use std::time::Duration;

use windlass::{Error, ErrorKind, Quota};

use super::TestStore;

fn is_refused<T: std::fmt::Debug>(
    answer: Result<T, Error>,
    store: &TestStore,
    what: &str,
) -> Error {
    let error = answer.expect_err(what);
    assert_eq!(error.kind(), ErrorKind::Unsupported, "{what}: {error}");
    let scheme = store.url().split(':').next().expect("a URL has a scheme");
    let told = error.to_string();
    assert!(
        told.contains(scheme),
        "{what}: {told} does not name {scheme}"
    );
    error
}

/// The message names the primitive, and the hint the stores that have it.
fn is_refused_for<T: std::fmt::Debug>(answer: Result<T, Error>, store: &TestStore, what: &str) {
    let error = is_refused(answer, store, what);
    let told = error.to_string();
    assert!(told.contains(what), "{told} does not name {what}");
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

/// Every way to use one is refused, also those that only look, give up or wait.
pub async fn latches_and_barriers_are_unsupported(store: &TestStore) {
    let w = store.connect().await;
    let (wait, soon) = (Duration::from_secs(1), Duration::from_secs(20));
    let latch = w.latch("ready");
    is_refused_for(latch.reset(2).await, store, "latches");
    is_refused_for(latch.count_down().await, store, "latches");
    is_refused_for(latch.inspect().await, store, "latches");
    is_refused_for(latch.wait_within(wait).await, store, "latches");
    let waiting = tokio::time::timeout(soon, latch.wait()).await;
    is_refused_for(waiting.expect("it is refused at once"), store, "latches");
    let barrier = w.barrier("start", 1);
    is_refused_for(barrier.enter().await, store, "barriers");
    is_refused_for(barrier.enter_within(wait).await, store, "barriers");
    is_refused_for(barrier.inspect(1).await, store, "barriers");
    is_refused_for(barrier.leave_as("me").await, store, "barriers");
    let all = w.survey("*", 1).await;
    assert_eq!(all.expect("others are listed"), [], "nothing was stored");
}

/// None of them answers as if it were there.
pub async fn flow_and_data_are_unsupported(store: &TestStore) {
    let w = store.connect().await;
    let second = Duration::from_secs(1);
    let limiter = w.limiter("flow", Quota::per_second(1));
    is_refused(limiter.check("key").await, store, "limiter");
    is_refused(w.survey_limiters("*", 1).await, store, "limiters");
    is_refused(w.counter("flow").add(1).await, store, "counter");
    let filter = w.bloom("data").capacity(100).error_rate(0.01);
    is_refused(filter.create().await, store, "bloom");
    is_refused(w.permissions("data").open().await, store, "permissions");
    is_refused(
        w.seen("data").window(second).first("item").await,
        store,
        "seen",
    );
    let once = w.once("data");
    is_refused(once.begin().await, store, "once");
    is_refused(w.topic::<u32>("data").publish(&1).await, store, "topic");
    is_refused(w.topic::<u32>("data").subscribe().await, store, "topic");
}
