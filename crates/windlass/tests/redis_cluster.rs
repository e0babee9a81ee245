//! A Redis Cluster whose masters die and whose slots move, and what must not come of it.
//!
//! `WINDLASS_FIGURES=1 cargo test -p windlass --test redis_cluster -- --nocapture` prints what was measured.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use windlass::{Coordinator, Options, Quota, Ran, RetryPolicy};
use windlass_testkit::conformance::{SOON, has_waiters};
use windlass_testkit::{Counting, FencedRegister, RedisCluster, eventually, eventually_blocking};

const MS: Duration = Duration::from_millis(1);
const PROMOTION: Duration = Duration::from_secs(60);
const RESUMED: Duration = Duration::from_secs(10);

async fn connect(cluster: &RedisCluster) -> Coordinator {
    let options = Options::new().call_timeout(500 * MS);
    options.connect(&cluster.url()).await.unwrap()
}

fn figure(what: &str, value: impl std::fmt::Debug) {
    if std::env::var_os("WINDLASS_FIGURES").is_some() {
        eprintln!("{what}: {value:?}");
    }
}

fn blocking<T: Send + 'static>(
    cluster: &Arc<RedisCluster>,
    what: impl FnOnce(&RedisCluster) -> T + Send + 'static,
) -> tokio::task::JoinHandle<T> {
    let cluster = Arc::clone(cluster);
    tokio::task::spawn_blocking(move || what(&cluster))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_master_is_followed_under_load() {
    let cluster = Arc::new(RedisCluster::start().unwrap());
    let register = FencedRegister::start().unwrap();
    let w = connect(&cluster).await;
    // All of one slot, so that they are on the master that dies.
    let ran = w
        .once("{count}once")
        .run(|_| async { Ok(b"42".to_vec()) })
        .await;
    assert_eq!(ran.unwrap(), Ran::<String>::First(b"42".to_vec()));
    let hourly = w.limiter("{count}mail", Quota::new(2, Duration::from_secs(3600)));
    assert!(hourly.check("ann").await.unwrap().is_allowed());

    let mut load = Counting::new();
    for _ in 0..4 {
        load.join(connect(&cluster).await, "count", register.addr());
    }
    let held = w
        .lock("{count}held")
        .ttl(20_000 * MS)
        .acquire()
        .await
        .unwrap();
    let second = connect(&cluster).await;
    let waiting = tokio::spawn(async move { second.lock("{count}held").acquire().await });
    has_waiters(&w, "{count}held", 1).await;
    let master = cluster.master_of("count").unwrap();
    let elsewhere: Vec<String> = (0..20).map(|i| format!("n{i}")).collect();
    let spared = |name: &String| cluster.master_of(name).unwrap().port() != master.port();
    let elsewhere: Vec<String> = elsewhere.into_iter().filter(spared).take(3).collect();
    let busy = eventually(SOON, || async { load.counted() > 20 }).await;
    assert!(busy, "the load works");
    tokio::time::sleep(300 * MS).await; // the replica has the waiter

    let old = master.port();
    master.kill().unwrap();
    let killed = Instant::now();
    // Those on other masters are not held up.
    for name in &elsewhere {
        let begun = Instant::now();
        let guard = w.lock(name).acquire().await.unwrap();
        assert!(guard.release().await.unwrap().was_held());
        assert!(begun.elapsed() < SOON);
    }
    let promoted = blocking(&cluster, move |c| {
        c.await_promotion("count", old, PROMOTION)
    });
    let promoted = promoted.await.unwrap().unwrap();
    figure("promotion after the kill", promoted);
    let after = Instant::now();
    let before = load.counted();
    let limiter = w.limiter("{count}flow", Quota::per_second(1_000));
    let resumed = eventually(RESUMED, || async {
        load.counted() > before + 20
            && limiter.check("x").await.is_ok()
            && w.lock("{count}fresh").acquire().await.is_ok()
    });
    assert!(
        resumed.await,
        "works again within {RESUMED:?} of the promotion"
    );
    figure("service resumed after the promotion", after.elapsed());
    figure("without service in all", killed.elapsed());
    assert!(
        held.is_held(),
        "renewed on the new master, as it was replicated"
    );
    assert!(held.release().await.unwrap().was_held());
    let next = tokio::time::timeout(SOON, waiting)
        .await
        .expect("still in line");
    drop(next.unwrap().unwrap());
    load.finish().await;
    figure("writes accepted, stale ones refused", register.writes());
    assert_eq!(register.lost_updates(), 0, "no fenced write is lost");
    let again = w
        .once("{count}once")
        .run(|_| async { Ok(b"43".to_vec()) })
        .await;
    assert_eq!(again.unwrap(), Ran::<String>::Again(b"42".to_vec()));
    assert!(hourly.check("ann").await.unwrap().is_allowed());
    assert!(
        !hourly.check("ann").await.unwrap().is_allowed(),
        "not filled anew"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fences_grow_over_a_failover_that_lost_grants() {
    let cluster = Arc::new(RedisCluster::start().unwrap());
    let w = connect(&cluster).await;
    let master = cluster.master_of("stock").unwrap();
    let acquire = async |name: &str| {
        let guard = w
            .lock(name)
            .retry(RetryPolicy::tries(20))
            .acquire()
            .await
            .unwrap();
        let fence = guard.fence().get();
        assert!(guard.release().await.unwrap().was_held());
        fence
    };
    acquire("stock").await;
    // Far ahead of the clock, which so is of no help.
    let counters = master.command(&["KEYS", "windlass:fence:*"]).unwrap();
    let counter = counters.lines().next().unwrap();
    master.command(&["INCRBY", counter, "3600000000"]).unwrap();
    let synced = w
        .lock("stock")
        .replicas(1, 5000 * MS)
        .acquire()
        .await
        .unwrap();
    assert!(synced.release().await.unwrap().was_held());
    let id = master.command(&["CLUSTER", "MYID"]).unwrap();
    for node in cluster.nodes() {
        if node
            .command(&["CLUSTER", "NODES"])
            .unwrap()
            .lines()
            .any(|l| l.contains("myself,slave") && l.contains(&id))
        {
            node.command(&["CONFIG", "SET", "masteruser", "nobody"])
                .unwrap();
            node.command(&["CONFIG", "SET", "masterauth", "wrong"])
                .unwrap();
        }
    }
    master
        .command(&["CLIENT", "KILL", "TYPE", "replica"])
        .unwrap();
    let cut = eventually_blocking(SOON, || {
        master
            .command(&["INFO", "replication"])
            .unwrap()
            .contains("connected_slaves:0")
    });
    assert!(cut);
    let mut highest = 0;
    for _ in 0..200 {
        highest = highest.max(acquire("stock").await);
    }
    let old = master.port();
    master.kill().unwrap();
    let promoted = blocking(&cluster, move |c| {
        c.await_promotion("stock", old, PROMOTION)
    });
    promoted.await.unwrap().unwrap();
    let next = acquire("stock").await;
    assert!(next > highest, "{next} after {highest}");
    assert!(acquire("stock").await < next + 1000, "raised once");
    // For the number of the new master: the next one starts higher, even if all of this is lost again.
    let new = cluster.master_of("stock").unwrap();
    let mark = counter.replace("fence", "reign");
    let mark = new.command(&["GET", &mark]).unwrap();
    let info = new.command(&["CLUSTER", "INFO"]).unwrap();
    let epoch = info
        .lines()
        .find_map(|l| l.strip_prefix("cluster_my_epoch:"));
    assert_eq!(mark.split(' ').nth(1), epoch.map(str::trim));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_slot_moves_while_a_lock_in_it_is_held_and_waited_for() {
    let cluster = Arc::new(RedisCluster::start().unwrap());
    let w = connect(&cluster).await;
    let held = w
        .lock("stock")
        .ttl(6000 * MS)
        .note("first")
        .acquire()
        .await
        .unwrap();
    let lost = held.lost_token();
    let permit = w
        .semaphore("{stock}jobs", 1)
        .ttl(6000 * MS)
        .acquire()
        .await
        .unwrap();
    let second = connect(&cluster).await;
    let waiting = tokio::spawn(async move { second.lock("stock").acquire().await });
    has_waiters(&w, "stock", 1).await;
    assert_eq!(w.counter("{stock}n").add(1).await.unwrap().value, 1);
    let before = cluster.master_of("stock").unwrap().port();

    let stop = Arc::new(AtomicBool::new(false));
    // Longer than the slot is on its way: nobody has to hear of it.
    let patient = Options::new().call_timeout(Duration::from_secs(5));
    let patient = patient.connect(&cluster.url()).await.unwrap();
    let others = tokio::spawn({
        let (w, stop) = (patient, Arc::clone(&stop));
        async move {
            let (mut done, mut failed) = (0u32, Vec::new());
            while !stop.load(Ordering::Relaxed) {
                match w.counter("{stock}n").add(1).await {
                    Ok(_) => done += 1,
                    Err(e) => failed.push(e),
                }
                let other = w.lock("{stock}other").acquire().await;
                match other {
                    Ok(guard) => drop(guard.release().await),
                    Err(e) => failed.push(e),
                }
            }
            (done, failed)
        }
    });
    tokio::time::sleep(100 * MS).await;
    // Some keys are here and some there for a while, as with a slot of many keys.
    let moved = blocking(&cluster, |cluster| {
        let moving = cluster.begin_move("stock").unwrap();
        moving.move_keys(1).unwrap();
        std::thread::sleep(100 * MS);
        moving.move_keys(2).unwrap();
        std::thread::sleep(100 * MS);
        moving.finish().unwrap();
    });
    moved.await.unwrap();
    assert_ne!(
        cluster.master_of("stock").unwrap().port(),
        before,
        "it moved"
    );
    tokio::time::sleep(2500 * MS).await; // at least one renewal on the new master
    stop.store(true, Ordering::Relaxed);
    let (done, failed) = others.await.unwrap();
    figure(
        "calls during the move, and those that failed",
        (done, failed.len()),
    );
    assert!(done > 0);
    assert!(failed.is_empty(), "{failed:?}");
    assert_eq!(
        w.counter("{stock}n").get().await.unwrap(),
        i64::from(done) + 1,
        "each once"
    );
    assert!(held.is_held() && !lost.is_cancelled() && permit.is_held());
    let fence = held.fence();
    assert!(held.release().await.unwrap().was_held());
    let next = tokio::time::timeout(SOON, waiting)
        .await
        .expect("woken")
        .unwrap()
        .unwrap();
    assert!(next.fence() > fence);
    assert!(next.release().await.unwrap().was_held());
    assert!(w.lock("stock").acquire().await.unwrap().fence() > fence);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn replicas_are_asked_about_where_the_slot_is() {
    let cluster = Arc::new(RedisCluster::start().unwrap());
    let patient = Options::new().call_timeout(Duration::from_secs(5));
    let w = patient.connect(&cluster.url()).await.unwrap();
    let held = w.lock("stock").acquire().await.unwrap();
    let patient = Options::new().call_timeout(Duration::from_secs(5));
    let second = patient.connect(&cluster.url()).await.unwrap();
    let waiting = tokio::spawn(async move {
        let lock = second.lock("stock").replicas(1, 10 * SOON);
        lock.acquire().await
    });
    has_waiters(&w, "stock", 1).await;
    let moved = blocking(&cluster, |cluster| {
        cluster.begin_move("stock").unwrap().finish().unwrap();
    });
    moved.await.unwrap();
    // Who waits hears that it is granted, and has not heard yet where.
    assert!(held.release().await.unwrap().was_held());
    let next = tokio::time::timeout(6 * SOON, waiting)
        .await
        .expect("woken");
    assert!(next.unwrap().unwrap().is_held());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn wake_ups_go_on_when_the_node_that_we_listen_at_dies() {
    let cluster = Arc::new(RedisCluster::start().unwrap());
    let (a, b) = (connect(&cluster).await, connect(&cluster).await);
    let listens = |node: &&windlass_testkit::RedisServer| {
        let clients = node
            .command(&["CLIENT", "LIST", "TYPE", "pubsub"])
            .unwrap_or_default();
        !clients.trim().is_empty()
    };
    let node = cluster
        .nodes()
        .iter()
        .find(listens)
        .expect("somebody listens somewhere");
    // A name whose master is another one, and which so is not in doubt.
    let mut names = (0..100).map(|i| format!("job{i}"));
    let name = names
        .find(|n| cluster.master_of(n).unwrap().port() != node.port())
        .unwrap();
    node.kill().unwrap();
    // Until a replica has its slots, the nodes refuse everything; and noticing takes them a moment.
    tokio::time::sleep(1500 * MS).await;
    let healthy = blocking(&cluster, |cluster| cluster.await_health(PROMOTION));
    healthy.await.unwrap().unwrap();
    let long = Duration::from_secs(120);
    for (holder, waiter) in [(&a, &b), (&b, &a)] {
        let guard = holder.lock(&name).ttl(long).acquire().await.unwrap();
        let waiting = tokio::spawn({
            let (waiter, name) = (waiter.clone(), name.clone());
            async move { waiter.lock(&name).ttl(long).acquire().await.unwrap() }
        });
        has_waiters(holder, &name, 1).await;
        assert!(guard.release().await.unwrap().was_held());
        // A timer would repair it after a third of the ttl: much later.
        let woken = tokio::time::timeout(SOON, waiting)
            .await
            .expect("woken")
            .unwrap();
        assert!(woken.release().await.unwrap().was_held());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn all_that_is_held_is_found_wherever_it_is() {
    let cluster = RedisCluster::start().unwrap();
    let w = connect(&cluster).await;
    let mut guards = Vec::new();
    let mut ports = std::collections::BTreeSet::new();
    for i in 0..30 {
        let name = format!("job/{i}");
        ports.insert(cluster.master_of(&name).unwrap().port());
        guards.push(w.lock(&name).note("x").acquire().await.unwrap());
    }
    assert_eq!(ports.len(), 3, "on all masters");
    assert_eq!(w.list_locks("job/*").await.unwrap().len(), 30);
    // Several at once, wherever they are; and in one step where they share a slot.
    let spread = w
        .locks((0..20).map(|i| format!("x{i}")))
        .acquire()
        .await
        .unwrap();
    assert_eq!(spread.names().count(), 20);
    let together = w.locks(["{y}1", "{y}2"]).try_acquire().await.unwrap();
    assert!(together.acquired().is_some());
    // Every key ends by itself, but for the counters, of which there is one for each slot at most.
    for node in cluster.nodes() {
        if !node.command(&["ROLE"]).unwrap().starts_with("master") {
            continue;
        }
        for key in node
            .command(&["KEYS", "*"])
            .unwrap()
            .lines()
            .filter(|k| !k.is_empty())
        {
            let endless = key.starts_with("windlass:fence:") || key.starts_with("windlass:reign:");
            let ttl: i64 = node.command(&["PTTL", key]).unwrap().parse().unwrap();
            assert!(endless || ttl > 0, "{key} has {ttl}");
        }
    }
}
