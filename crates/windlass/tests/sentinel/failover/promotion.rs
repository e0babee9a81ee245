//! Clients find the current master, whatever became of the old one.

use std::sync::Arc;
use std::time::{Duration, Instant};

use windlass::{ErrorKind, Quota, Ran, Released};
use windlass_testkit::conformance::{SOON, wait_for_waiters};
use windlass_testkit::{CountingLoad, FencedRegister, RedisReplicated, RedisServer, eventually};

use super::{MS, PROMOTION, RESUMED, blocking, connect, figure};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed_master_is_replaced_under_load() {
    let redis = Arc::new(RedisReplicated::start().unwrap());
    let register = FencedRegister::start().unwrap();
    let w = connect(&redis).await;

    // State from before that must survive.
    let ran = w
        .once("receipt")
        .run(|_| async { Ok(b"42".to_vec()) })
        .await;
    assert_eq!(ran.unwrap(), Ran::<String>::First(b"42".to_vec()));
    let space = w
        .permissions("repos")
        .levels(["no", "read"])
        .resources(["a", "b"]);
    let space = space.define().await.unwrap();
    space.set("ann", "a", "read").await.unwrap();
    assert_eq!(w.counter("visits").add(5).await.unwrap().value, 5);
    let hourly = w.limiter("mail", Quota::new(3, Duration::from_secs(3600)));
    assert!(hourly.check("ann").await.unwrap().is_allowed());
    let synced = eventually(SOON, || async { redis.in_sync() == 2 }).await;
    assert!(synced);

    // Load: clients that count under a lock, a limiter, a waiter.
    let mut load = CountingLoad::new();
    for _ in 0..4 {
        load.join(connect(&redis).await, "count", register.addr());
    }
    let held = w.lock("held").ttl(20_000 * MS).acquire().await.unwrap();
    let short = w.lock("short").ttl(1200 * MS).acquire().await.unwrap();
    let short_lost = short.lost_token();
    let second = connect(&redis).await;
    let waiting = tokio::spawn(async move { second.lock("held").acquire().await });
    wait_for_waiters(&w, "held", 1).await;
    let busy = eventually(SOON, || async { load.counted() > 20 }).await;
    assert!(busy, "the load works");
    tokio::time::sleep(300 * MS).await; // heartbeats of the waiter have reached the replicas

    let old = redis.master().unwrap().port();
    redis.master().unwrap().kill().unwrap();
    let killed = Instant::now();
    let promoted = blocking(&redis, move |redis| redis.await_promotion(old, PROMOTION));
    let promoted = promoted.await.unwrap().unwrap();
    figure("promotion after the kill", promoted);

    let after = Instant::now();
    let before = load.counted();
    let limiter = w.limiter("flow", Quota::per_second(1_000));
    let resumed = eventually(RESUMED, || async {
        load.counted() > before + 20
            && limiter.check("x").await.is_ok()
            && w.lock("fresh").acquire().await.is_ok()
    });
    assert!(
        resumed.await,
        "works again within {RESUMED:?} of the promotion"
    );
    figure("service resumed after the promotion", after.elapsed());
    figure("without service in all", killed.elapsed());

    // A lease that could not be renewed in time is reported as lost; one that could continues.
    assert!(killed.elapsed() < 1200 * MS || short_lost.is_cancelled() || short.is_held());
    drop(short);
    assert!(
        held.is_held(),
        "renewed on the new master, as it was replicated"
    );
    assert_eq!(held.release().await.unwrap(), Released::WasHeld);
    let next = tokio::time::timeout(SOON, waiting)
        .await
        .expect("still in line");
    drop(next.unwrap().unwrap());

    load.finish().await;
    let (accepted, stale) = register.writes();
    figure("writes accepted, stale ones refused", (accepted, stale));
    assert_eq!(register.lost_updates(), 0, "no fenced write is lost");

    let again = w
        .once("receipt")
        .run(|_| async { Ok(b"43".to_vec()) })
        .await;
    assert_eq!(again.unwrap(), Ran::<String>::Again(b"42".to_vec()));
    assert!(space.check("ann", "a", "read").await.unwrap());
    assert_eq!(w.counter("visits").get().await.unwrap(), 5);
    assert!(hourly.check("ann").await.unwrap().is_allowed());
    assert!(hourly.check("ann").await.unwrap().is_allowed());
    assert!(
        !hourly.check("ann").await.unwrap().is_allowed(),
        "not filled again"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn replaced_master_that_still_answers_is_left() {
    let redis = Arc::new(RedisReplicated::start().unwrap());
    let w = connect(&redis).await;
    let old = redis.master().unwrap();
    let guard = w.lock("stock").ttl(3000 * MS).acquire().await.unwrap();
    // From here on the sentinels cannot query the old master or demote it. Connected clients can
    // still write to it.
    old.command(&["CONFIG", "SET", "requirepass", "locked-out"])
        .unwrap();
    let locked = |words: &[&str]| command_as(old, words);
    let ids = locked(&["CLIENT", "LIST"]);
    for client in ids.lines().filter(|line| line.contains("name=sentinel-")) {
        let id = client
            .split(' ')
            .next()
            .unwrap()
            .strip_prefix("id=")
            .unwrap();
        locked(&["CLIENT", "KILL", "ID", id]);
    }
    let port = old.port();
    let promoted = blocking(&redis, move |redis| redis.await_promotion(port, PROMOTION));
    promoted.await.unwrap().unwrap();
    assert!(
        locked(&["ROLE"]).starts_with("master"),
        "the old one does not know"
    );
    let after = Instant::now();
    // New grants come from the new master.
    let moved = eventually(RESUMED, || async {
        let Ok(guard) = w.lock("fresh").acquire().await else {
            return false;
        };
        let new = redis.master().unwrap();
        let there = new
            .command(&["GET", "fresh"])
            .is_ok_and(|owner| owner == guard.owner().as_str());
        let _ = guard.release().await;
        there
    });
    assert!(moved.await, "the old master is left");
    figure(
        "an old master that still answers is left after",
        after.elapsed(),
    );
    assert!(guard.is_held() || guard.lost_token().is_cancelled());
}

/// Runs a command on a server whose password was set later.
fn command_as(server: &RedisServer, words: &[&str]) -> String {
    let script = words.join(" ");
    let output = std::process::Command::new("redis-cli")
        .args([
            "-p",
            &server.port().to_string(),
            "-a",
            "locked-out",
            "--no-auth-warning",
        ])
        .args(words)
        .output()
        .unwrap_or_else(|e| panic!("redis-cli {script}: {e}"));
    String::from_utf8(output.stdout).unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn demoted_master_is_looked_up_again() {
    let redis = Arc::new(RedisReplicated::start().unwrap());
    let w = connect(&redis).await;
    let old = redis.master().unwrap();
    let guard = w.lock("stock").ttl(8000 * MS).acquire().await.unwrap();
    let fence = guard.fence();
    // Connected clients are not notified: their next write fails.
    let replica = redis.replicas().unwrap()[0];
    let port = replica.port().to_string();
    old.command(&["REPLICAOF", "127.0.0.1", &port]).unwrap();
    let refused = w
        .lock("other")
        .retry(windlass::RetryPolicy::none())
        .acquire()
        .await;
    let refused = refused.expect_err("nobody takes writes now");
    assert_eq!(refused.kind(), ErrorKind::Unreachable, "{refused}");
    // The sentinels make it the master again, or another one.
    let works = eventually(PROMOTION, || async {
        w.lock("other").acquire().await.is_ok()
    });
    assert!(works.await);
    let next = w.lock("other").acquire().await.unwrap();
    assert!(next.fence() > fence);
}

/// At first only the sentinel that led the failover knows of it, and an old master that comes back
/// immediately claims to be a master.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn old_master_that_comes_back_is_not_trusted() {
    let redis = RedisReplicated::start().unwrap();
    let old = redis.master().unwrap();
    old.kill().unwrap();
    redis.await_promotion(old.port(), PROMOTION).unwrap();
    old.restart().unwrap();
    let new = redis.master_port().unwrap().to_string();
    let until = Instant::now() + 2000 * MS;
    while Instant::now() < until {
        let w = connect(&redis).await;
        let guard = w.lock("stock").acquire().await.unwrap();
        let said = redis.servers().iter().filter(|server| {
            let held = server.command(&["EXISTS", "stock"]);
            held.is_ok_and(|held| held == "1")
                && server.port().to_string() != new
                && server
                    .command(&["ROLE"])
                    .is_ok_and(|role| role.starts_with("master"))
        });
        assert_eq!(said.count(), 0, "it is held where nobody looks");
        assert_eq!(guard.release().await.unwrap(), Released::WasHeld);
    }
}

/// A release without a master reaches the next master, long before the claim expires.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn release_without_a_master_reaches_the_next_master() {
    let redis = Arc::new(RedisReplicated::start().unwrap());
    let w = connect(&redis).await;
    let lock = w.lock("stock").ttl(Duration::from_secs(300));
    let guard = lock.replicas(2, SOON).acquire().await.unwrap();
    let permit = w.semaphore("jobs", 1).ttl(Duration::from_secs(300));
    let permit = permit.replicas(2, SOON).acquire().await.unwrap();
    redis.master().unwrap().kill().unwrap();
    drop((guard, permit));
    let free = eventually(PROMOTION, || async {
        let lock = w.lock("stock").try_acquire().await;
        let permit = w.semaphore("jobs", 1).try_acquire().await;
        lock.is_ok_and(|lock| lock.acquired().is_some())
            && permit.is_ok_and(|permit| permit.acquired().is_some())
    });
    assert!(free.await, "given up on the new master");
}
