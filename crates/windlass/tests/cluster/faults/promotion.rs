//! A replica is promoted, and clients use it.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use windlass::{Coordinator, Quota, Ran, RetryPolicy};
use windlass_testkit::conformance::{SOON, wait_for_waiters};
use windlass_testkit::{
    CountingLoad, FencedRegister, RedisCluster, eventually, eventually_blocking,
};

use super::{MS, PROMOTION, RESUMED, blocking, connect, figure};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed_master_is_replaced_under_load() {
    let cluster = Arc::new(RedisCluster::start().unwrap());
    let register = FencedRegister::start().unwrap();
    let w = connect(&cluster).await;
    // All in one slot, so that they are on the master that dies.
    let ran = w
        .once("{count}once")
        .run(|_| async { Ok(b"42".to_vec()) })
        .await;
    assert_eq!(ran.unwrap(), Ran::<String>::First(b"42".to_vec()));
    let hourly = w.limiter("{count}mail", Quota::new(2, Duration::from_secs(3600)));
    assert!(hourly.check("ann").await.unwrap().is_allowed());

    let mut load = CountingLoad::new();
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
    wait_for_waiters(&w, "{count}held", 1).await;
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
    // Names on other masters are not delayed.
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
        "not filled again"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fences_increase_after_a_failover_that_lost_grants() {
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
    // Far ahead of the clock, so that the clock cannot help.
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
    // For the new master's epoch: the next one starts higher, even if all of this is lost again.
    let new = cluster.master_of("stock").unwrap();
    let mark = counter.replace("fence", "reign");
    let mark = new.command(&["GET", &mark]).unwrap();
    let info = new.command(&["CLUSTER", "INFO"]).unwrap();
    let epoch = info
        .lines()
        .find_map(|l| l.strip_prefix("cluster_my_epoch:"));
    assert_eq!(mark.split(' ').nth(1), epoch.map(str::trim));
}

/// A replica that was cut off takes over by command, from a master whose epoch has changed several
/// times since.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fences_increase_over_a_takeover_with_an_old_copy() {
    let cluster = Arc::new(RedisCluster::start().unwrap());
    let acquire = async |w: &Coordinator| {
        let retry = RetryPolicy::tries(20);
        let guard = w.lock("stock").retry(retry).acquire().await.unwrap();
        let fence = guard.fence().get();
        assert!(guard.release().await.unwrap().was_held());
        fence
    };
    let w = connect(&cluster).await;
    let mut highest = acquire(&w).await;
    let master = cluster.master_of("stock").unwrap();
    let counters = master.command(&["KEYS", "windlass:fence:*"]).unwrap();
    let counter = counters.lines().next().unwrap();
    // The copy of a counter that was last raised an hour ago.
    let copy = (highest - 3_600_000_000).to_string();
    master.command(&["SET", counter, &copy]).unwrap();
    let synced = w.lock("stock").replicas(1, 5000 * MS).acquire().await;
    assert!(synced.unwrap().release().await.unwrap().was_held());
    let id = master.command(&["CLUSTER", "MYID"]).unwrap();
    let is_its_replica = |node: &&windlass_testkit::RedisServer| {
        let nodes = node.command(&["CLUSTER", "NODES"]).unwrap();
        nodes
            .lines()
            .any(|l| l.contains("myself,slave") && l.contains(&id))
    };
    let replica = cluster.nodes().iter().find(is_its_replica).unwrap();
    for [setting, value] in [["masteruser", "nobody"], ["masterauth", "wrong"]] {
        let words = ["CONFIG", "SET", setting, value];
        replica.command(&words).unwrap();
    }
    let cut = ["CLIENT", "KILL", "TYPE", "replica"];
    master.command(&cut).unwrap();
    let is_cut = eventually_blocking(SOON, || {
        let info = master.command(&["INFO", "replication"]).unwrap();
        info.contains("connected_slaves:0")
    });
    assert!(is_cut);
    for _ in 0..3 {
        let epoch = || {
            let info = master.command(&["CLUSTER", "INFO"]).unwrap();
            let mut lines = info.lines();
            let own = lines.find_map(|line| line.strip_prefix("cluster_my_epoch:"));
            own.unwrap().trim().parse::<u64>().unwrap()
        };
        let before = epoch();
        // A node takes a new epoch only if another one has a higher epoch than its own. Not the
        // replicas: one with the newest epoch would take over without a new one.
        let bumped = eventually_blocking(SOON, || {
            for node in cluster.nodes() {
                if node.command(&["ROLE"]).unwrap().starts_with("master") {
                    let _ = node.command(&["CLUSTER", "BUMPEPOCH"]);
                }
            }
            epoch() > before
        });
        assert!(bumped);
        let w = connect(&cluster).await;
        let next = acquire(&w).await;
        assert!(next > highest, "{next} after {highest}");
        highest = next;
    }
    // A takeover with an epoch that another node has heard of already would not be accepted.
    let known = eventually_blocking(PROMOTION, || {
        let mut epochs = cluster.nodes().iter().map(master_epochs);
        let first = epochs.next().unwrap();
        let distinct: HashSet<&String> = first.values().collect();
        distinct.len() == first.len() && epochs.all(|other| other == first)
    });
    assert!(known, "the nodes agree on the epochs");
    master.kill().unwrap();
    let taken = eventually_blocking(PROMOTION, || {
        let _ = replica.command(&["CLUSTER", "FAILOVER", "TAKEOVER"]);
        cluster
            .master_of("stock")
            .is_ok_and(|new| new.port() == replica.port())
    });
    assert!(taken, "the replica takes over");
    let next = acquire(&w).await;
    assert!(next > highest, "{next} after {highest}");
}

/// The configuration epoch of each master, as this node knows it.
fn master_epochs(node: &windlass_testkit::RedisServer) -> HashMap<String, String> {
    let nodes = node.command(&["CLUSTER", "NODES"]).unwrap();
    let masters = nodes.lines().filter_map(|line| {
        let fields: Vec<&str> = line.split(' ').collect();
        let is_master = fields.get(2)?.contains("master");
        is_master.then(|| Some((fields[0].to_owned(), (*fields.get(6)?).to_owned())))?
    });
    masters.collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn wake_ups_resume_when_the_subscribed_node_dies() {
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
        .expect("a client listens somewhere");
    // A name on another master, whose state is not in doubt.
    let mut names = (0..100).map(|i| format!("job{i}"));
    let name = names
        .find(|n| cluster.master_of(n).unwrap().port() != node.port())
        .unwrap();
    node.kill().unwrap();
    // Until a replica has its slots, the nodes reject everything; and they take a moment to notice.
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
        wait_for_waiters(holder, &name, 1).await;
        assert!(guard.release().await.unwrap().was_held());
        // A timer would repair it only after a third of the TTL.
        let woken = tokio::time::timeout(SOON, waiting)
            .await
            .expect("woken")
            .unwrap();
        assert!(woken.release().await.unwrap().was_held());
    }
}
