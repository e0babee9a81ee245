//! A task that uses a store in memory shares its thread with others.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use windlass::{Quota, connect};

/// Whether another task runs while this one makes calls that all have their answer at once.
async fn lets_others_run<F: Future<Output = ()>>(mut call: impl FnMut() -> F) -> bool {
    let ran = Arc::new(AtomicBool::new(false));
    let other = Arc::clone(&ran);
    tokio::spawn(async move { other.store(true, Ordering::Relaxed) });
    for _ in 0..5_000 {
        call().await;
        if ran.load(Ordering::Relaxed) {
            return true;
        }
    }
    false
}

#[tokio::test]
async fn loops_of_calls_let_other_tasks_run() {
    let w = connect("memory:").await.unwrap();
    let locked = lets_others_run(async || {
        let guard = w.lock("stock").acquire().await.unwrap();
        assert!(guard.release().await.unwrap().was_held());
    });
    assert!(locked.await, "lock");
    let dropped = lets_others_run(async || {
        let _ = w.lock("stock").acquire().await.unwrap();
    });
    assert!(dropped.await, "dropped guard");
    let counter = w.counter("hits");
    let counted = lets_others_run(async || {
        let _ = counter.add(1).await.unwrap();
    });
    assert!(counted.await, "counter");
    let limiter = w.limiter("api", Quota::per_second(10));
    let checked = lets_others_run(async || {
        let _ = limiter.check("ann").await.unwrap();
    });
    assert!(checked.await, "limiter");
    let seen = w.seen("orders").window(Duration::from_secs(60));
    let first = lets_others_run(async || {
        let _ = seen.first("42").await.unwrap();
    });
    assert!(first.await, "seen");
}

/// A task for each would fill the memory, as long as this one does not wait for anything.
#[tokio::test]
async fn dropped_guards_are_released_without_tasks() {
    let w = connect("memory:").await.unwrap();
    let tasks = || {
        tokio::runtime::Handle::current()
            .metrics()
            .num_alive_tasks()
    };
    let mut guards = Vec::new();
    for i in 0..1_000 {
        guards.push(w.lock(&format!("stock/{i}")).acquire().await.unwrap());
    }
    let before = tasks();
    drop(guards);
    assert_eq!(tasks(), before);
    let all = w.lock("stock/7").try_acquire().await.unwrap();
    assert!(!all.is_busy(), "released when the drop returns");
}
