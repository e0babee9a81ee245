//! Several locks at once.

use std::time::Duration;

use windlass::ErrorKind;

use super::{SOON, TestStore, wait_for_waiters, wait_until_free};

/// If one is taken, none is.
pub async fn all_or_none(store: &TestStore) {
    let (a, b) = (store.connect().await, store.connect().await);
    let both = a
        .locks(["x", "y"])
        .try_acquire()
        .await
        .unwrap()
        .acquired()
        .unwrap();
    assert!(both.fence("x").is_some() && both.fence("y").is_some());
    assert_eq!(both.fence("z"), None);
    for name in ["x", "y"] {
        assert!(b.lock(name).try_acquire().await.unwrap().is_busy());
    }
    assert!(
        b.locks(["w", "y", "z"])
            .try_acquire()
            .await
            .unwrap()
            .is_busy()
    );
    drop(
        b.lock("z")
            .try_acquire()
            .await
            .unwrap()
            .acquired()
            .expect("not taken"),
    );
    let before = ["x", "y"].map(|name| both.fence(name));
    assert!(both.release().await.unwrap().was_held());
    let again = a.locks(["x", "y"]).acquire().await.unwrap();
    assert!(again.fence("x") > before[0] && again.fence("y") > before[1]);
    assert!(again.release().await.unwrap().was_held());
    wait_until_free(&b, "x").await;
    wait_until_free(&b, "y").await;
    let one = b.lock("y").acquire().await.unwrap();
    let busy = a.locks(["x", "y"]).try_acquire().await.unwrap();
    let windlass::Attempt::Busy(holder) = busy else {
        panic!("one of them is held");
    };
    assert_eq!(holder.unwrap().owner, one.owner().as_str());
    wait_until_free(&b, "x").await;
}

/// Two that want the same, named in any order, cannot wait for each other.
pub async fn no_deadlock_in_any_order(store: &TestStore) {
    let (a, b) = (store.connect().await, store.connect().await);
    let mut tasks = Vec::new();
    for i in 0..12 {
        let w = if i % 2 == 0 { a.clone() } else { b.clone() };
        tasks.push(tokio::spawn(async move {
            let mut names = ["x", "y", "z"];
            names.rotate_left(i % 3);
            if i % 2 == 0 {
                names.reverse();
            }
            for _ in 0..3 {
                let guard = w.locks(names).acquire().await.unwrap();
                assert!(guard.is_held());
                tokio::task::yield_now().await;
                assert!(guard.release().await.unwrap().was_held());
            }
        }));
    }
    for task in tasks {
        tokio::time::timeout(4 * SOON, task)
            .await
            .expect("no deadlock")
            .unwrap();
    }
    for name in ["x", "y", "z"] {
        wait_until_free(&a, name).await;
    }
}

/// Waits in the lines of the locks it lacks, and gets all; when patience ends, it has none.
pub async fn wait_ends_with_all_or_none(store: &TestStore) {
    let (a, b) = (store.connect().await, store.connect().await);
    let held = a.lock("y").acquire().await.unwrap();
    let waiting = tokio::spawn({
        let b = b.clone();
        async move { b.locks(["x", "y"]).acquire().await.unwrap() }
    });
    wait_for_waiters(&a, "y", 1).await;
    let fence = held.fence();
    assert!(held.release().await.unwrap().was_held());
    let both = tokio::time::timeout(SOON, waiting).await.unwrap().unwrap();
    assert!(both.fence("y").unwrap() > fence);
    let soon = Duration::from_millis(50);
    let late = a.locks(["w", "x"]).acquire_within(soon).await.unwrap();
    assert!(late.is_busy());
    wait_until_free(&a, "w").await;
    let e = a.locks(["x"]).wait(soon).acquire().await.unwrap_err();
    assert_eq!(e.kind(), ErrorKind::WaitElapsed);
    assert!(both.is_held());
    drop(both);
    wait_until_free(&a, "x").await;
    wait_until_free(&a, "y").await;
}

/// The loss of one is the loss of all.
pub async fn losing_one_lock_loses_all(store: &TestStore) {
    let w = store.connect().await;
    let ttl = Duration::from_millis(300);
    let guard = w.locks(["x", "y"]).ttl(ttl).acquire().await.unwrap();
    assert!(guard.remaining() <= ttl);
    w.lock("y")
        .break_lock()
        .await
        .unwrap()
        .expect("it was held");
    tokio::time::timeout(SOON, guard.lost())
        .await
        .expect("told");
    assert!(!guard.is_held());
    assert!(guard.run(std::future::pending::<()>()).await.is_err());
    assert!(!guard.release().await.unwrap().was_held());
    wait_until_free(&w, "x").await;
}

/// Cancelled at any moment, nothing is left behind.
pub async fn cancellation_leaves_nothing_behind(store: &TestStore) {
    let (a, b) = (store.connect().await, store.connect().await);
    for after in [0, 1, 100, 300, 1000, 3000] {
        let locks = a.locks(["x", "y", "z"]);
        let _ = tokio::time::timeout(Duration::from_micros(after), locks.acquire()).await;
        for name in ["x", "y", "z"] {
            wait_until_free(&b, name).await;
        }
    }
    let held = b.lock("z").acquire().await.unwrap();
    for after in [100, 1000, 10_000, 50_000] {
        let locks = a.locks(["x", "y", "z"]);
        let _ = tokio::time::timeout(Duration::from_micros(after), locks.acquire()).await;
        wait_until_free(&b, "x").await;
        wait_until_free(&b, "y").await;
        wait_for_waiters(&b, "z", 0).await;
    }
    assert!(held.release().await.unwrap().was_held());
}

/// A name twice is one lock; no name is a mistake.
pub async fn duplicate_names_merge_and_empty_requests_fail(store: &TestStore) {
    let w = store.connect().await;
    let none: [&str; 0] = [];
    assert_eq!(
        w.locks(none).acquire().await.unwrap_err().kind(),
        ErrorKind::InvalidInput
    );
    let guard = w.locks(["x", "x"]).acquire().await.unwrap();
    assert_eq!(guard.names().collect::<Vec<_>>(), ["x"]);
    drop(guard);
    let many: Vec<String> = (0..1001).map(|i| format!("many/{i}")).collect();
    assert!(w.locks(many.clone()).acquire().await.is_err());
    let guard = w.locks(many[..1000].to_vec()).try_acquire().await.unwrap();
    let guard = guard.acquired().expect("all are free");
    assert!(guard.release().await.unwrap().was_held());
}
