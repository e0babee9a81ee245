//! Limiters and counters on a Redis that is flushed, restarted, filled or demoted in mid-stream: nobody
//! panics, nobody hangs, and what is told is true.

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

/// What a stream of calls has heard.
#[derive(Default)]
struct Heard {
    over: AtomicBool,
    allowed: AtomicU64,
    without: AtomicU64,
    added: AtomicI64,
    failed: AtomicU64,
}

/// Limiters of all kinds and counters, asked without a pause until it is over.
fn stream(w: &Coordinator) -> (Arc<Heard>, Vec<tokio::task::JoinHandle<()>>) {
    let heard = Arc::new(Heard::default());
    let day = Quota::per_day(1_000_000);
    let mut tasks = Vec::new();
    for quotas in [
        vec![day],
        vec![day, day.fixed_window()],
        vec![day.sliding_window()],
    ] {
        let name = format!("stream-{}-{}", quotas.len(), tasks.len());
        for policy in [None, Some(OnStoreError::Local)] {
            let mut limiter = w.limiter(&name, quotas.clone());
            if let Some(policy) = policy {
                limiter = limiter.on_store_error(policy);
            }
            let heard = Arc::clone(&heard);
            tasks.push(tokio::spawn(async move {
                let leased = limiter.leased();
                while !heard.over.load(Ordering::Relaxed) {
                    let mut answers = limiter.check_all(["a", "b"]).await;
                    answers.push(limiter.check("a").await);
                    answers.push(leased.check("c").await);
                    for answer in answers {
                        match answer {
                            Ok(decision) if decision.basis() == Basis::Local => {
                                heard.without.fetch_add(1, Ordering::Relaxed);
                            }
                            Ok(decision) => {
                                assert!(decision.is_allowed(), "{decision:?}");
                                heard.allowed.fetch_add(1, Ordering::Relaxed);
                            }
                            Err(e) => {
                                assert!(policy.is_none(), "{e:?}");
                                assert!(e.is_retryable() || e.kind() == ErrorKind::Store, "{e:?}");
                                heard.failed.fetch_add(1, Ordering::Relaxed);
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
        let heard = Arc::clone(&heard);
        tasks.push(tokio::spawn(async move {
            while !heard.over.load(Ordering::Relaxed) {
                match counter.add(1).await {
                    Ok(counted) => {
                        assert!(counted.added);
                        heard.added.fetch_add(1, Ordering::Relaxed);
                    }
                    Err(e) => {
                        assert!(e.is_retryable() || e.kind() == ErrorKind::Store, "{e:?}");
                        heard.failed.fetch_add(1, Ordering::Relaxed);
                    }
                }
                tokio::time::sleep(MS).await;
            }
        }));
    }
    (heard, tasks)
}

async fn end(heard: &Heard, tasks: Vec<tokio::task::JoinHandle<()>>) {
    heard.over.store(true, Ordering::Relaxed);
    for task in tasks {
        tokio::time::timeout(4 * SOON, task)
            .await
            .expect("it hangs")
            .expect("it panicked");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn scripts_that_are_flushed_go_unnoticed() {
    for flavor in FLAVORS {
        let server = start(flavor);
        let w = connect(&server).await;
        let (heard, tasks) = stream(&w);
        for _ in 0..20 {
            tokio::time::sleep(20 * MS).await;
            server.command(&["SCRIPT", "FLUSH"]).unwrap();
        }
        end(&heard, tasks).await;
        assert_eq!(heard.failed.load(Ordering::Relaxed), 0, "{flavor:?}");
        assert_eq!(heard.without.load(Ordering::Relaxed), 0, "{flavor:?}");
        assert!(heard.allowed.load(Ordering::Relaxed) > 100);
        let plain = w.counter("plain").get().await.unwrap();
        let recent = w.counter("recent").window(3_600_000 * MS);
        let sum = plain + recent.get().await.unwrap();
        assert_eq!(sum, heard.added.load(Ordering::Relaxed), "{flavor:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_comes_back_empty_is_used_again() {
    for flavor in FLAVORS {
        let server = start(flavor);
        let w = connect(&server).await;
        let (heard, tasks) = stream(&w);
        for _ in 0..3 {
            let before = heard.allowed.load(Ordering::Relaxed);
            let goes_on = eventually(2 * SOON, || async {
                heard.allowed.load(Ordering::Relaxed) > before + 50
            });
            assert!(goes_on.await, "{flavor:?}");
            server.restart().unwrap();
        }
        let before = heard.allowed.load(Ordering::Relaxed);
        let goes_on = eventually(2 * SOON, || async {
            heard.allowed.load(Ordering::Relaxed) > before + 50
        });
        assert!(goes_on.await, "{flavor:?}: not used any more");
        end(&heard, tasks).await;
        assert!(w.counter("plain").get().await.unwrap() > 0);
    }
}

/// Demoted, or full: writing fails with a word that says why, looking goes on, and the policy holds.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_cannot_be_written_to() {
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

/// What the store has charged, only the store can give back: not the process that decides alone.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_is_given_back_to_the_wrong_one() {
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
    // This process alone has as much once more, and a reservation.
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
