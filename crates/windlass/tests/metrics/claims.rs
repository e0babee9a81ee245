//! Locks, semaphores and other leases.

use std::future::poll_fn;
use std::pin::pin;
use std::task::Poll;
use std::time::{Duration, Instant};

use windlass::{Attempt, Clock, Coordinator, Options};

use super::Recorded;

const SECOND: Duration = Duration::from_secs(1);

async fn with_clock() -> (Coordinator, Clock) {
    let clock = Clock::manual();
    let options = Options::new().clock(clock.clone());
    (options.connect("memory:").await.unwrap(), clock)
}

/// Lets background tasks run until nothing changes any more.
async fn settle() {
    for _ in 0..50 {
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn each_acquisition_is_counted_once_by_kind_and_outcome() {
    let recorded = Recorded::start();
    let w = windlass::connect("memory:").await.unwrap();
    let guard = w.lock("a").acquire().await.unwrap();
    assert_eq!((recorded.held(), recorded.waiting()), (1.0, 0.0));
    assert!(matches!(
        w.lock("a").try_acquire().await.unwrap(),
        Attempt::Busy(_)
    ));
    let wait = Duration::from_millis(20);
    let late = w.lock("a").acquire_within(wait).await.unwrap();
    assert!(matches!(late, Attempt::Busy(_)));
    w.lock("a").wait(wait).acquire().await.unwrap_err();
    w.lock("").acquire().await.unwrap_err();
    let permit = w.semaphore("s", 2).acquire().await.unwrap();
    assert_eq!(recorded.held(), 2.0);
    drop(permit);
    assert!(w.lock("a").ttl(Duration::ZERO).acquire().await.is_err());
    let _ = guard.release().await.unwrap();

    assert_eq!(recorded.acquired("lock granted"), 1.0);
    assert_eq!(recorded.acquired("lock busy"), 1.0);
    assert_eq!(recorded.acquired("lock timeout"), 2.0);
    assert_eq!(recorded.acquired("lock error"), 2.0);
    assert_eq!(recorded.acquired("sem granted"), 1.0);
    assert_eq!(recorded.acquired(""), 7.0);
    let waits = recorded.sum("windlass_acquire_wait_seconds_count", "lock");
    assert_eq!(waits, 3.0, "granted and timed out");
    assert!(recorded.sum("windlass_acquire_wait_seconds_sum", "lock") >= 0.04);
    assert_eq!(recorded.sum("windlass_hold_seconds_count", "lock"), 1.0);
    assert_eq!((recorded.held(), recorded.waiting()), (0.0, 0.0));
    assert_eq!(recorded.sum("windlass_lost_total", ""), 0.0);
}

#[tokio::test]
async fn several_locks_are_counted_one_by_one() {
    let recorded = Recorded::start();
    let w = windlass::connect("memory:").await.unwrap();
    let guard = w.locks(["a", "b", "c"]).acquire().await.unwrap();
    assert_eq!((recorded.acquired("granted"), recorded.held()), (3.0, 3.0));
    let busy = w.locks(["c", "d"]).try_acquire().await.unwrap();
    assert!(matches!(busy, Attempt::Busy(_)));
    assert_eq!((recorded.acquired("busy"), recorded.held()), (2.0, 3.0));
    let _ = guard.release().await.unwrap();
    assert_eq!((recorded.acquired(""), recorded.held()), (5.0, 0.0));
}

/// Polls the future at most `times` times, then drops it: a caller that is cancelled.
async fn cancelled_after(times: usize, future: impl Future) {
    let mut future = pin!(future);
    for _ in 0..times {
        let poll = poll_fn(|context| Poll::Ready(future.as_mut().poll(context)));
        if poll.await.is_ready() {
            return;
        }
        tokio::task::yield_now().await;
    }
}

/// Waits until a waiter is counted, and cancels it.
async fn wait_and_cancel(w: &Coordinator, recorded: &Recorded) {
    let holder = w.lock("contended").acquire().await.unwrap();
    {
        let lock = w.lock("contended");
        let mut waiter = pin!(lock.acquire());
        let began = Instant::now();
        while recorded.waiting() == 0.0 {
            assert!(began.elapsed() < 20 * SECOND, "nobody ever waited");
            let poll = tokio::time::timeout(SECOND / 1000, waiter.as_mut());
            assert!(poll.await.is_err(), "two hold at once");
        }
        assert_eq!(recorded.waiting(), 1.0);
    }
    assert_eq!(recorded.waiting(), 0.0, "cancelled");
    drop(holder);
}

#[tokio::test]
async fn gauges_are_zero_after_thousands_of_cancelled_acquires() {
    let recorded = Recorded::start();
    let folder = tempfile::tempdir().unwrap();
    let file = format!("file:{}", folder.path().join("locks.db").display());
    for (url, rounds) in [("memory:", 3_000), (file.as_str(), 300)] {
        let w = windlass::connect(url).await.unwrap();
        wait_and_cancel(&w, &recorded).await;
        for i in 0..rounds {
            // Held in two of three rounds, so that callers are cancelled while they wait and while they are granted.
            let holder = match i % 3 {
                0 => None,
                _ => Some(w.lock("contended").acquire().await.unwrap()),
            };
            let lock = w.lock("contended");
            let cancelled = [
                cancelled_after(i % 7, lock.acquire()),
                cancelled_after(i % 5, lock.acquire()),
                cancelled_after(1 + i % 3, lock.acquire()),
            ];
            let [one, two, three] = cancelled;
            tokio::join!(one, two, three, async {
                tokio::task::yield_now().await;
                drop(holder);
            });
        }
        let last = w.lock("contended").acquire().await.unwrap();
        assert_eq!(recorded.held(), 1.0, "{url}");
        drop(last);
        assert_eq!((recorded.held(), recorded.waiting()), (0.0, 0.0), "{url}");
    }
    assert!(recorded.acquired("cancelled") > 1_000.0);
}

#[tokio::test]
async fn gauges_are_zero_after_panics() {
    let recorded = Recorded::start();
    let w = windlass::connect("memory:").await.unwrap();
    let local = tokio::task::LocalSet::new();
    let panicking = |w: Coordinator| async move {
        let _guard = w.lock("a").acquire().await.unwrap();
        panic!("on purpose");
    };
    local
        .run_until(async {
            for _ in 0..10 {
                let task = tokio::task::spawn_local(panicking(w.clone()));
                task.await.unwrap_err();
            }
        })
        .await;
    assert_eq!(recorded.acquired("granted"), 10.0);
    assert_eq!((recorded.held(), recorded.waiting()), (0.0, 0.0));
}

#[tokio::test]
async fn losses_are_counted_by_reason() {
    let recorded = Recorded::start();
    let (w, clock) = with_clock().await;
    let lost = |reason| recorded.sum("windlass_lost_total", reason);

    let broken = w.lock("broken").ttl(30 * SECOND).acquire().await.unwrap();
    w.lock("broken").break_lock().await.unwrap();
    broken.renew().await.unwrap_err();
    assert_eq!((lost("gone"), lost(""), recorded.held()), (1.0, 1.0, 0.0));

    let capped = w.lock("capped").ttl(10 * SECOND).max_hold(4 * SECOND);
    let capped = capped.acquire().await.unwrap();
    // Step by step, so that it is renewed in between.
    for _ in 0..10 {
        clock.advance(SECOND / 2);
        settle().await;
    }
    capped.lost().await;
    assert_eq!((lost("max_hold"), lost("")), (1.0, 2.0));

    let short = w.lock("short").ttl(10 * SECOND).without_renewal();
    let short = short.acquire().await.unwrap();
    clock.advance(11 * SECOND);
    short.lost().await;
    assert_eq!((lost("not_renewed"), lost("")), (1.0, 3.0));

    // Nobody asks, and nothing runs, until the guard is dropped after its TTL.
    let late = w.lock("late").ttl(10 * SECOND).acquire().await.unwrap();
    assert_eq!(recorded.held(), 1.0);
    clock.advance(60 * SECOND);
    drop(late);
    assert_eq!((lost("expired"), lost("")), (1.0, 4.0));
    settle().await;
    drop((broken, capped, short));
    assert_eq!((lost(""), recorded.held()), (4.0, 0.0));
    let holds = recorded.sum("windlass_hold_seconds_count", "lock");
    assert_eq!(holds, 4.0);
}

#[tokio::test]
async fn hold_is_recorded_with_its_duration() {
    let recorded = Recorded::start();
    let (w, clock) = with_clock().await;
    let guard = w.lock("a").ttl(30 * SECOND).acquire().await.unwrap();
    clock.advance(7 * SECOND);
    settle().await;
    let _ = guard.release().await.unwrap();
    assert_eq!(recorded.sum("windlass_hold_seconds_sum", "lock"), 7.0);
}

#[tokio::test]
async fn detached_and_attached_leases_are_held_once() {
    let recorded = Recorded::start();
    let w = windlass::connect("memory:").await.unwrap();
    let guard = w.lock("a").owner("me").acquire().await.unwrap();
    let detached = guard.detach().await.unwrap();
    assert_eq!(recorded.held(), 0.0);
    let again = w.lock("a").attach(detached.owner.as_str()).await.unwrap();
    assert_eq!(recorded.held(), 1.0);
    let _ = again.release().await.unwrap();
    assert_eq!((recorded.held(), recorded.acquired("")), (0.0, 1.0));
}

#[tokio::test]
async fn names_are_labels_only_by_a_function_and_only_so_many() {
    let recorded = Recorded::start();
    let w = windlass::connect("memory:").await.unwrap();
    drop(w.lock("tenant-7/invoice").acquire().await.unwrap());
    assert!(!recorded.text().contains("tenant"), "{}", recorded.text());

    let options = Options::new().namespace("app");
    let options = options.metric_name_label(2, |name| name.split('/').next().unwrap_or_default());
    let w = options.connect("memory:").await.unwrap();
    for name in ["a/1", "b/1", "a/2", "c/1", "d/9", "b/2", "e/1"] {
        drop(w.lock(name).acquire().await.unwrap());
        drop(w.semaphore(name, 1).acquire().await.unwrap());
    }
    for (label, count) in [
        ("a", 2.0),
        ("b", 2.0),
        ("other", 3.0),
        ("c", 0.0),
        ("d", 0.0),
    ] {
        assert_eq!(recorded.acquired(&format!("lock granted {label}")), count);
        assert_eq!(recorded.acquired(&format!("sem granted {label}")), count);
    }
    assert_eq!(recorded.held(), 0.0);
}

#[tokio::test]
async fn connection_without_metrics_records_nothing() {
    let recorded = Recorded::start();
    let w = Options::new().metrics(false).connect("memory:").await;
    let w = w.unwrap();
    drop(w.lock("a").acquire().await.unwrap());
    let limiter = w.limiter("api", windlass::Quota::per_second(5));
    assert!(limiter.check("k").await.unwrap().is_allowed());
    assert_eq!(recorded.text().trim(), "");
}

#[tokio::test]
async fn calls_to_a_file_are_measured_by_operation_and_outcome() {
    let recorded = Recorded::start();
    let folder = tempfile::tempdir().unwrap();
    let url = format!("file:{}", folder.path().join("locks.db").display());
    let w = windlass::connect(&url).await.unwrap();
    let guard = w.lock("a").acquire().await.unwrap();
    w.lock("a").inspect().await.unwrap();
    let _ = guard.release().await.unwrap();
    let calls = |values| recorded.sum("windlass_store_call_seconds_count", values);
    assert_eq!(calls("file acquire ok"), 1.0);
    assert_eq!(calls("file inspect ok"), 1.0);
    assert_eq!(calls("file release ok"), 1.0);
    // On a slow machine a renewal may come in between; nothing else is called.
    let renewals = calls("file renew ok");
    assert_eq!(calls(""), 3.0 + renewals, "{}", recorded.text());
}
