//! Idempotent execution.

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use windlass::{Begun, ErrorKind, Finished, OnFailure, Ran};

use super::{SOON, TestStore};
use crate::eventually;

fn work(result: &str) -> impl Future<Output = Result<Vec<u8>, Infallible>> + use<> {
    std::future::ready(Ok(result.as_bytes().to_vec()))
}

fn mine(begun: Begun) -> windlass::OnceGuard {
    match begun {
        Begun::Mine(guard) => guard,
        other => panic!("not ours: {other:?}"),
    }
}

/// The second caller gets the result of the first.
pub async fn second_call_returns_the_stored_result(store: &TestStore) {
    let (a, b) = (store.connect().await, store.connect().await);
    let ran = a.once("k").run(|_| work("one")).await.unwrap();
    assert_eq!(ran, Ran::First(b"one".to_vec()));
    for w in [&a, &b] {
        let ran = w.once("k").run(|_| work("two")).await.unwrap();
        assert_eq!(ran, Ran::Again(b"one".to_vec()));
    }
    let other = b.once("l").run(|_| work("two")).await.unwrap();
    assert_eq!(other, Ran::First(b"two".to_vec()), "another key");
    let empty = a.once("e").run(|_| work("")).await.unwrap();
    assert_eq!(empty, Ran::First(Vec::new()));
    assert_eq!(
        a.once("e").run(|_| work("x")).await.unwrap(),
        Ran::Again(Vec::new())
    );
    assert!(a.once("k").forget().await.unwrap());
    assert!(!a.once("k").forget().await.unwrap());
    let ran = a.once("k").run(|_| work("three")).await.unwrap();
    assert_eq!(ran, Ran::First(b"three".to_vec()));
}

/// Callers that arrive during the work wait and get the result.
pub async fn concurrent_calls_run_once(store: &TestStore) {
    // A memory store lives as long as a client is connected.
    let _somebody = store.connect().await;
    let done = Arc::new(AtomicU32::new(0));
    let mut tasks = Vec::new();
    for n in 0..12 {
        let (w, done) = (store.connect().await, Arc::clone(&done));
        tasks.push(tokio::spawn(async move {
            let work = |_| async move {
                done.fetch_add(1, Ordering::SeqCst);
                tokio::time::sleep(Duration::from_millis(50)).await;
                Ok::<_, Infallible>(format!("by {n}").into_bytes())
            };
            match w.once("k").run(work).await.unwrap() {
                Ran::First(result) | Ran::Again(result) => result,
                other => panic!("{other:?}"),
            }
        }));
    }
    let mut results = Vec::new();
    for task in tasks {
        results.push(task.await.unwrap());
    }
    assert_eq!(done.load(Ordering::SeqCst), 1);
    assert!(
        results.iter().all(|result| *result == results[0]),
        "{results:?}"
    );
    let w = store.connect().await;
    let guard = mine(w.once("busy").begin().await.unwrap());
    let busy = w.once("busy").try_begin().await.unwrap();
    assert!(matches!(busy, Begun::Busy(_)), "{busy:?}");
    let short = w.once("busy").wait(Duration::from_millis(50));
    let elapsed = short.run(|_| work("x")).await.unwrap_err();
    assert_eq!(elapsed.kind(), ErrorKind::WaitElapsed);
    guard.finish(b"").await.unwrap();
}

/// A key stands for one payload, also while the work runs.
pub async fn different_payload_is_rejected(store: &TestStore) {
    let (a, b) = (store.connect().await, store.connect().await);
    let guard = mine(a.once("k").payload("10 euros").begin().await.unwrap());
    let refused = b.once("k").payload("99 euros").begin().await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Mismatch, "{refused}");
    assert!(refused.hint().is_some());
    guard.finish(b"done").await.unwrap();
    let refused = b.once("k").payload("99 euros").begin().await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Mismatch);
    let again = b.once("k").payload("10 euros").begin().await.unwrap();
    assert!(matches!(again, Begun::Again(Finished::Done(result)) if result == b"done"));
}

/// Work that was interrupted has no result that another payload could be mistaken for.
pub async fn interrupted_work_may_run_with_another_payload(store: &TestStore) {
    let (a, b) = (store.connect().await, store.connect().await);
    let first = a
        .once("k")
        .payload("10 euros")
        .retention(Duration::from_millis(1));
    drop(mine(first.begin().await.unwrap()));
    // Dropping releases in the background; until then the first payload counts as running.
    let other = b.once("k").payload("99 euros");
    let guard = loop {
        match other.begin().await {
            Ok(begun) => break mine(begun),
            Err(e) => assert_eq!(e.kind(), ErrorKind::Mismatch, "{e}"),
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    };
    guard.finish(b"done").await.unwrap();
    let refused = first.begin().await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Mismatch);
}

/// Failed work is repeated, or its error stored, as configured.
pub async fn failures_are_retried_or_stored(store: &TestStore) {
    let w = store.connect().await;
    let fail = |_| async { Err("no money".to_owned()) };
    let once = w.once("retry").payload("a");
    let ran = once.run(fail).await.unwrap();
    assert_eq!(ran, Ran::Failed("no money".to_owned()));
    let once = w.once("retry").payload("b");
    assert_eq!(
        once.run(|_| work("fine")).await.unwrap(),
        Ran::First(b"fine".to_vec())
    );
    let once = w.once("keep").on_failure(OnFailure::Keep);
    assert_eq!(
        once.run(fail).await.unwrap(),
        Ran::Failed("no money".to_owned())
    );
    let again = once.run(|_| work("fine")).await.unwrap();
    assert_eq!(again, Ran::FailedBefore("no money".to_owned()));
}

/// A cancelled worker leaves the work to the next caller.
pub async fn dead_worker_is_replaced(store: &TestStore) {
    let w = store.connect().await;
    drop(mine(w.once("k").begin().await.unwrap()));
    let ran = w.once("k").run(|_| work("second")).await.unwrap();
    assert_eq!(ran, Ran::First(b"second".to_vec()));
    // Cancelled while it runs.
    let once = w.once("c");
    let never = once.run(|_| std::future::pending::<Result<Vec<u8>, Infallible>>());
    let cut = tokio::time::timeout(Duration::from_millis(50), never).await;
    assert!(cut.is_err());
    let ran = w.once("c").run(|_| work("second")).await.unwrap();
    assert_eq!(ran, Ran::First(b"second".to_vec()));
}

/// The result of a worker that lost its lease is rejected.
pub async fn result_after_lost_lease_is_rejected(store: &TestStore) {
    let (begun, has_begun) = std::sync::mpsc::channel();
    let (wake, woken) = std::sync::mpsc::channel::<()>();
    let (url, options) = (store.url().to_owned(), store.options());
    // A frozen process: its runtime stops, and nothing renews.
    let sleeper = std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread();
        let runtime = { runtime }.enable_all().build().unwrap();
        let guard = runtime.block_on(async {
            let w = options.connect(&url).await.unwrap();
            let once = w.once("k").ttl(Duration::from_millis(150));
            mine(once.begin().await.unwrap())
        });
        begun.send(guard.fence()).unwrap();
        woken.recv().unwrap();
        runtime.block_on(guard.finish(b"late"))
    });
    let stale = tokio::task::spawn_blocking(move || has_begun.recv().unwrap());
    let stale = stale.await.unwrap();
    let w = store.connect().await;
    let guard = mine(w.once("k").begin().await.unwrap());
    assert!(guard.fence() > stale);
    wake.send(()).unwrap();
    let late = tokio::task::spawn_blocking(|| sleeper.join().unwrap());
    let late = late.await.unwrap().unwrap_err();
    assert_eq!(late.kind(), ErrorKind::Lost, "{late}");
    let kept = guard.finish(b"in time").await.unwrap();
    assert_eq!(kept, Finished::Done(b"in time".to_vec()));
    let ran = w.once("k").run(|_| work("again")).await.unwrap();
    assert_eq!(ran, Ran::Again(b"in time".to_vec()));
}

/// Results expire after their retention.
pub async fn results_expire(store: &TestStore) {
    let w = store.connect().await;
    let once = w.once("k").retention(Duration::from_millis(300));
    let start = std::time::Instant::now();
    assert_eq!(
        once.run(|_| work("one")).await.unwrap(),
        Ran::First(b"one".to_vec())
    );
    let again = eventually(SOON, || async {
        once.run(|_| work("two")).await.unwrap() == Ran::First(b"two".to_vec())
    });
    assert!(again.await);
    assert!(start.elapsed() >= Duration::from_millis(300));
}

/// Work may take longer than its result is kept.
pub async fn work_may_outlast_its_retention(store: &TestStore) {
    let w = store.connect().await;
    let once = w.once("k").retention(Duration::from_millis(50));
    let guard = mine(once.begin().await.unwrap());
    tokio::time::sleep(Duration::from_millis(200)).await;
    let finished = guard.finish(b"done").await.unwrap();
    assert_eq!(finished, Finished::Done(b"done".to_vec()));
}

/// Finished work whose result cannot be stored is not repeated immediately: the lease is kept.
pub async fn unstorable_result_is_not_retried_immediately(store: &TestStore) {
    let (a, b) = (store.connect().await, store.connect().await);
    let once = a.once("k").ttl(Duration::from_secs(2));
    let guard = mine(once.begin().await.unwrap());
    let large = vec![0; windlass::Once::MAX_RESULT_BYTES + 1];
    let refused = guard.finish(&large).await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::InvalidInput, "{refused}");
    assert!(refused.to_string().contains("it was done"), "{refused}");
    // Longer than a release takes in the background.
    tokio::time::sleep(Duration::from_millis(300)).await;
    let busy = b.once("k").try_begin().await.unwrap();
    assert!(matches!(busy, Begun::Busy(_)), "{busy:?}");
    let next = eventually(SOON, || async {
        matches!(b.once("k").try_begin().await, Ok(Begun::Mine(_)))
    });
    assert!(next.await, "its ttl ends it");
}

/// Keys, payloads and results of any size.
pub async fn keys_and_results_of_any_size_work(store: &TestStore) {
    let w = store.connect().await;
    let large = vec![7; 10 << 20];
    for (key, payload, result) in [("none", &[][..], &[][..]), ("large", &large, &large)] {
        let once = w.once(key).payload(payload);
        for first in [true, false] {
            let result = result.to_vec();
            let ran = once.run(|_| std::future::ready(Ok::<_, Infallible>(result.clone())));
            let expected = match first {
                true => Ran::First(result.clone()),
                false => Ran::Again(result.clone()),
            };
            assert!(ran.await.unwrap() == expected, "{key}");
        }
        let other = w.once(key).payload("other").begin().await.unwrap_err();
        assert_eq!(other.kind(), ErrorKind::Mismatch);
    }
}

/// Each invalid input has its own error.
pub async fn invalid_input_is_rejected(store: &TestStore) {
    let w = store.connect().await;
    for bad in [
        w.once(""),
        w.once("k").retention(Duration::ZERO),
        w.once("k").retention(Duration::MAX),
        w.once("k").ttl(Duration::ZERO),
    ] {
        let refused = bad.begin().await.unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::InvalidInput, "{refused}");
    }
    let guard = mine(w.once("k").begin().await.unwrap());
    let large = vec![0; windlass::Once::MAX_RESULT_BYTES + 1];
    let refused = guard.finish(&large).await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::InvalidInput);
    // A lock and a `once` key may share a name.
    let lock = w.lock("shared").acquire().await.unwrap();
    let ran = w.once("shared").run(|_| work("x")).await.unwrap();
    assert_eq!(ran, Ran::First(b"x".to_vec()));
    assert!(lock.release().await.unwrap().was_held());
}
