//! Leases that end, and keys that are not what they were.

use std::time::Instant;

use windlass::{Fence, Released};
use windlass_testkit::conformance::{SOON, wait_until_free};
use windlass_testkit::{Direction, eventually};

use super::*;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn disconnected_client_loses_before_its_lease_ends() {
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
async fn revoked_lease_is_reported_immediately() {
    let cluster = EtcdCluster::start().unwrap();
    let w = connect(&cluster).await;
    let (a, b) = (
        w.lock("a").ttl(20_000 * MS).acquire().await.unwrap(),
        w.lock("b").ttl(20_000 * MS).acquire().await.unwrap(),
    );
    let lease = only_lease(&cluster);
    cluster.ctl(&["lease", "revoke", &lease]).unwrap();
    // One of them finds out, and so does the other: not at its own next renewal, 6 s away.
    assert!(a.renew().await.is_err());
    assert!(!a.is_held());
    tokio::time::timeout(2000 * MS, b.lost())
        .await
        .expect("told of the same lease");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn recreated_key_is_not_the_held_one() {
    let cluster = EtcdCluster::start().unwrap();
    let (a, b) = (connect(&cluster).await, connect(&cluster).await);
    let first = a.lock("stock").ttl(20_000 * MS).acquire().await.unwrap();
    let key = cluster
        .ctl(&["get", "--prefix", "--keys-only", "stock/"])
        .unwrap();
    let key = key.trim();
    let value = cluster.ctl(&["get", "--print-value-only", key]).unwrap();
    let lease = only_lease(&cluster);
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
async fn revoked_retention_lease_is_replaced() {
    let cluster = EtcdCluster::start().unwrap();
    let w = connect(&cluster).await;
    let gate = w.gate("stock");
    assert!(gate.admit(Fence::new(1)).await.unwrap().is_admitted());
    let lease = only_lease(&cluster);
    cluster.ctl(&["lease", "revoke", &lease]).unwrap();
    let works = || async { gate.admit(Fence::new(2)).await.is_ok() };
    assert!(eventually(SOON, works).await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn late_request_leaves_nothing_even_without_renewal() {
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
    let lease = only_lease(&cluster);
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
    wait_until_free(&b, "stock").await;
    assert!(!busy.is_finished());
    busy.abort();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn release_on_a_shared_lease_keeps_the_other_claims() {
    let cluster = EtcdCluster::start().unwrap();
    let (a, b) = (connect(&cluster).await, connect(&cluster).await);
    let lock = |name: &str| a.lock(name).ttl(20_000 * MS);
    let stays = lock("stays").acquire().await.unwrap();
    let leader = a.election("leads").ttl(20_000 * MS);
    let leader = leader.campaign("me").await.unwrap();
    let lease = only_lease(&cluster);
    // Released, dropped, given up in line, busy, detached, taken away.
    let goes = lock("goes").acquire().await.unwrap();
    assert!(goes.release().await.unwrap().was_held());
    drop(lock("drops").acquire().await.unwrap());
    let other = b.lock("other").acquire().await.unwrap();
    assert!(
        lock("other")
            .acquire_within(20 * MS)
            .await
            .unwrap()
            .is_busy()
    );
    assert!(lock("other").try_acquire().await.unwrap().is_busy());
    let detached = lock("left")
        .acquire()
        .await
        .unwrap()
        .detach()
        .await
        .unwrap();
    let taken = lock("taken").acquire().await.unwrap();
    assert!(b.lock("taken").break_lock().await.unwrap().is_some());
    assert!(taken.renew().await.is_err());
    stays.renew().await.unwrap();
    leader.renew().await.unwrap();
    for name in ["goes", "drops", "taken"] {
        wait_until_free(&b, name).await;
    }
    for key in ["stays/", "leads/"] {
        assert_eq!(lease_of(&cluster, key), lease, "{key}");
    }
    assert_ne!(lease_of(&cluster, "left/"), lease);
    let left = b.lock("left").release_as(detached.owner.as_str()).await;
    assert!(left.unwrap().was_held());
    assert!(other.release().await.unwrap().was_held());
}
