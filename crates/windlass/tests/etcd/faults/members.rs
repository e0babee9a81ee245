//! Members that are killed, frozen, cut off.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Instant;

use tokio::sync::mpsc;
use windlass_testkit::conformance::SOON;
use windlass_testkit::eventually;

use super::*;

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
async fn killed_leader_is_replaced() {
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
async fn holder_in_a_minority_loses_before_the_next_grant() {
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

/// How long a lease lives unless it is renewed, by whoever leads.
fn left_of(cluster: &EtcdCluster, lease: &str) -> Duration {
    let since = Instant::now();
    let told = loop {
        match cluster.ctl(&["lease", "timetolive", lease]) {
            Ok(told) => break told,
            Err(e) if since.elapsed() > SOON => panic!("{e}"),
            Err(_) => {} // nobody leads yet
        }
    };
    let seconds = told
        .split_once("remaining(")
        .and_then(|(_, rest)| rest.split_once('s'));
    let seconds = seconds.map_or(0, |(seconds, _)| seconds.parse().unwrap_or(0));
    Duration::from_secs(seconds)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn renewal_by_a_deposed_leader_does_not_count() {
    let cluster = EtcdCluster::builder().members(3).start().unwrap();
    let leader = cluster.leader().unwrap();
    let url = cluster.url_of(&cluster.addr(leader).to_string());
    let options = Options::new().call_timeout(4 * SOON);
    // Several, so that one of them at least is answered before the leader hears that it is none.
    let mut held = Vec::new();
    for n in 0..6 {
        let w = options.clone().connect(&url).await.unwrap();
        let name = format!("stock/{n}");
        let lock = w.lock(&name).ttl(10_000 * MS).without_renewal();
        let guard = Arc::new(lock.acquire().await.unwrap());
        held.push((guard, lease_of(&cluster, &name)));
    }
    cluster.pause(leader).unwrap();
    let leads = |member: usize| {
        let told = cluster.metric(member % 3, "etcd_server_is_leader");
        told.is_ok_and(|told| told == 1.0)
    };
    let another_leads = || async { leads(leader + 1) || leads(leader + 2) };
    assert!(eventually(2 * SOON, another_leads).await);
    // From then on the lease lives for its ttl, once more.
    tokio::time::sleep(3000 * MS).await;
    let renewing: Vec<_> = held
        .iter()
        .map(|(guard, _)| {
            let guard = Arc::clone(guard);
            tokio::spawn(async move { guard.renew().await })
        })
        .collect();
    tokio::time::sleep(100 * MS).await; // let them ask
    // It wakes up, and finds requests that it answers before it hears that it does not lead any more.
    cluster.resume(leader).unwrap();
    for (renewing, (guard, lease)) in renewing.into_iter().zip(held) {
        let renewed = renewing.await.unwrap();
        let left = left_of(&cluster, &lease) + 1000 * MS; // told in whole seconds, rounded down
        let claimed = guard.remaining();
        assert!(claimed <= left, "{claimed:?} of {left:?}: {renewed:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn members_without_a_leader_are_named_in_time_and_used_again() {
    let cluster = EtcdCluster::builder().members(3).start().unwrap();
    let options = Options::new().call_timeout(1000 * MS);
    let w = options.clone().connect(&cluster.url()).await.unwrap();
    let guard = w.lock("stock").ttl(2000 * MS).acquire().await.unwrap();
    for member in [0, 1] {
        cluster.kill(member).unwrap();
    }
    tokio::time::timeout(SOON, guard.lost())
        .await
        .expect("lost in time");
    let since = Instant::now();
    let alone = cluster.addr(2).to_string();
    let e = options.connect(&cluster.url_of(&alone)).await.map(drop);
    let e = e.unwrap_err();
    assert_eq!(e.kind(), windlass::ErrorKind::Unreachable, "{e}");
    assert!(e.to_string().contains(&alone), "{e}");
    assert!(e.to_string().contains("leader"), "{e}");
    let e = w.lock("stock").try_acquire().await.map(drop).unwrap_err();
    assert!(e.is_retryable(), "{e}");
    assert!(since.elapsed() < 2 * SOON, "{:?}", since.elapsed());
    cluster.restart(0).unwrap();
    let again = eventually(2 * SOON, || async {
        let tried = w.lock("stock").ttl(2000 * MS).try_acquire().await;
        tried.is_ok_and(|tried| tried.acquired().is_some())
    });
    assert!(again.await);
}
