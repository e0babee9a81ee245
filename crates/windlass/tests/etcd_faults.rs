//! What can go wrong between us and an etcd cluster, and within it, and what must not come of it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use tokio::sync::mpsc;
use windlass::{Coordinator, Fence, Options, Order, Released};
use windlass_testkit::conformance::{SOON, has_waiters, is_free};
use windlass_testkit::{Direction, EtcdCluster, EtcdVersion, FaultProxy, eventually};

const MS: Duration = Duration::from_millis(1);

async fn connect(cluster: &EtcdCluster) -> Coordinator {
    windlass::connect(&cluster.url()).await.unwrap()
}

/// A client whose traffic goes through a proxy.
async fn through(cluster: &EtcdCluster, proxy: &FaultProxy, call_timeout: Duration) -> Coordinator {
    let url = cluster.url_of(&proxy.addr().to_string());
    let options = Options::new().call_timeout(call_timeout);
    options.connect(&url).await.unwrap()
}

/// The writes that the leader has been asked for, and the watch events that were sent.
fn events(cluster: &EtcdCluster) -> f64 {
    cluster
        .metric(0, "etcd_debugging_mvcc_events_total")
        .unwrap()
}

/// Takes turns in `tasks` tasks until told to stop; how many turns, after checking that no two held at once,
/// that fences grew, and that what was lost was told.
async fn take_turns(clients: &[Coordinator], stop: &Arc<AtomicBool>) -> u64 {
    let inside = Arc::new(AtomicU64::new(0));
    let highest = Arc::new(AtomicU64::new(0));
    let turns = Arc::new(AtomicU64::new(0));
    let tasks: Vec<_> = clients
        .iter()
        .map(|w| {
            let (inside, highest, turns) = (inside.clone(), highest.clone(), turns.clone());
            let (w, stop) = (w.clone(), Arc::clone(stop));
            tokio::spawn(async move {
                while !stop.load(Ordering::SeqCst) {
                    let lock = w.lock("turn").ttl(2000 * MS).wait(SOON);
                    let Ok(guard) = lock.acquire().await else {
                        continue; // no leader, say
                    };
                    let work = guard.run(async {
                        let others = inside.fetch_add(1, Ordering::SeqCst);
                        assert_eq!(others, 0, "two at once");
                        let fence = guard.fence().get();
                        let before = highest.fetch_max(fence, Ordering::SeqCst);
                        assert!(before < fence, "{fence} after {before}");
                        tokio::time::sleep(20 * MS).await;
                    });
                    let done = work.await;
                    // Counted out before the lock can pass on: on loss, that is now.
                    inside.fetch_sub(1, Ordering::SeqCst);
                    if done.is_ok() {
                        turns.fetch_add(1, Ordering::SeqCst);
                    }
                    let _ = guard.release().await;
                }
            })
        })
        .collect();
    for task in tasks {
        task.await.unwrap();
    }
    turns.load(Ordering::SeqCst)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_leader_is_followed_by_another() {
    let cluster = EtcdCluster::builder().members(3).start().unwrap();
    let mut clients = Vec::new();
    for _ in 0..4 {
        clients.push(connect(&cluster).await);
    }
    let stop = Arc::new(AtomicBool::new(false));
    let turns = tokio::spawn({
        let (clients, stop) = (clients.clone(), Arc::clone(&stop));
        async move { take_turns(&clients, &stop).await }
    });
    for _ in 0..2 {
        tokio::time::sleep(700 * MS).await; // some turns
        let leader = cluster.leader().unwrap();
        cluster.kill(leader).unwrap();
        let since = Instant::now();
        // Somebody gets it again: a fresh client, so that no connection of old helps.
        let w = connect(&cluster).await;
        let guard = eventually(2 * SOON, || async {
            let lock = w.lock("other").ttl(2000 * MS);
            lock.try_acquire()
                .await
                .is_ok_and(|attempt| attempt.acquired().is_some())
        });
        assert!(
            guard.await,
            "no lock {:?} after the leader was killed",
            since.elapsed()
        );
        println!(
            "a lock again {:?} after the leader was killed",
            since.elapsed()
        );
        cluster.restart(leader).unwrap();
    }
    stop.store(true, Ordering::SeqCst);
    let turns = turns.await.unwrap();
    assert!(turns > 0, "nobody had a turn");
    println!("{turns} turns over two killed leaders");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_who_is_cut_off_with_a_minority_loses_before_others_get_it() {
    let cluster = EtcdCluster::builder().members(3).start().unwrap();
    let leader = cluster.leader().unwrap();
    let lonely = (leader + 1) % 3;
    // Reaches one member alone; that one will be all alone.
    let url = cluster.url_of(&cluster.addr(leader).to_string());
    let options = Options::new().call_timeout(500 * MS);
    let holder = options.connect(&url).await.unwrap();
    let guard = holder.lock("stock").ttl(2000 * MS).acquire().await.unwrap();
    let (at, mut told) = mpsc::unbounded_channel();
    let before = guard.fence();
    let losing = tokio::spawn(async move {
        guard.lost().await;
        at.send(Instant::now()).unwrap();
        std::mem::forget(guard);
    });
    let others = cluster.url_of(&format!(
        "{},{}",
        cluster.addr(lonely),
        cluster.addr((leader + 2) % 3)
    ));
    let w = windlass::connect(&others).await.unwrap();
    // Frozen, the leader can neither answer its client nor hinder the others from electing another one.
    cluster.pause(leader).unwrap();
    let patient = w.lock("stock").retry(windlass::RetryPolicy::tries(50));
    let next = tokio::time::timeout(4 * SOON, patient.acquire())
        .await
        .expect("in time")
        .unwrap();
    let granted = Instant::now();
    let lost = told.recv().await.unwrap();
    assert!(lost <= granted, "told {:?} too late", lost - granted);
    assert!(next.fence() > before);
    // The old leader wakes up, and believes for a moment that it leads: it may not renew what is gone.
    cluster.resume(leader).unwrap();
    tokio::time::sleep(500 * MS).await;
    assert!(next.is_held());
    assert!(next.release().await.unwrap().was_held());
    losing.await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_hears_nothing_loses_before_its_lease_ends() {
    let cluster = EtcdCluster::start().unwrap();
    let proxy = FaultProxy::start(cluster.addr(0)).unwrap();
    let (a, b) = (
        through(&cluster, &proxy, 500 * MS).await,
        connect(&cluster).await,
    );
    let guard = a.lock("stock").ttl(1500 * MS).acquire().await.unwrap();
    let other = a.lock("other").ttl(1500 * MS).acquire().await.unwrap();
    let waiting = tokio::spawn(async move {
        let next = b.lock("stock").acquire().await.unwrap();
        (Instant::now(), next)
    });
    proxy.blackhole(Direction::Both);
    proxy.refuse(true);
    tokio::time::timeout(SOON, guard.lost())
        .await
        .expect("told");
    let lost = Instant::now();
    tokio::time::timeout(SOON, other.lost())
        .await
        .expect("all on one lease are lost with it");
    let (granted, next) = tokio::time::timeout(2 * SOON, waiting)
        .await
        .unwrap()
        .unwrap();
    assert!(lost <= granted, "told {:?} too late", lost - granted);
    proxy.refuse(false);
    proxy.heal();
    // Back again: what it held is gone, and it can neither renew nor disturb.
    let gone = eventually(SOON, || async { a.lock("stock").inspect().await.is_ok() });
    assert!(gone.await);
    assert_eq!(guard.release().await.unwrap(), Released::WasGone);
    assert!(next.is_held());
    next.renew().await.unwrap();
    assert!(next.release().await.unwrap().was_held());
    drop(other);
    let again = a.lock("stock").ttl(1500 * MS).acquire().await.unwrap();
    assert!(again.release().await.unwrap().was_held());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lease_that_was_revoked_is_told_at_once() {
    let cluster = EtcdCluster::start().unwrap();
    let w = connect(&cluster).await;
    let (a, b) = (
        w.lock("a").ttl(20_000 * MS).acquire().await.unwrap(),
        w.lock("b").ttl(20_000 * MS).acquire().await.unwrap(),
    );
    let leases = cluster.ctl(&["lease", "list"]).unwrap();
    let lease = leases.lines().last().unwrap().trim().to_owned();
    cluster.ctl(&["lease", "revoke", &lease]).unwrap();
    // One of them finds out, and so does the other: not at its own next renewal, 6 s away.
    assert!(a.renew().await.is_err());
    assert!(!a.is_held());
    tokio::time::timeout(2000 * MS, b.lost())
        .await
        .expect("told of the same lease");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_dead_waiter_is_never_granted() {
    let cluster = EtcdCluster::start().unwrap();
    let (a, b) = (connect(&cluster).await, connect(&cluster).await);
    let holder = a.lock("stock").acquire().await.unwrap();
    let waiting = tokio::spawn(async move {
        let guard = b.lock("stock").owner("waiter").acquire().await.unwrap();
        (guard.fence(), guard)
    });
    has_waiters(&a, "stock", 1).await;
    let place = cluster
        .ctl(&["get", "--prefix", "stock/lock:waiter", "-w", "fields"])
        .unwrap();
    assert!(place.contains("CreateRevision"), "{place}");
    // Its key vanishes while it waits, as with an expired lease: it must not take an empty place for its own.
    cluster.ctl(&["del", "stock/lock:waiter"]).unwrap();
    let third = a.lock("stock").acquire_within(50 * MS).await.unwrap();
    assert!(third.is_busy());
    assert!(holder.release().await.unwrap().was_held());
    let (fence, guard) = tokio::time::timeout(SOON, waiting)
        .await
        .expect("lined up again")
        .unwrap();
    let holder = a
        .lock("stock")
        .inspect()
        .await
        .unwrap()
        .holder
        .expect("the key is there");
    assert_eq!(holder.owner, "waiter");
    assert_eq!(holder.fence, Some(fence));
    assert!(guard.release().await.unwrap().was_held());
    is_free(&a, "stock").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn compaction_while_cut_off_costs_no_wakeup() {
    let cluster = EtcdCluster::start().unwrap();
    let proxy = FaultProxy::start(cluster.addr(0)).unwrap();
    let (a, b) = (
        connect(&cluster).await,
        through(&cluster, &proxy, 1000 * MS).await,
    );
    let holder = a.lock("stock").acquire().await.unwrap();
    let waiting =
        tokio::spawn(async move { b.lock("stock").ttl(60_000 * MS).acquire().await.unwrap() });
    has_waiters(&a, "stock", 1).await;
    tokio::time::sleep(100 * MS).await; // let it watch
    proxy.refuse(true);
    proxy.reset_all();
    assert!(holder.release().await.unwrap().was_held());
    for n in 0..5 {
        cluster.ctl(&["put", "noise", &n.to_string()]).unwrap();
    }
    let status = cluster.ctl(&["get", "noise", "-w", "fields"]).unwrap();
    let revision = status
        .lines()
        .find_map(|line| line.strip_prefix("\"Revision\" : "))
        .unwrap();
    cluster.ctl(&["compact", revision]).unwrap();
    proxy.refuse(false);
    proxy.heal();
    // What it waited for is not in the history any more. Its next heartbeat would be 20 s away.
    let guard = tokio::time::timeout(2 * SOON, waiting)
        .await
        .expect("looked by itself")
        .unwrap();
    assert!(guard.is_held());
    assert!(guard.release().await.unwrap().was_held());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn waiters_keep_their_places_over_a_restart() {
    let cluster = EtcdCluster::builder()
        .version(EtcdVersion::V3_5)
        .start()
        .unwrap();
    let w = connect(&cluster).await;
    let watcher = w.clone();
    let holder = w.lock("stock").ttl(20_000 * MS).acquire().await.unwrap();
    let (served, mut order) = mpsc::unbounded_channel();
    for i in 0..5 {
        let (w, served) = (w.clone(), served.clone());
        tokio::spawn(async move {
            let guard = w.lock("stock").ttl(20_000 * MS).acquire().await.unwrap();
            served.send(i).unwrap();
            tokio::time::sleep(5 * MS).await;
            while guard.renew().await.is_err() && guard.is_held() {}
            let _ = guard.release().await;
        });
        has_waiters(&watcher, "stock", i + 1).await;
    }
    cluster.kill(0).unwrap();
    tokio::time::sleep(300 * MS).await;
    assert!(holder.is_held(), "its lease lives on");
    cluster.restart(0).unwrap();
    let released = eventually(SOON, || async { holder.renew().await.is_ok() });
    assert!(released.await);
    assert!(holder.release().await.unwrap().was_held());
    for i in 0..5 {
        let who = tokio::time::timeout(2 * SOON, order.recv())
            .await
            .expect("served")
            .unwrap();
        assert_eq!(who, i, "first come, first served");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_crowd_costs_one_event_for_each_hand_over() {
    const CROWD: u64 = 200;
    let cluster = EtcdCluster::start().unwrap();
    let (a, b) = (connect(&cluster).await, connect(&cluster).await);
    let holder = a.lock("stock").ttl(120_000 * MS).acquire().await.unwrap();
    let (served, mut order) = mpsc::unbounded_channel();
    for i in 0..CROWD {
        let w = if i % 2 == 0 { a.clone() } else { b.clone() };
        let served = served.clone();
        tokio::spawn(async move {
            let guard = w.lock("stock").ttl(120_000 * MS).acquire().await.unwrap();
            served.send(i).unwrap();
            let _ = guard.release().await.unwrap();
        });
        if i % 20 == 19 {
            has_waiters(&a, "stock", i + 1).await;
        }
    }
    has_waiters(&a, "stock", CROWD).await;
    tokio::time::sleep(200 * MS).await; // let the last ones watch
    let sent = "etcd_network_client_grpc_sent_bytes_total";
    let (before, bytes) = (events(&cluster), cluster.metric(0, sent).unwrap());
    assert!(holder.release().await.unwrap().was_held());
    for _ in 0..CROWD {
        tokio::time::timeout(4 * SOON, order.recv())
            .await
            .expect("served")
            .unwrap();
    }
    let (events, bytes) = (
        events(&cluster) - before,
        cluster.metric(0, sent).unwrap() - bytes,
    );
    println!(
        "{CROWD} hand-overs: {events} watch events, {} bytes each",
        bytes / CROWD as f64
    );
    // One for each who leaves, and few more for what came in between.
    assert!(
        events <= (CROWD + CROWD / 4) as f64,
        "{events} events for {CROWD} hand-overs"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_uncontended_lock_costs_one_call_each_way() {
    let cluster = EtcdCluster::start().unwrap();
    let w = connect(&cluster).await;
    drop(w.lock("warm").ttl(60_000 * MS).acquire().await.unwrap());
    is_free(&w, "warm").await;
    tokio::time::sleep(100 * MS).await;
    const CYCLES: u32 = 50;
    let calls = |kind: &str| {
        let name = format!(
            "grpc_server_started_total{{grpc_method=\"{kind}\",grpc_service=\"etcdserverpb.KV\",grpc_type=\"unary\"}}"
        );
        cluster.metric(0, &name).unwrap_or(0.0)
    };
    let before = calls("Txn") + calls("Range") + calls("Put") + calls("DeleteRange");
    for _ in 0..CYCLES {
        let guard = w.lock("stock").ttl(60_000 * MS).acquire().await.unwrap();
        assert!(guard.release().await.unwrap().was_held());
    }
    let made = calls("Txn") + calls("Range") + calls("Put") + calls("DeleteRange") - before;
    println!("{CYCLES} cycles: {made} calls");
    // One to acquire and one to release; the shared lease is seen to once in a while.
    assert!(
        made <= f64::from(2 * CYCLES + CYCLES / 5),
        "{made} calls for {CYCLES} cycles"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn compaction_leaves_the_one_ahead_watched() {
    let cluster = EtcdCluster::start().unwrap();
    let proxy = FaultProxy::start(cluster.addr(0)).unwrap();
    let (a, b) = (
        connect(&cluster).await,
        through(&cluster, &proxy, 1000 * MS).await,
    );
    let holder = a.lock("stock").acquire().await.unwrap();
    let waiting =
        tokio::spawn(async move { b.lock("stock").ttl(60_000 * MS).acquire().await.unwrap() });
    has_waiters(&a, "stock", 1).await;
    tokio::time::sleep(100 * MS).await; // let it watch
    proxy.refuse(true);
    proxy.reset_all();
    for n in 0..5 {
        cluster.ctl(&["put", "noise", &n.to_string()]).unwrap();
    }
    let status = cluster.ctl(&["get", "noise", "-w", "fields"]).unwrap();
    let revision = status
        .lines()
        .find_map(|line| line.strip_prefix("\"Revision\" : "))
        .unwrap();
    cluster.ctl(&["compact", revision]).unwrap();
    proxy.refuse(false);
    proxy.heal();
    tokio::time::sleep(3000 * MS).await; // let it hear that its watch is over
    assert!(holder.release().await.unwrap().was_held());
    // Its next heartbeat would be 20 s away.
    let guard = tokio::time::timeout(SOON, waiting)
        .await
        .expect("still watches the one ahead")
        .unwrap();
    assert!(guard.release().await.unwrap().was_held());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_who_barges_in_does_not_crowd_out_one_who_was_let_in() {
    let cluster = EtcdCluster::start().unwrap();
    let proxy = FaultProxy::start(cluster.addr(0)).unwrap();
    let (a, b) = (connect(&cluster).await, connect(&cluster).await);
    let slow = through(&cluster, &proxy, SOON).await;
    let barging = slow.semaphore("jobs", 2).order(Order::Barging);
    let warm = barging.acquire().await.unwrap(); // so that it has all its leases
    assert!(warm.release().await.unwrap().was_held());
    for round in 0..3 {
        let held = a.semaphore("jobs", 2).acquire().await.unwrap();
        let waiting = {
            let heavy = b.semaphore("jobs", 2);
            tokio::spawn(async move { heavy.acquire_many(2).await.unwrap() })
        };
        let lined_up = || async { a.semaphore("jobs", 2).inspect(0).await.unwrap().waiters == 1 };
        assert!(eventually(SOON, lined_up).await);
        // It sees room for one at once, and says so 400 ms later; in between, two are let in.
        proxy.delay(Direction::ToClient, 400 * MS);
        let barges = {
            let barging = barging.clone();
            tokio::spawn(async move { barging.try_acquire().await.unwrap() })
        };
        tokio::time::sleep(200 * MS).await;
        assert!(held.release().await.unwrap().was_held());
        let heavy = tokio::time::timeout(SOON, waiting).await.unwrap().unwrap();
        let barged = barges.await.unwrap();
        proxy.heal();
        assert!(heavy.is_held());
        assert!(barged.is_busy(), "three in a room for two, round {round}");
        assert!(heavy.release().await.unwrap().was_held());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_key_that_was_made_anew_is_not_what_was_held() {
    let cluster = EtcdCluster::start().unwrap();
    let (a, b) = (connect(&cluster).await, connect(&cluster).await);
    let first = a.lock("stock").ttl(20_000 * MS).acquire().await.unwrap();
    let key = cluster
        .ctl(&["get", "--prefix", "--keys-only", "stock/"])
        .unwrap();
    let key = key.trim();
    let value = cluster.ctl(&["get", "--print-value-only", key]).unwrap();
    let leases = cluster.ctl(&["lease", "list"]).unwrap();
    let lease = leases.lines().last().unwrap().trim().to_owned();
    cluster.ctl(&["del", key]).unwrap();
    let second = b.lock("stock").ttl(20_000 * MS).acquire().await.unwrap();
    let on = format!("--lease={lease}");
    cluster.ctl(&["put", &on, key, value.trim()]).unwrap();
    let renewed = first.renew().await;
    assert!(second.is_held());
    assert!(
        renewed.is_err() && !first.is_held(),
        "two hold: {renewed:?}"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_memory_that_was_revoked_is_replaced() {
    let cluster = EtcdCluster::start().unwrap();
    let w = connect(&cluster).await;
    let gate = w.gate("stock");
    assert!(gate.admit(Fence::new(1)).await.unwrap().is_admitted());
    let leases = cluster.ctl(&["lease", "list"]).unwrap();
    let lease = leases.lines().last().unwrap().trim().to_owned();
    cluster.ctl(&["lease", "revoke", &lease]).unwrap();
    let works = || async { gate.admit(Fence::new(2)).await.is_ok() };
    assert!(eventually(SOON, works).await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn watches_go_on_after_nobody_was_left_to_watch_for() {
    let cluster = EtcdCluster::start().unwrap();
    let proxy = FaultProxy::start(cluster.addr(0)).unwrap();
    let (a, b) = (
        connect(&cluster).await,
        through(&cluster, &proxy, 2000 * MS).await,
    );
    let wait = |w: &Coordinator| {
        let lock = w.lock("stock").ttl(60_000 * MS);
        tokio::spawn(async move { lock.acquire().await })
    };
    for _ in 0..5 {
        let holder = a.lock("stock").acquire().await.unwrap();
        let waiting = wait(&b);
        has_waiters(&a, "stock", 1).await;
        tokio::time::sleep(50 * MS).await; // let it watch
        // The only watch ends between two connections.
        proxy.reset_all();
        tokio::time::sleep(2 * MS).await;
        waiting.abort();
        has_waiters(&a, "stock", 0).await;
        let waiting = wait(&b);
        has_waiters(&a, "stock", 1).await;
        assert!(holder.release().await.unwrap().was_held());
        // Its next heartbeat would be 20 s away.
        let guard = tokio::time::timeout(SOON, waiting)
            .await
            .expect("woken")
            .unwrap()
            .unwrap();
        assert!(guard.release().await.unwrap().was_held());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_request_that_comes_late_leaves_nothing_even_if_nobody_renews() {
    let cluster = EtcdCluster::start().unwrap();
    let proxy = FaultProxy::start(cluster.addr(0)).unwrap();
    let b = connect(&cluster).await;
    let hosts = format!("{},{}", proxy.addr(), cluster.addr(0));
    let options = Options::new().call_timeout(500 * MS);
    let a = loop {
        let a = options.clone().connect(&cluster.url_of(&hosts)).await;
        let a = a.unwrap();
        if proxy.open_connections() > 0 {
            break a; // it begins with either of them
        }
    };
    let short = |name: &str| a.lock(name).ttl(3000 * MS);
    let warm = short("other").acquire().await.unwrap(); // so that it has its lease
    assert!(warm.release().await.unwrap().was_held());
    let leases = cluster.ctl(&["lease", "list"]).unwrap();
    let lease = leases.lines().last().unwrap().trim().to_owned();
    proxy.hold(Direction::ToServer);
    let asked = {
        let lock = short("stock");
        tokio::spawn(async move { lock.acquire().await.map(drop) })
    };
    tokio::time::sleep(200 * MS).await; // let it ask
    asked.abort();
    tokio::time::sleep(2000 * MS).await; // it is withdrawn the other way
    // The request arrives now.
    let on = format!("--lease={lease}");
    cluster.ctl(&["put", &on, "stock/lock:late", "{}"]).unwrap();
    let busy = {
        let lock = short("other");
        tokio::spawn(async move {
            loop {
                let guard = lock.acquire().await.unwrap();
                let _ = guard.release().await;
                tokio::time::sleep(20 * MS).await;
            }
        })
    };
    is_free(&b, "stock").await;
    assert!(!busy.is_finished());
    busy.abort();
}
