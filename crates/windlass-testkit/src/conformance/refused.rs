//! Flow and data on a store that has none: each is refused, and the store is named.

use std::time::Duration;

use windlass::{Error, ErrorKind, Quota};

use super::Stage;

fn is_refused<T: std::fmt::Debug>(answer: Result<T, Error>, stage: &Stage, what: &str) {
    let error = answer.expect_err(what);
    assert_eq!(error.kind(), ErrorKind::Unsupported, "{what}: {error}");
    let scheme = stage.url().split(':').next().expect("a URL has a scheme");
    let told = error.to_string();
    assert!(
        told.contains(scheme),
        "{what}: {told} does not name {scheme}"
    );
}

/// None of them answers as if it were there.
pub async fn flow_and_data_are_refused(stage: &Stage) {
    let w = stage.connect().await;
    let second = Duration::from_secs(1);
    let limiter = w.limiter("flow", Quota::per_second(1));
    is_refused(limiter.check("key").await, stage, "limiter");
    is_refused(w.survey_limiters("*", 1).await, stage, "limiters");
    is_refused(w.counter("flow").add(1).await, stage, "counter");
    let filter = w.bloom("data").capacity(100).error_rate(0.01);
    is_refused(filter.create().await, stage, "bloom");
    is_refused(w.permissions("data").open().await, stage, "permissions");
    is_refused(
        w.seen("data").window(second).first("item").await,
        stage,
        "seen",
    );
    let once = w.once("data");
    is_refused(once.begin().await, stage, "once");
    is_refused(w.topic::<u32>("data").publish(&1).await, stage, "topic");
    is_refused(w.topic::<u32>("data").subscribe().await, stage, "topic");
}
