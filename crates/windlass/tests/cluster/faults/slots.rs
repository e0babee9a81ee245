//! Names are where their slots are, also while those move.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use windlass::{ErrorKind, Options, RetryPolicy};
use windlass_testkit::conformance::{SOON, wait_for_waiters};
use windlass_testkit::{RedisCluster, eventually};

use super::{MS, RESUMED, blocking, connect, figure};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slot_moves_while_its_lock_is_held_and_awaited() {
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
    wait_for_waiters(&w, "stock", 1).await;
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
async fn wait_for_replicas_asks_the_master_of_the_slot() {
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
    wait_for_waiters(&w, "stock", 1).await;
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
async fn survey_finds_claims_on_all_nodes() {
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

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn queue_keeps_its_order_while_its_slot_moves() {
    const CROWD: u64 = 50;
    let cluster = Arc::new(RedisCluster::start().unwrap());
    let patient = || Options::new().call_timeout(Duration::from_secs(5));
    let w = patient().connect(&cluster.url()).await.unwrap();
    let ttl = Duration::from_secs(20);
    let held = w.lock("stock").ttl(ttl).acquire().await.unwrap();
    let mut last = held.fence();
    let second = patient().connect(&cluster.url()).await.unwrap();
    let (served, mut turns) = tokio::sync::mpsc::unbounded_channel();
    let mut crowd = Vec::new();
    for number in 0..CROWD {
        let (w, served) = ([&w, &second][(number % 2) as usize].clone(), served.clone());
        crowd.push(tokio::spawn(async move {
            let guard = w.lock("stock").ttl(ttl).acquire().await.unwrap();
            served.send((number, guard.fence())).unwrap();
            assert!(guard.release().await.unwrap().was_held());
        }));
        // One after the other, so that their order is known.
        wait_for_waiters(&second, "stock", number + 1).await;
    }
    // The records of some who are further behind go ahead: whoever is before them cannot hand over to them until
    // all is there.
    let (have_gone, gone) = tokio::sync::oneshot::channel();
    let (on_its_way, go_on) = tokio::sync::oneshot::channel();
    let moved = blocking(&cluster, |cluster| {
        let from = cluster.master_of("stock").unwrap();
        let line = ["ZRANGE", "windlass:lock:line:{stock}", "10", "19"];
        let behind = from.command(&line).unwrap();
        let moving = cluster.begin_move("stock").unwrap();
        for owner in behind.lines() {
            let record = format!("windlass:lock:claim:{{stock}} {owner}");
            moving.move_key(&record).unwrap();
        }
        have_gone.send(()).unwrap();
        go_on.blocking_recv().unwrap();
        std::thread::sleep(100 * MS);
        moving.finish().unwrap();
    });
    gone.await.unwrap();
    assert!(held.release().await.unwrap().was_held());
    let mut on_its_way = Some(on_its_way);
    for expected in 0..CROWD {
        if expected == 10 {
            on_its_way.take().unwrap().send(()).unwrap();
        }
        let turn = tokio::time::timeout(12 * SOON, turns.recv()).await;
        let (number, fence) = turn.expect("everybody is served").unwrap();
        assert_eq!(number, expected, "in the order in which they came");
        assert!(fence > last, "{fence} after {last}");
        last = fence;
    }
    for one in crowd {
        one.await.unwrap();
    }
    moved.await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn redirection_loop_is_an_error() {
    let cluster = RedisCluster::start().unwrap();
    let w = connect(&cluster).await;
    drop(w.lock("stock").acquire().await.unwrap());
    let slot = cluster.slot("stock").unwrap().to_string();
    let owner = cluster.master_of("stock").unwrap();
    let masters = cluster.nodes()[..3].iter();
    let other = masters.into_iter().find(|n| n.port() != owner.port());
    let other = other.unwrap();
    let id = other.command(&["CLUSTER", "MYID"]).unwrap();
    // Each believes that the other one has it.
    owner.command(&["DEL", "stock"]).unwrap();
    for key in owner
        .command(&["CLUSTER", "GETKEYSINSLOT", &slot, "100"])
        .unwrap()
        .lines()
    {
        owner.command(&["DEL", key]).unwrap();
    }
    let settle = ["CLUSTER", "SETSLOT", &slot, "NODE", &id];
    owner.command(&settle).unwrap();
    let lock = w.lock("stock").retry(RetryPolicy::none());
    let refused = tokio::time::timeout(4 * SOON, lock.acquire()).await;
    let refused = refused.expect("in time").expect_err("nobody has it");
    assert_eq!(refused.kind(), ErrorKind::Unreachable, "{refused}");
    // Others are not concerned; and as soon as they agree, nor is this one.
    let names = (0..100).map(|i| format!("n{i}"));
    let spared = names
        .into_iter()
        .find(|n| cluster.slot(n).unwrap().to_string() != slot);
    drop(w.lock(&spared.unwrap()).acquire().await.unwrap());
    for node in cluster.nodes() {
        let _ = node.command(&settle);
    }
    let works = eventually(RESUMED, || async {
        w.lock("stock").acquire().await.is_ok()
    });
    assert!(works.await);
}
