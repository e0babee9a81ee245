//! A replicated Redis whose master goes away, and what must not come of it.
//!
//! `WINDLASS_FIGURES=1 cargo test -p windlass --test redis_failover -- --nocapture` prints what was measured.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use windlass::{Coordinator, ErrorKind, Options, Quota, Ran, Released};
use windlass_testkit::conformance::{SOON, has_waiters};
use windlass_testkit::{
    FencedRegister, RedisReplicated, RedisServer, RegisterClient, Written, eventually,
    eventually_blocking,
};

const MS: Duration = Duration::from_millis(1);
/// Until sentinels have made another server the master, on a busy machine.
const PROMOTION: Duration = Duration::from_secs(60);
/// What is promised: until everything works again, once there is a new master.
const RESUMED: Duration = Duration::from_secs(10);

async fn connect(redis: &RedisReplicated) -> Coordinator {
    let options = Options::new().call_timeout(500 * MS);
    options.connect(&redis.url()).await.unwrap()
}

fn figure(what: &str, value: impl std::fmt::Debug) {
    if std::env::var_os("WINDLASS_FIGURES").is_some() {
        eprintln!("{what}: {value:?}");
    }
}

/// Cuts the replicas off, so that what the master does from now on is lost with it.
fn cut_replication(redis: &RedisReplicated) {
    for replica in redis.replicas().unwrap() {
        replica
            .command(&["CONFIG", "SET", "masteruser", "nobody"])
            .unwrap();
        replica
            .command(&["CONFIG", "SET", "masterauth", "wrong"])
            .unwrap();
    }
    let master = redis.master().unwrap();
    master
        .command(&["CLIENT", "KILL", "TYPE", "replica"])
        .unwrap();
    let cut = eventually_blocking(SOON, || {
        let info = master.command(&["INFO", "replication"]).unwrap();
        info.contains("connected_slaves:0")
    });
    assert!(cut, "the replicas are cut off");
}

fn heal_replication(redis: &RedisReplicated) {
    for server in redis.servers().iter().filter(|s| s.pid().is_some()) {
        server
            .command(&["CONFIG", "SET", "masteruser", ""])
            .unwrap();
        server
            .command(&["CONFIG", "SET", "masterauth", ""])
            .unwrap();
    }
}

fn blocking<T: Send + 'static>(
    redis: &Arc<RedisReplicated>,
    what: impl FnOnce(&RedisReplicated) -> T + Send + 'static,
) -> tokio::task::JoinHandle<T> {
    let redis = Arc::clone(redis);
    tokio::task::spawn_blocking(move || what(&redis))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_master_is_followed_under_load() {
    let redis = Arc::new(RedisReplicated::start().unwrap());
    let register = FencedRegister::start().unwrap();
    let w = connect(&redis).await;

    // What is there before, and must be there after.
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

    // Load: tasks that count under a lock, each with a client of its own; a limiter; a waiter.
    let stop = Arc::new(AtomicBool::new(false));
    let counted = Arc::new(AtomicU64::new(0));
    let mut load = Vec::new();
    for _ in 0..4 {
        let (w, stop, counted) = (
            connect(&redis).await,
            Arc::clone(&stop),
            Arc::clone(&counted),
        );
        let addr = register.addr();
        load.push(tokio::spawn(async move {
            let mut client = RegisterClient::connect(addr).unwrap();
            while !stop.load(Ordering::Relaxed) {
                let Ok(guard) = w
                    .lock("count")
                    .ttl(1500 * MS)
                    .wait(2000 * MS)
                    .acquire()
                    .await
                else {
                    tokio::time::sleep(10 * MS).await;
                    continue;
                };
                let value = client.read().unwrap();
                if !guard.is_held() {
                    continue;
                }
                if let Written::Accepted = client.write(guard.fence().get(), value + 1).unwrap() {
                    counted.fetch_add(1, Ordering::Relaxed);
                }
                let _ = guard.release().await;
            }
        }));
    }
    let held = w.lock("held").ttl(20_000 * MS).acquire().await.unwrap();
    let short = w.lock("short").ttl(1200 * MS).acquire().await.unwrap();
    let short_lost = short.lost_token();
    let second = connect(&redis).await;
    let waiting = tokio::spawn(async move { second.lock("held").acquire().await });
    has_waiters(&w, "held", 1).await;
    let busy = eventually(SOON, || async { counted.load(Ordering::Relaxed) > 20 }).await;
    assert!(busy, "the load works");
    tokio::time::sleep(300 * MS).await; // renewals of the waiter have reached the replicas

    let old = redis.master().unwrap().port();
    redis.master().unwrap().kill().unwrap();
    let killed = Instant::now();
    let promoted = blocking(&redis, move |redis| redis.await_promotion(old, PROMOTION));
    let promoted = promoted.await.unwrap().unwrap();
    figure("promotion after the kill", promoted);

    let after = Instant::now();
    let before = counted.load(Ordering::Relaxed);
    let limiter = w.limiter("flow", Quota::per_second(1_000));
    let resumed = eventually(RESUMED, || async {
        counted.load(Ordering::Relaxed) > before + 20
            && limiter.check("x").await.is_ok()
            && w.lock("fresh").acquire().await.is_ok()
    });
    assert!(
        resumed.await,
        "works again within {RESUMED:?} of the promotion"
    );
    figure("service resumed after the promotion", after.elapsed());
    figure("without service in all", killed.elapsed());

    // A lease that could not be renewed in time is told of; one that could goes on.
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

    stop.store(true, Ordering::Relaxed);
    for task in load {
        task.await.unwrap();
    }
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
        "not filled anew"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fences_grow_over_a_failover_that_lost_grants() {
    let redis = Arc::new(RedisReplicated::start().unwrap());
    let w = connect(&redis).await;
    let master = redis.master().unwrap();
    drop(w.lock("stock").acquire().await.unwrap());
    // Far ahead of the clock, which so is of no help.
    master
        .command(&["INCRBY", "windlass:fence", "3600000000"])
        .unwrap();
    let synced = w
        .lock("stock")
        .replicas(2, 5000 * MS)
        .acquire()
        .await
        .unwrap();
    assert!(synced.release().await.unwrap().was_held());
    cut_replication(&redis);
    let mut highest = 0;
    for _ in 0..300 {
        let guard = w.lock("stock").acquire().await.unwrap();
        highest = highest.max(guard.fence().get());
        assert!(guard.release().await.unwrap().was_held());
    }
    let guard = w.lock("stock").ttl(1500 * MS).acquire().await.unwrap();
    highest = highest.max(guard.fence().get());
    let room = w.semaphore("jobs", 2).acquire().await.unwrap();
    highest = highest.max(room.fence().get());

    let old = master.port();
    master.kill().unwrap();
    let promoted = blocking(&redis, move |redis| redis.await_promotion(old, PROMOTION));
    promoted.await.unwrap().unwrap();
    heal_replication(&redis);
    tokio::time::timeout(RESUMED, guard.lost())
        .await
        .expect("what was forgotten is told");
    let next = w
        .lock("stock")
        .retry(windlass::RetryPolicy::tries(20))
        .acquire()
        .await
        .unwrap();
    assert!(
        next.fence().get() > highest,
        "{} after {highest}",
        next.fence()
    );
    let permit = w.semaphore("jobs", 2).acquire().await.unwrap();
    assert!(
        permit.fence().get() > highest,
        "{} after {highest}",
        permit.fence()
    );
    let both = w.locks(["a", "b"]).acquire().await.unwrap();
    assert!(both.fence("a").unwrap().get() > highest);
    // The counter is raised once, not by everybody who comes.
    let third = connect(&redis).await;
    let later = third.lock("other").acquire().await.unwrap();
    assert!(later.fence().get() < next.fence().get() + 1000);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_master_that_was_replaced_and_still_answers_is_left() {
    let redis = Arc::new(RedisReplicated::start().unwrap());
    let w = connect(&redis).await;
    let old = redis.master().unwrap();
    let guard = w.lock("stock").ttl(3000 * MS).acquire().await.unwrap();
    // From here on the sentinels get no sensible answer from it, and cannot tell it to step down. Those who
    // are connected already can go on writing to it.
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
    // What is acquired now is acquired on the new master.
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

/// A command to a server whose password was set later.
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
async fn a_demoted_master_means_asking_again() {
    let redis = Arc::new(RedisReplicated::start().unwrap());
    let w = connect(&redis).await;
    let old = redis.master().unwrap();
    let guard = w.lock("stock").ttl(8000 * MS).acquire().await.unwrap();
    let fence = guard.fence();
    // Without a word to those who are connected: they hear it from their next write.
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

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_grant_counts_when_replicas_have_it() {
    let redis = Arc::new(RedisReplicated::start().unwrap());
    let w = connect(&redis).await;
    let plenty = 5000 * MS;
    // All have it: granted, also to one who waits in line, to a share, and to several at once.
    let first = w.lock("stock").replicas(2, plenty).acquire().await.unwrap();
    let waiting = tokio::spawn({
        let w = connect(&redis).await;
        async move { w.lock("stock").replicas(2, plenty).acquire().await }
    });
    has_waiters(&w, "stock", 1).await;
    assert!(first.release().await.unwrap().was_held());
    let handed = tokio::time::timeout(SOON, waiting)
        .await
        .unwrap()
        .unwrap()
        .unwrap();
    let permit = w
        .semaphore("jobs", 2)
        .replicas(2, plenty)
        .acquire()
        .await
        .unwrap();
    let both = w
        .locks(["a", "b"])
        .replicas(2, plenty)
        .acquire()
        .await
        .unwrap();
    // Many at once share a round.
    let many: Vec<_> = (0..50)
        .map(|i| {
            let w = w.clone();
            tokio::spawn(async move {
                let lock = w.lock(&format!("n{i}")).replicas(1, plenty);
                lock.acquire().await.unwrap().release().await.unwrap()
            })
        })
        .collect();
    for one in many {
        assert!(one.await.unwrap().was_held());
    }
    drop((permit, both));

    // What all have survives the master.
    let old = redis.master().unwrap().port();
    redis.master().unwrap().kill().unwrap();
    let promoted = blocking(&redis, move |redis| redis.await_promotion(old, PROMOTION));
    promoted.await.unwrap().unwrap();
    let still = eventually(RESUMED, || async { handed.renew().await.is_ok() }).await;
    assert!(still && handed.is_held(), "the new master has it");

    // Nobody has it: undone, and said so.
    redis
        .servers()
        .iter()
        .find(|s| s.port() == old)
        .unwrap()
        .restart()
        .unwrap();
    let back = blocking(&redis, |redis| {
        eventually_blocking(PROMOTION, || redis.in_sync() == 2)
    });
    assert!(back.await.unwrap());
    cut_replication(&redis);
    let url = format!("{}?replicas=1&replicas_timeout=200ms", redis.url());
    let strict = windlass::connect(&url).await.unwrap();
    for refused in [
        w.lock("alone")
            .replicas(1, 200 * MS)
            .acquire()
            .await
            .map(drop),
        strict.lock("alone").acquire().await.map(drop),
        strict.semaphore("some", 3).acquire().await.map(drop),
        strict.locks(["c", "d"]).acquire().await.map(drop),
    ] {
        let refused = refused.expect_err("no replica is there");
        assert!(
            refused.to_string().contains("0 of the 1 replicas"),
            "{refused}"
        );
        assert_eq!(refused.kind(), ErrorKind::Unreachable);
    }
    assert!(
        w.lock("alone").inspect().await.unwrap().holder.is_none(),
        "it was given up"
    );
    assert!(
        w.lock("c")
            .try_acquire()
            .await
            .unwrap()
            .acquired()
            .is_some()
    );
    assert!(
        w.lock("alone").acquire().await.is_ok(),
        "without replicas it is granted"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn other_stores_refuse_to_wait_for_replicas() {
    let w = Options::new()
        .replicas(1, 100 * MS)
        .connect("memory:")
        .await
        .unwrap();
    let refused = w.lock("x").acquire().await.expect_err("there are none");
    assert_eq!(refused.kind(), ErrorKind::Unsupported, "{refused}");
    assert!(refused.to_string().contains("memory:"), "{refused}");
    // One server without replicas has none to wait for, and says so in time.
    let server = RedisServer::start().unwrap();
    let w = Options::new()
        .replicas(1, 100 * MS)
        .connect(&server.url())
        .await
        .unwrap();
    let refused = w.lock("x").acquire().await.expect_err("there are none");
    assert!(
        refused.to_string().contains("0 of the 1 replicas"),
        "{refused}"
    );
    let on_disk = Options::new()
        .replicas_on_disk(0, 100 * MS)
        .connect(&server.url())
        .await
        .unwrap();
    let refused = on_disk
        .lock("x")
        .acquire()
        .await
        .expect_err("Redis 7.0 has no WAITAOF");
    assert_eq!(refused.kind(), ErrorKind::Unsupported, "{refused}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_grant_counts_when_disks_have_it() {
    let server = RedisServer::builder().binary(windlass_testkit::Flavor::Valkey);
    let server = server.append_only(true).start().unwrap();
    let url = format!(
        "{}?replicas=0&replicas_on_disk=yes&replicas_timeout=2s",
        server.url()
    );
    let w = windlass::connect(&url).await.unwrap();
    let guard = w.lock("x").acquire().await.unwrap();
    server.restart().unwrap();
    assert!(
        eventually(SOON, || async { guard.renew().await.is_ok() }).await,
        "it was on disk"
    );
}

/// At first only the sentinel that led the failover knows of it, and an old master that comes back at once
/// believes itself a master.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_old_master_that_comes_back_is_not_taken_for_one() {
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
