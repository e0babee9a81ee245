//! Latches: closed until counted down.

use std::time::{Duration, Instant};

use windlass::{ErrorKind, Opening};

use super::{SOON, TestStore};

/// Waiters are woken at zero, and not before.
pub async fn opens_at_zero(store: &TestStore) {
    let (a, b) = (store.connect().await, store.connect().await);
    assert_eq!(a.latch("ready").reset(3).await.unwrap(), 3);
    assert_eq!(b.latch("ready").reset(3).await.unwrap(), 3, "known");
    let waiting = tokio::spawn({
        let b = b.clone();
        async move { b.latch("ready").wait().await.unwrap() }
    });
    assert_eq!(a.latch("ready").count_down().await.unwrap(), 2);
    assert_eq!(b.latch("ready").count_down_by(1).await.unwrap(), 1);
    let early = b
        .latch("ready")
        .wait_within(Duration::from_millis(100))
        .await;
    assert_eq!(early.unwrap(), Opening::Elapsed);
    assert!(!waiting.is_finished());
    let since = Instant::now();
    assert_eq!(a.latch("ready").count_down().await.unwrap(), 0);
    let opened = tokio::time::timeout(SOON, waiting).await.unwrap().unwrap();
    assert_eq!(opened, Opening::Opened);
    assert!(since.elapsed() < SOON, "woken, not polled");
    assert_eq!(
        a.latch("ready").wait().await.unwrap(),
        Opening::Opened,
        "still open"
    );
    let seen = a.latch("ready").inspect().await.unwrap().unwrap();
    assert_eq!((seen.count, seen.remaining), (3, 0));
}

/// A latch that was never reset can be awaited.
pub async fn waiting_before_the_first_reset_works(store: &TestStore) {
    let (a, b) = (store.connect().await, store.connect().await);
    let waiting = tokio::spawn(async move { b.latch("ready").wait().await.unwrap() });
    tokio::time::sleep(Duration::from_millis(100)).await; // let it wait
    a.latch("ready").reset(1).await.unwrap();
    a.latch("ready").count_down().await.unwrap();
    let opened = tokio::time::timeout(SOON, waiting).await.unwrap().unwrap();
    assert_eq!(opened, Opening::Opened);
}

/// Never below zero, never in another generation, never with another count.
pub async fn count_stops_at_zero(store: &TestStore) {
    let w = store.connect().await;
    let latch = w.latch("ready");
    let e = latch.count_down().await.unwrap_err();
    assert_eq!(e.kind(), ErrorKind::Mismatch, "nobody has reset it");
    latch.reset(2).await.unwrap();
    let e = latch.count_down_by(3).await.unwrap_err();
    assert_eq!(e.kind(), ErrorKind::InvalidInput);
    assert!(e.to_string().contains("only 2 remain"), "{e}");
    assert_eq!(latch.count_down_by(2).await.unwrap(), 0);
    let e = latch.count_down().await.unwrap_err();
    assert_eq!(e.kind(), ErrorKind::InvalidInput, "{e}");
    let e = latch.reset(5).await.unwrap_err();
    assert_eq!(e.kind(), ErrorKind::Mismatch, "{e}");
    assert!(latch.count_down_by(0).await.is_err());
    for count in [0, 1_000_001] {
        assert!(latch.clone().generation("x").reset(count).await.is_err());
    }
    assert!(latch.clone().generation("").reset(1).await.is_err());
}

/// A new generation replaces the old one, and the waiters of the old one learn how it ended.
pub async fn new_generation_wakes_old_waiters(store: &TestStore) {
    let (a, b) = (store.connect().await, store.connect().await);
    let (old, new) = (
        a.latch("ready").generation("old"),
        a.latch("ready").generation("new"),
    );
    old.reset(2).await.unwrap();
    let waiting = tokio::spawn({
        let old = b.latch("ready").generation("old");
        async move { old.wait().await.unwrap() }
    });
    tokio::time::sleep(Duration::from_millis(100)).await; // let it see the old one
    assert_eq!(new.reset(1).await.unwrap(), 1);
    let ended = tokio::time::timeout(SOON, waiting).await.unwrap().unwrap();
    assert_eq!(ended, Opening::Replaced);
    assert_eq!(
        old.count_down().await.unwrap_err().kind(),
        ErrorKind::Mismatch
    );
    assert_eq!(new.count_down().await.unwrap(), 0);
    // Past generations keep their outcome when the next ones begin.
    for next in ["newer", "newest"] {
        let next = a.latch("ready").generation(next);
        next.reset(1).await.unwrap();
        next.count_down().await.unwrap();
    }
    assert_eq!(new.wait().await.unwrap(), Opening::Opened);
    assert_eq!(old.wait().await.unwrap(), Opening::Replaced);
    // They do not start again: a late request undoes nothing.
    for over in [&old, &new] {
        let e = over.reset(2).await.unwrap_err();
        assert_eq!(e.kind(), ErrorKind::Mismatch, "{e}");
    }
    let seen = a.latch("ready").inspect().await.unwrap().unwrap();
    assert_eq!(seen.generation, "newest");
}

/// The number of remembered generations is bounded.
pub async fn past_generations_are_bounded(store: &TestStore) {
    let w = store.connect().await;
    for i in 0..30 {
        let latch = w.latch("ready").generation(&format!("g {i}"));
        latch.reset(1).await.unwrap();
        if i % 2 == 0 {
            latch.count_down().await.unwrap();
        }
    }
    let seen = w.latch("ready").inspect().await.unwrap().unwrap();
    assert_eq!(seen.past.len(), 16);
    assert_eq!(
        (seen.past[0].generation.as_str(), seen.past[0].opened),
        ("g 28", true)
    );
    assert_eq!(
        (seen.past[1].generation.as_str(), seen.past[1].opened),
        ("g 27", false)
    );
}

/// Of many concurrent counts, each counts once.
pub async fn concurrent_counts_count_once(store: &TestStore) {
    let (a, b) = (store.connect().await, store.connect().await);
    a.latch("ready").reset(40).await.unwrap();
    let tasks: Vec<_> = (0..40)
        .map(|i| {
            let w = if i % 2 == 0 { a.clone() } else { b.clone() };
            tokio::spawn(async move { w.latch("ready").count_down().await.unwrap() })
        })
        .collect();
    let mut seen = Vec::new();
    for task in tasks {
        seen.push(task.await.unwrap());
    }
    seen.sort_unstable();
    assert_eq!(seen, (0..40).collect::<Vec<u32>>());
}

/// Latches are listed by their names alone, whatever was counted.
pub async fn latches_are_listed(store: &TestStore) {
    let w = store.connect().await;
    for name in ["b/2", "b/1", "a"] {
        let latch = w.latch(name).generation("1");
        latch.reset(2).await.unwrap();
        latch.count_down().await.unwrap();
    }
    let found = w.names(windlass::DataKind::Latch, "*", 10).await.unwrap();
    assert_eq!(
        (found.names.join(" ").as_str(), found.more),
        ("a b/1 b/2", false)
    );
    let found = w.names(windlass::DataKind::Latch, "b/?", 10).await.unwrap();
    assert_eq!(found.names, ["b/1", "b/2"]);
}
