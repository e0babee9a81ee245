//! Limiters and counters on a Redis that is flushed, restarted, filled or demoted during calls: no
//! panic, no hang, and correct results.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::time::Duration;

use windlass::{Basis, Coordinator, ErrorKind, OnStoreError, Options, Quota};
use windlass_testkit::conformance::SOON;
use windlass_testkit::{Flavor, RedisServer, eventually};

const FLAVORS: [Flavor; 3] = [Flavor::Redis, Flavor::Redis62, Flavor::Valkey];
const MS: Duration = Duration::from_millis(1);

fn start(flavor: Flavor) -> RedisServer {
    RedisServer::builder().binary(flavor).start().unwrap()
}

async fn connect(server: &RedisServer) -> Coordinator {
    Options::new()
        .call_timeout(2_000 * MS)
        .connect(&server.url())
        .await
        .unwrap()
}

/// The results of concurrent calls.
#[derive(Default)]
struct CallResults {
    over: AtomicBool,
    allowed: AtomicU64,
    without: AtomicU64,
    added: AtomicI64,
    failed: AtomicU64,
}

/// Calls limiters of all kinds and counters continuously until `over` is set.
fn spawn_calls(w: &Coordinator) -> (Arc<CallResults>, Vec<tokio::task::JoinHandle<()>>) {
    let results = Arc::new(CallResults::default());
    let day = Quota::per_day(1_000_000);
    let mut tasks = Vec::new();
    for quotas in [
        vec![day],
        vec![day, day.fixed_window()],
        vec![day.sliding_window()],
    ] {
        let name = format!("spawn_calls-{}-{}", quotas.len(), tasks.len());
        for policy in [None, Some(OnStoreError::Local)] {
            let mut limiter = w.limiter(&name, quotas.clone());
            if let Some(policy) = policy {
                limiter = limiter.on_store_error(policy);
            }
            let results = Arc::clone(&results);
            tasks.push(tokio::spawn(async move {
                let leased = limiter.leased();
                while !results.over.load(Ordering::Relaxed) {
                    let mut answers = limiter.check_all(["a", "b"]).await;
                    answers.push(limiter.check("a").await);
                    answers.push(leased.check("c").await);
                    for answer in answers {
                        match answer {
                            Ok(decision) if decision.basis() == Basis::Local => {
                                results.without.fetch_add(1, Ordering::Relaxed);
                            }
                            Ok(decision) => {
                                assert!(decision.is_allowed(), "{decision:?}");
                                results.allowed.fetch_add(1, Ordering::Relaxed);
                            }
                            Err(e) => {
                                assert!(policy.is_none(), "{e:?}");
                                assert!(e.is_retryable() || e.kind() == ErrorKind::Store, "{e:?}");
                                results.failed.fetch_add(1, Ordering::Relaxed);
                            }
                        }
                    }
                    tokio::time::sleep(MS).await;
                }
            }));
        }
    }
    for counter in [
        w.counter("plain"),
        w.counter("recent").window(3_600_000 * MS),
    ] {
        let results = Arc::clone(&results);
        tasks.push(tokio::spawn(async move {
            while !results.over.load(Ordering::Relaxed) {
                match counter.add(1).await {
                    Ok(counted) => {
                        assert!(counted.added);
                        results.added.fetch_add(1, Ordering::Relaxed);
                    }
                    Err(e) => {
                        assert!(e.is_retryable() || e.kind() == ErrorKind::Store, "{e:?}");
                        results.failed.fetch_add(1, Ordering::Relaxed);
                    }
                }
                tokio::time::sleep(MS).await;
            }
        }));
    }
    (results, tasks)
}

async fn end(results: &CallResults, tasks: Vec<tokio::task::JoinHandle<()>>) {
    results.over.store(true, Ordering::Relaxed);
    for task in tasks {
        tokio::time::timeout(4 * SOON, task)
            .await
            .expect("it hangs")
            .expect("it panicked");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn flushed_scripts_are_reloaded() {
    for flavor in FLAVORS {
        let server = start(flavor);
        let w = connect(&server).await;
        let (results, tasks) = spawn_calls(&w);
        for _ in 0..20 {
            tokio::time::sleep(20 * MS).await;
            server.command(&["SCRIPT", "FLUSH"]).unwrap();
        }
        end(&results, tasks).await;
        assert_eq!(results.failed.load(Ordering::Relaxed), 0, "{flavor:?}");
        assert_eq!(results.without.load(Ordering::Relaxed), 0, "{flavor:?}");
        assert!(results.allowed.load(Ordering::Relaxed) > 100);
        let plain = w.counter("plain").get().await.unwrap();
        let recent = w.counter("recent").window(3_600_000 * MS);
        let sum = plain + recent.get().await.unwrap();
        assert_eq!(sum, results.added.load(Ordering::Relaxed), "{flavor:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn server_that_comes_back_empty_is_used_again() {
    for flavor in FLAVORS {
        let server = start(flavor);
        let w = connect(&server).await;
        let (results, tasks) = spawn_calls(&w);
        for _ in 0..3 {
            let before = results.allowed.load(Ordering::Relaxed);
            let goes_on = eventually(2 * SOON, || async {
                results.allowed.load(Ordering::Relaxed) > before + 50
            });
            assert!(goes_on.await, "{flavor:?}");
            server.restart().unwrap();
        }
        let before = results.allowed.load(Ordering::Relaxed);
        let goes_on = eventually(2 * SOON, || async {
            results.allowed.load(Ordering::Relaxed) > before + 50
        });
        assert!(goes_on.await, "{flavor:?}: not used any more");
        end(&results, tasks).await;
        assert!(w.counter("plain").get().await.unwrap() > 0);
    }
}

/// Demoted or full: writes fail with a reason, reads work, and the policy applies.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn read_only_server_rejects_writes_and_the_policy_applies() {
    for flavor in FLAVORS {
        let server = start(flavor);
        let w = connect(&server).await;
        for fault in ["demoted", "full"] {
            let day = Quota::per_day(1_000);
            let name = |kind: &str| format!("{fault}-{kind}");
            let limiters = [
                w.limiter(&name("bucket"), day),
                w.limiter(&name("both"), [day, day.fixed_window()]),
                w.limiter(&name("window"), day.sliding_window()),
                w.limiter(&name("log"), day.sliding_log()),
                w.limiter(&name("all"), Quota::per_day(0).burst(1_000)),
            ];
            let counters = [
                w.counter(&name("plain")),
                w.counter(&name("window")).window(3_600_000 * MS),
                w.counter(&name("brief")).expire(3_600_000 * MS),
            ];
            let buffer = w
                .counter(&name("views"))
                .buffered_every(3_600_000 * MS)
                .unwrap();
            for limiter in &limiters {
                assert!(limiter.check("a").await.unwrap().is_allowed());
            }
            for counter in &counters {
                assert_eq!(counter.add(3).await.unwrap().value, 3);
            }
            let (word, kind) = match fault {
                "demoted" => {
                    server.command(&["REPLICAOF", "127.0.0.1", "1"]).unwrap();
                    ("read-only", ErrorKind::Unreachable)
                }
                _ => {
                    server
                        .command(&["CONFIG", "SET", "maxmemory", "1"])
                        .unwrap();
                    ("out of memory", ErrorKind::Store)
                }
            };
            let mut errors = Vec::new();
            for limiter in &limiters {
                errors.push(limiter.check("a").await.unwrap_err());
                errors.push(limiter.check("fresh").await.unwrap_err());
                errors.push(limiter.check_all(["a"]).await.remove(0).unwrap_err());
                errors.push(limiter.leased().check("a").await.unwrap_err());
                assert!(limiter.peek("a").await.unwrap().remaining() > 0, "looking");
                for policy in [OnStoreError::Allow, OnStoreError::Deny, OnStoreError::Local] {
                    let limiter = limiter.clone().on_store_error(policy);
                    let decision = limiter.check("a").await.unwrap();
                    assert_ne!(decision.basis(), Basis::Store);
                    assert_eq!(decision.is_allowed(), policy != OnStoreError::Deny);
                }
            }
            for counter in &counters {
                errors.push(counter.add(1).await.unwrap_err());
                errors.push(counter.add_once("x", 1).await.unwrap_err());
                assert_eq!(counter.get().await.unwrap(), 3, "looking");
            }
            buffer.add(5).unwrap();
            errors.push(buffer.flush().await.unwrap_err());
            for error in errors {
                assert_eq!(error.kind(), kind, "{flavor:?} {fault}: {error:?}");
                assert!(error.to_string().contains(word), "{flavor:?}: {error}");
                assert!(error.hint().is_some());
            }
            server.command(&["REPLICAOF", "NO", "ONE"]).unwrap();
            server
                .command(&["CONFIG", "SET", "maxmemory", "0"])
                .unwrap();
            buffer.close().await.unwrap();
            assert_eq!(w.counter(&name("views")).get().await.unwrap(), 5, "once");
            for limiter in &limiters {
                let seen = limiter.peek("a").await.unwrap();
                assert_eq!(seen.remaining(), 999, "{fault}: a failed call was charged");
                assert!(limiter.check("a").await.unwrap().is_allowed());
            }
            for counter in &counters {
                assert_eq!(counter.add(1).await.unwrap().value, 4);
            }
        }
    }
}

/// Only the store returns what it has charged, not a process that decides locally.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn units_are_returned_to_the_store_that_charged_them() {
    let server = start(Flavor::Redis);
    let w = connect(&server).await;
    let hour = 3_600_000 * MS;
    let limiter = w
        .limiter("api", Quota::every(hour).burst(2))
        .on_store_error(OnStoreError::Local)
        .call_timeout(100 * MS);
    let reserve = async || {
        limiter
            .reserve("a", 2, 10 * hour)
            .await
            .unwrap()
            .granted()
            .unwrap()
    };
    let _used = reserve().await;
    let later = reserve().await;
    server.pause().unwrap();
    // This process has another full quota, and a reservation.
    let alone = reserve().await;
    assert_eq!(alone.decision().basis(), Basis::Local);
    let alone = reserve().await;
    let before = limiter.peek("a").await.unwrap().retry_after().unwrap();
    assert!(!later.cancel().await.unwrap());
    assert!(!alone.cancel().await.unwrap());
    let after = limiter.peek("a").await.unwrap();
    assert_eq!(after.basis(), Basis::Local);
    assert!(before - after.retry_after().unwrap() < hour / 4);
    server.resume().unwrap();
}
