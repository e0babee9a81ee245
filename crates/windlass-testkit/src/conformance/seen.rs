//! Exact deduplication.

use std::time::Duration;

use windlass::ErrorKind;

use super::{SOON, TestStore};
use crate::eventually;

/// An item is new once per window, which starts when it was new.
pub async fn item_is_new_once_per_window(store: &TestStore) {
    let (a, b) = (store.connect().await, store.connect().await);
    let window = Duration::from_millis(400);
    let (mine, yours) = (a.seen("s").window(window), b.seen("s").window(window));
    let start = std::time::Instant::now();
    assert!(mine.first("x").await.unwrap());
    let again = yours.first("x").await.unwrap();
    assert!(!again || start.elapsed() > window);
    assert!(yours.first("y").await.unwrap());
    // Repeated checks do not extend the window.
    let new_again = eventually(SOON, || async { yours.first("x").await.unwrap() }).await;
    assert!(new_again);
    let took = start.elapsed();
    assert!(took >= window && took < SOON, "{took:?}");
    let long = a.seen("l");
    assert!(long.first("x").await.unwrap());
    assert!(long.contains("x").await.unwrap());
    assert!(
        !long.contains("y").await.unwrap(),
        "a query remembers nothing"
    );
    assert!(long.first("y").await.unwrap());
    assert!(long.forget("x").await.unwrap());
    assert!(!long.forget("x").await.unwrap());
    assert!(long.first("x").await.unwrap());
}

/// Of many concurrent clients, one learns that the item is new.
pub async fn exactly_one_concurrent_insert_is_new(store: &TestStore) {
    // A memory store lives as long as a client is connected.
    let _somebody = store.connect().await;
    let mut tasks = Vec::new();
    for _ in 0..4 {
        let seen = store.connect().await.seen("s");
        tasks.push(tokio::spawn(async move {
            let items: Vec<String> = (0..300).map(|n| n.to_string()).collect();
            let (first, second) = items.split_at(150);
            let mut new = seen.first_all(first).await.unwrap();
            for item in second {
                new.push(seen.first(item).await.unwrap());
            }
            new
        }));
    }
    let mut new_count = vec![0; 300];
    for task in tasks {
        for (new_count, new) in new_count.iter_mut().zip(task.await.unwrap()) {
            *new_count += usize::from(new);
        }
    }
    assert!(new_count.iter().all(|times| *times == 1), "{new_count:?}");
}

/// Items of any bytes, and batches of any size.
pub async fn items_and_batches_of_any_size_work(store: &TestStore) {
    let seen = store.connect().await.seen("s");
    let nothing: [&str; 0] = [];
    assert!(seen.first_all(nothing).await.unwrap().is_empty());
    assert!(seen.first("").await.unwrap());
    assert!(!seen.first([]).await.unwrap());
    let large = vec![7u8; 10 << 20];
    assert!(seen.first(&large).await.unwrap());
    assert!(!seen.first(&large).await.unwrap());
    assert!(seen.first(&large[1..]).await.unwrap());
    assert!(seen.first([0, 159, 146, 150]).await.unwrap(), "not text");
    assert_eq!(
        seen.first_all(["a", "b", "a"]).await.unwrap(),
        [true, true, false]
    );
    let many: Vec<String> = (0..100_000).map(|n| n.to_string()).collect();
    assert_eq!(seen.first_all(&many).await.unwrap(), vec![true; 100_000]);
    assert_eq!(seen.first_all(&many).await.unwrap(), vec![false; 100_000]);
}

/// Names and items do not collide, however they concatenate.
pub async fn names_and_items_do_not_collide(store: &TestStore) {
    let w = store.connect().await;
    let pairs = [
        ("a", "b c"),
        ("a b", "c"),
        ("x{t}", "y z"),
        ("x{t} y", "z"),
        ("{t}", "x z"),
        ("t", "x z"),
        ("t", ":x{t} y z"),
        ("c}", "#d"),
        ("c", "}#d"),
    ];
    for (name, item) in pairs {
        let seen = w.seen(name);
        assert!(seen.first(item).await.unwrap(), "{name:?} {item:?}");
    }
    for (name, item) in pairs {
        assert!(!w.seen(name).first(item).await.unwrap());
    }
}

/// Each invalid input has its own error.
pub async fn invalid_input_is_rejected(store: &TestStore) {
    let w = store.connect().await;
    for bad in [
        w.seen(""),
        w.seen("s").window(Duration::ZERO),
        w.seen("s").window(Duration::MAX),
    ] {
        let refused = bad.first("x").await.unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::InvalidInput, "{refused}");
    }
    assert!(!w.seen("s").contains("x").await.unwrap());
}
