//! Faults of ZooKeeper: exclusion until the loss is reported, and first come, first served.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use tokio::sync::mpsc;
use windlass::{Coordinator, ErrorKind, Fence, Options, Severity, connect};
use windlass_testkit::conformance::{wait_for_waiters, wait_until_free};
use windlass_testkit::partition::partitioned_leader;
use windlass_testkit::{Direction, FaultProxy, SequenceZooKeeper, ZooKeeperServers, eventually};

const LONG: Duration = Duration::from_secs(30);

/// The URL of one server through a proxy.
fn through(proxy: &FaultProxy, chroot: &str) -> String {
    format!("zookeeper://{}/{chroot}?chroot=create", proxy.addr())
}

fn server_with_proxy() -> (ZooKeeperServers, FaultProxy) {
    let server = ZooKeeperServers::single().expect("a server to test on");
    let proxy = FaultProxy::start(server.addrs()[0]).unwrap();
    (server, proxy)
}

async fn impatient(url: &str) -> Coordinator {
    let options = Options::new().call_timeout(Duration::from_millis(700));
    options.connect(url).await.unwrap()
}

/// Polls a guard; returns the last time at which it was certainly held.
fn last_held(guard: windlass::LockGuard) -> tokio::task::JoinHandle<Instant> {
    tokio::spawn(async move {
        let mut last = Instant::now();
        loop {
            // Read before the check: the lock was held at this time.
            let now = Instant::now();
            if !guard.is_held() {
                std::mem::forget(guard);
                return last;
            }
            last = now;
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn short_disconnection_costs_nothing() {
    let (_server, proxy) = server_with_proxy();
    let w = connect(&through(&proxy, "app")).await.unwrap();
    let other = connect(&through(&proxy, "app")).await.unwrap();
    let guard = w
        .lock("stock")
        .ttl(Duration::from_secs(5))
        .acquire()
        .await
        .unwrap();
    let fence = guard.fence();
    let waiting = tokio::spawn(async move { other.lock("stock").acquire().await.unwrap() });
    wait_for_waiters(&w, "stock", 1).await;
    for _ in 0..3 {
        proxy.reset_all();
        let renewed = eventually(LONG, || async { guard.renew().await.is_ok() });
        assert!(renewed.await, "the session goes on");
        assert!(guard.is_held() && guard.fence() == fence);
        assert!(!waiting.is_finished(), "nobody else was let in");
    }
    proxy.reset_all();
    let released = guard.release().await;
    // If the reply was lost, the release happens in the background.
    assert!(released.is_err() || released.unwrap().was_held());
    let next = tokio::time::timeout(LONG, waiting)
        .await
        .expect("woken")
        .unwrap();
    assert!(next.fence() > fence);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn session_timeout_is_reported_before_the_next_grant() {
    let (server, proxy) = server_with_proxy();
    let a = impatient(&through(&proxy, "app")).await;
    let b = connect(&server.url("app")).await.unwrap();
    for round in 0..2 {
        let lock = a.lock("stock").ttl(Duration::from_millis(800));
        let guard = lock.acquire().await.unwrap();
        let fence = guard.fence();
        let waiting = tokio::spawn({
            let b = b.clone();
            async move { (b.lock("stock").acquire().await.unwrap(), Instant::now()) }
        });
        wait_for_waiters(&b, "stock", 1).await;
        let held = last_held(guard);
        proxy.blackhole(Direction::ToServer);
        proxy.blackhole(Direction::ToClient);
        let (next, granted) = tokio::time::timeout(LONG, waiting).await.unwrap().unwrap();
        let last = held.await.unwrap();
        assert!(
            last < granted,
            "round {round}: held until {:?} after",
            last - granted
        );
        assert!(next.fence() > fence);
        proxy.heal();
        proxy.reset_all();
        assert!(next.release().await.unwrap().was_held());
        // The client reconnects, in a new session.
        let again = eventually(LONG, || async {
            let tried = a.lock("stock").try_acquire().await;
            tried.is_ok_and(|attempt| attempt.acquired().is_some())
        });
        assert!(again.await, "round {round}: it never came back");
        wait_until_free(&b, "stock").await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn create_whose_reply_was_lost_is_found_again() {
    let (server, proxy) = server_with_proxy();
    let a = connect(&through(&proxy, "app")).await.unwrap();
    let b = connect(&server.url("app")).await.unwrap();
    drop(a.lock("stock").acquire().await.unwrap());
    wait_until_free(&b, "stock").await;
    for _ in 0..3 {
        proxy.blackhole(Direction::ToClient);
        let asked = tokio::spawn({
            let a = a.clone();
            async move { a.lock("stock").acquire().await.unwrap() }
        });
        let there = eventually(LONG, || async {
            b.lock("stock").inspect().await.unwrap().holder.is_some()
        });
        assert!(there.await, "the server got the request");
        proxy.reset_all();
        proxy.heal();
        let guard = tokio::time::timeout(LONG, asked).await.unwrap().unwrap();
        let seen = b.lock("stock").inspect().await.unwrap();
        assert_eq!(seen.waiters, 0, "one node, not two: {seen:?}");
        assert_eq!(seen.holder.unwrap().fence, Some(guard.fence()));
        assert!(guard.release().await.unwrap().was_held());
        wait_until_free(&b, "stock").await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed_leader_costs_no_waiter_its_ticket() {
    let servers = ZooKeeperServers::ensemble().expect("servers to test on");
    let clients = [
        connect(&servers.url("app")).await.unwrap(),
        connect(&servers.url("app")).await.unwrap(),
    ];
    let holder = clients[0].lock("stock").acquire().await.unwrap();
    let inside = Arc::new(AtomicUsize::new(0));
    let (served, mut order) = mpsc::unbounded_channel();
    for i in 0..6 {
        let w = clients[i % 2].clone();
        let (served, inside) = (served.clone(), Arc::clone(&inside));
        tokio::spawn(async move {
            let guard = w.lock("stock").acquire().await.unwrap();
            assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0, "two holders");
            tokio::time::sleep(Duration::from_millis(100)).await; // work
            inside.fetch_sub(1, Ordering::SeqCst);
            served.send((i, guard.fence(), guard.is_held())).unwrap();
            drop(guard);
        });
        wait_for_waiters(&clients[0], "stock", i as u64 + 1).await;
    }
    let mut last = holder.fence();
    let leader = servers.leader().expect("one leads");
    servers.kill(leader).unwrap();
    let since = Instant::now();
    assert!(holder.is_held(), "the session outlives the leader");
    // During the election.
    drop(holder);
    for i in 0..6 {
        let (who, fence, held) = tokio::time::timeout(LONG, order.recv())
            .await
            .unwrap()
            .unwrap();
        assert_eq!(who, i, "first come, first served");
        assert!(fence > last && held);
        last = fence;
        if i == 2 {
            servers.restart(leader).unwrap();
        }
    }
    eprintln!(
        "served again {:?} after the leader was killed",
        since.elapsed()
    );
    wait_until_free(&clients[1], "stock").await;
}

/// A server that is cut off answers reads for a while. A client that trusted those would hold on
/// after the majority has granted the lock to another client.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn partitioned_server_confirms_nothing() {
    // The server takes ten seconds to notice.
    let servers = ZooKeeperServers::partitionable(&["syncLimit=50"]).expect("servers to test on");
    let leader = servers.leader().expect("one leads");
    let minority = (leader + 1) % 3;
    let addr = |index: usize| servers.addrs()[index].to_string();
    let (alone, rest) = (
        format!("zookeeper://{}/app?chroot=create", addr(minority)),
        format!(
            "zookeeper://{},{}/app",
            addr(leader),
            addr((leader + 2) % 3)
        ),
    );
    let a = impatient(&alone).await;
    let b = connect(&rest).await.unwrap();
    let guard = a
        .lock("stock")
        .ttl(Duration::from_millis(800))
        .acquire()
        .await
        .unwrap();
    let fence = guard.fence();
    let waiting = tokio::spawn({
        let b = b.clone();
        async move { (b.lock("stock").acquire().await.unwrap(), Instant::now()) }
    });
    wait_for_waiters(&b, "stock", 1).await;
    let held = last_held(guard);
    servers.cut_off(minority);
    let (next, granted) = tokio::time::timeout(LONG, waiting).await.unwrap().unwrap();
    let last = held.await.unwrap();
    assert!(last < granted, "held until {:?} after", last - granted);
    assert!(next.fence() > fence);
    servers.rejoin(minority);
    assert!(next.release().await.unwrap().was_held());
    let again = eventually(LONG, || async {
        let tried = a.lock("stock").try_acquire().await;
        tried.is_ok_and(|attempt| attempt.acquired().is_some())
    });
    assert!(again.await, "it never came back");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn partitioned_leader_grants_nothing_and_reports_loss_in_time() {
    let servers = ZooKeeperServers::partitionable(&[]).expect("servers to test on");
    partitioned_leader(&servers).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn acquire_takes_two_operations_and_release_one() {
    const ROUNDS: u64 = 100;
    let server = ZooKeeperServers::single().expect("a server to test on");
    let w = connect(&server.url("app")).await.unwrap();
    drop(w.lock("stock").acquire().await.unwrap());
    wait_until_free(&w, "stock").await;
    let received = || server.metric(0, "zk_packets_received").unwrap();
    let (before, begun) = (received(), std::time::Instant::now());
    for _ in 0..ROUNDS {
        let guard = w.lock("stock").acquire().await.unwrap();
        assert!(guard.release().await.unwrap().was_held());
    }
    let spent = received() - before;
    // Plus a ping per second at most, and the query itself.
    let besides = 10 + begun.elapsed().as_secs();
    assert!(
        (3 * ROUNDS..3 * ROUNDS + besides).contains(&spent),
        "{spent} for {ROUNDS} rounds"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_hundred_waiters_are_no_herd() {
    const CLIENTS: u64 = 20;
    const EACH: u64 = 10;
    let server = ZooKeeperServers::single().expect("a server to test on");
    let w = connect(&server.url("app")).await.unwrap();
    let holder = w.lock("stock").acquire().await.unwrap();
    let (served, mut turns) = mpsc::unbounded_channel();
    let overlap = Arc::new(AtomicBool::new(false));
    let mut clients = Vec::new();
    for _ in 0..CLIENTS {
        clients.push(connect(&server.url("app")).await.unwrap());
    }
    let mut lined_up = 0;
    for _ in 0..EACH {
        // Alternating, so that every hand-over is between two clients.
        for client in clients.clone() {
            let (served, overlap) = (served.clone(), Arc::clone(&overlap));
            tokio::spawn(async move {
                let lock = client.lock("stock").ttl(Duration::from_secs(300));
                let guard = lock.acquire().await.unwrap();
                assert!(!overlap.swap(true, Ordering::SeqCst), "two holders");
                overlap.store(false, Ordering::SeqCst);
                served.send(guard.fence()).unwrap();
                assert!(guard.release().await.unwrap().was_held());
            });
            lined_up += 1;
            wait_for_waiters(&w, "stock", lined_up).await;
        }
    }
    let sent = || server.metric(0, "zk_packets_sent").unwrap();
    let (before, since) = (sent(), Instant::now());
    assert!(holder.release().await.unwrap().was_held());
    for _ in 0..CLIENTS * EACH {
        tokio::time::timeout(LONG, turns.recv())
            .await
            .unwrap()
            .unwrap();
    }
    let spent = sent() - before;
    let each = spent as f64 / (CLIENTS * EACH) as f64;
    eprintln!(
        "{each:.1} messages to clients for each hand-over, {:?} in all",
        since.elapsed()
    );
    // The reply to the release, the event, the reply to the read, and the next watch of the same
    // client; plus pings.
    assert!(each < 5.0, "{each} for each hand-over");
    wait_until_free(&w, "stock").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unused_nodes_are_deleted() {
    let server = ZooKeeperServers::single().expect("a server to test on");
    let w = connect(&server.url("app")).await.unwrap();
    drop(w.lock("deep/down/stock").acquire().await.unwrap());
    drop(w.semaphore("jobs", 3).acquire().await.unwrap());
    drop(w.election("boss").campaign("me").await.unwrap());
    let raw = zookeeper_client::Client::connect(&format!("{}/app", server.addrs()[0])).await;
    let raw = raw.unwrap();
    let empty = eventually(LONG, || async {
        raw.list_children("/").await.unwrap().is_empty()
    });
    assert!(
        empty.await,
        "left behind: {:?}",
        raw.list_children("/").await
    );
}

/// After 2³¹ children of a node the sequence numbers overflow.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn queue_order_survives_sequence_overflow() {
    const WAITERS: usize = 6;
    let mut server = SequenceZooKeeper::start().expect("a server to test on");
    let url = format!("zookeeper://{}", server.addr());
    let clients = [connect(&url).await.unwrap(), connect(&url).await.unwrap()];
    drop(clients[0].lock("stock").acquire().await.unwrap());
    wait_until_free(&clients[0], "stock").await;
    server.set_next_sequence("/stock", i32::MAX - 2).unwrap();
    let holder = clients[0].lock("stock").acquire().await.unwrap();
    let mut last = holder.fence();
    let (served, mut order) = mpsc::unbounded_channel();
    for i in 0..WAITERS {
        let w = clients[i % 2].clone();
        let served = served.clone();
        tokio::spawn(async move {
            let guard = w.lock("stock").acquire().await.unwrap();
            served.send((i, guard.fence())).unwrap();
            assert!(guard.release().await.unwrap().was_held());
        });
        wait_for_waiters(&clients[0], "stock", i as u64 + 1).await;
    }
    let raw = zookeeper_client::Client::connect(&server.addr().to_string())
        .await
        .unwrap();
    let children = raw.list_children("/stock").await.unwrap();
    // The server repeats the last number, or uses negative numbers.
    let is_last = |child: &&String| child.ends_with("-2147483647") || child.contains("lock--");
    let repeated = children.iter().filter(is_last).count();
    assert!(repeated > 1 && repeated < children.len(), "{children:?}");
    assert!(holder.release().await.unwrap().was_held());
    for i in 0..WAITERS {
        let (who, fence) = tokio::time::timeout(LONG, order.recv())
            .await
            .unwrap()
            .unwrap();
        assert_eq!(who, i, "first come, first served");
        assert!(fence > last, "fences are not these numbers");
        last = fence;
    }
    wait_until_free(&clients[0], "stock").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn move_whose_reply_was_lost_leaves_nothing_behind() {
    let (server, proxy) = server_with_proxy();
    let a = connect(&through(&proxy, "app")).await.unwrap();
    let b = connect(&server.url("app")).await.unwrap();
    let writer = a.rwlock("stock").write().await.unwrap();
    proxy.blackhole(Direction::ToClient);
    let downgraded = tokio::spawn(writer.downgrade());
    let moved = || async {
        b.rwlock("stock")
            .try_read()
            .await
            .unwrap()
            .acquired()
            .is_some()
    };
    assert!(eventually(LONG, moved).await, "the server got the request");
    // It is a reader now, under another name, and does not know it. The reply may not have reached
    // the proxy yet, so its connection ends before the proxy delivers anything again.
    proxy.reset_all();
    proxy.heal();
    assert!(downgraded.await.unwrap().is_err());
    // Its session lives on, and would keep the rest alive.
    let free = eventually(LONG, || async {
        let tried = b.rwlock("stock").try_write().await;
        tried.is_ok_and(|attempt| attempt.acquired().is_some())
    });
    assert!(free.await, "a reader is left that nobody knows of");
    let alive = eventually(LONG, || async { a.rwlock("x").try_read().await.is_ok() });
    assert!(alive.await);
}

/// A fence is a transaction id, with the number of the leader's election in its upper half.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fences_too_high_to_be_exact_are_refused() {
    let mut server = SequenceZooKeeper::start().expect("a server to test on");
    let w = connect(&format!("zookeeper://{}", server.addr()))
        .await
        .unwrap();
    let guard = w.lock("stock").acquire().await.unwrap();
    assert!(guard.fence() < Fence::MAX);
    let last_fence = async || {
        let found = w.diagnose().await.unwrap();
        let found = found.into_iter().find(|f| f.topic == "last fence");
        found.unwrap().severity
    };
    assert_eq!(last_fence().await, Severity::Fine);
    server.set_last_transaction(Fence::MAX.get()).unwrap();
    let waiting = w.lock("stock").acquire_within(LONG).await.map(drop);
    let semaphore = w.semaphore("jobs", 2).acquire().await.map(drop);
    let all = w.locks(["a", "b"]).acquire().await.map(drop);
    let one = w.lock("other").acquire().await.map(drop);
    for refused in [waiting, semaphore, all, one] {
        let e = refused.unwrap_err();
        assert_eq!(e.kind(), ErrorKind::Store, "{e}");
        assert!(e.to_string().contains("above the highest"), "{e}");
    }
    for name in ["a", "b", "other"] {
        wait_until_free(&w, name).await;
    }
    assert_eq!(last_fence().await, Severity::Problem);
    assert!(guard.release().await.unwrap().was_held());
}
