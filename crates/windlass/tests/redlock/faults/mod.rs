//! Faults of the nodes of a quorum.

mod load;
mod node_selection;
mod recovery;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use load::CountingTasks;
use windlass::{Coordinator, ErrorKind, Fence};
use windlass_testkit::conformance::wait_until_free;
use windlass_testkit::{Direction, FaultProxy, Flavor, RedisServer, RedlockNodes, eventually};

const MS: Duration = Duration::from_millis(1);
/// Long enough for anything that should happen immediately, on a busy machine.
const SOON: Duration = Duration::from_secs(20);

async fn connect(nodes: &RedlockNodes, parameters: &str) -> Coordinator {
    windlass::connect(&nodes.url(parameters)).await.unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn any_two_of_five_nodes_may_die_and_come_back() {
    let nodes = RedlockNodes::durable(5, Flavor::Valkey).unwrap();
    let w = connect(&nodes, "").await;
    let held = w.lock("held").ttl(2000 * MS).acquire().await.unwrap();
    let counting = CountingTasks::start(&w, "counter");
    for pair in [(0, 1), (2, 4)] {
        counting.goes_on("all alive").await;
        nodes.node(pair.0).kill().unwrap();
        nodes.node(pair.1).kill().unwrap();
        counting.goes_on("two dead").await;
        // New clients can connect to the quorum meanwhile.
        let late = connect(&nodes, "").await;
        let guard = late.lock("late").acquire().await.unwrap();
        assert!(guard.release().await.unwrap().was_held());
        tokio::time::sleep(1500 * MS).await; // a renewal falls into this time
        nodes.node(pair.0).restart().unwrap();
        nodes.node(pair.1).restart().unwrap();
        counting.goes_on("two back").await;
        tokio::time::sleep(1500 * MS).await; // read repair
    }
    assert!(held.is_held(), "a held lock outlives the loss of any two");
    assert!(held.release().await.unwrap().was_held());
    counting.end().await;
    wait_until_free(&w, "counter").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn any_two_of_five_nodes_may_be_frozen() {
    let nodes = RedlockNodes::durable(5, Flavor::Valkey).unwrap();
    let w = connect(&nodes, "node_timeout=1s").await;
    let held = w.lock("held").ttl(3000 * MS).acquire().await.unwrap();
    let counting = CountingTasks::start(&w, "counter");
    counting.goes_on("all alive").await;
    nodes.node(1).pause().unwrap();
    nodes.node(3).pause().unwrap();
    counting.goes_on("two frozen").await;
    tokio::time::sleep(2000 * MS).await; // two renewals fall into this time
    nodes.node(1).resume().unwrap();
    nodes.node(3).resume().unwrap();
    counting.goes_on("two awake").await;
    assert!(held.is_held());
    assert!(held.release().await.unwrap().was_held());
    counting.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn any_two_of_five_nodes_may_be_cut_off() {
    let nodes = RedlockNodes::durable(5, Flavor::Valkey).unwrap();
    let proxies: Vec<FaultProxy> = nodes
        .iter()
        .map(|node| FaultProxy::start(node.addr()).unwrap())
        .collect();
    let hosts: Vec<String> = proxies.iter().map(|p| p.addr().to_string()).collect();
    let url = format!("redlock://{}?node_timeout=1s", hosts.join(","));
    let w = windlass::connect(&url).await.unwrap();
    let counting = CountingTasks::start(&w, "counter");
    counting.goes_on("all alive").await;
    for direction in [Direction::ToServer, Direction::ToClient] {
        proxies[0].blackhole(direction);
        proxies[4].blackhole(direction);
        counting.goes_on("two cut off").await;
        proxies[0].heal();
        proxies[4].heal();
        counting.goes_on("two back").await;
    }
    counting.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn too_few_nodes_are_reported_immediately_by_name() {
    let nodes = RedlockNodes::durable(5, Flavor::Valkey).unwrap();
    let w = connect(&nodes, "").await;
    for node in 0..3 {
        nodes.node(node).kill().unwrap();
    }
    let began = Instant::now();
    let e = w.lock("stock").acquire().await.unwrap_err();
    let took = began.elapsed();
    assert!(took < Duration::from_secs(10), "{took:?}");
    println!("three dead: refused after {took:?}");
    assert_eq!(e.kind(), ErrorKind::Unreachable, "{e}");
    for node in 0..3 {
        let name = nodes.node(node).addr().to_string();
        // Once as part of the URL, and once with the reason.
        assert!(e.to_string().contains(&format!("{name}: ")), "{e}");
    }
    assert!(e.to_string().contains("2 of 5 nodes answered"), "{e}");
    let e = windlass::connect(&nodes.url("")).await.unwrap_err();
    assert_eq!(e.kind(), ErrorKind::Unreachable, "{e}");
    // What the two granted was released.
    for node in 0..3 {
        nodes.node(node).restart().unwrap();
    }
    wait_until_free(&w, "stock").await;
    let again = w.lock("stock").acquire_within(SOON).await.unwrap();
    assert!(again.acquired().is_some());
}

/// Nodes without persistence that have been up long enough to vote.
async fn without_persistence(count: usize) -> RedlockNodes {
    let nodes = RedlockNodes::without_persistence(count, Flavor::Valkey).unwrap();
    let url = nodes.url("max_ttl=2s");
    let voting = eventually(SOON, || async {
        let w = windlass::connect(&url).await.unwrap();
        w.lock("warm-up").ttl(500 * MS).try_acquire().await.is_ok()
    });
    assert!(voting.await, "they never had a vote");
    nodes
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn node_that_lost_its_data_grants_nothing() {
    let nodes = without_persistence(3).await;
    let (a, b) = (
        connect(&nodes, "max_ttl=2s").await,
        connect(&nodes, "max_ttl=2s").await,
    );
    // Without renewal, so that only the nodes' memory keeps it.
    let held = a.lock("stock").ttl(2000 * MS).without_renewal();
    let held = held.acquire().await.unwrap();
    // A majority loses its data: without the quarantine, the next request would be granted
    // immediately.
    nodes.node(0).restart().unwrap();
    nodes.node(1).restart().unwrap();
    let began = Instant::now();
    let mut refusals = String::new();
    let next = loop {
        match b.lock("stock").ttl(2000 * MS).try_acquire().await {
            Ok(attempt) => {
                // The reply came while the first client may still hold: it must be no.
                let sure = held.is_held();
                match attempt.acquired() {
                    Some(next) => {
                        assert!(!sure, "two hold at once");
                        break next;
                    }
                    None => tokio::time::sleep(20 * MS).await,
                }
            }
            Err(e) => {
                refusals += &e.to_string();
                tokio::time::sleep(20 * MS).await;
            }
        }
        assert!(held.remaining() <= 2000 * MS);
    };
    println!(
        "two of three forgot: the next holds after {:?}",
        began.elapsed()
    );
    assert!(
        refusals.contains("without durable storage"),
        "the quarantined are named: {refusals}"
    );
    assert!(
        next.fence() > held.fence(),
        "{} after {}",
        next.fence(),
        held.fence()
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn node_without_persistence_has_no_vote_after_a_start() {
    let nodes = RedlockNodes::without_persistence(3, Flavor::Valkey).unwrap();
    let w = connect(&nodes, "max_ttl=1h").await;
    let e = w.lock("stock").try_acquire().await.unwrap_err();
    assert_eq!(e.kind(), ErrorKind::Unreachable, "{e}");
    assert!(e.to_string().contains("has no vote for another"), "{e}");
    let e = w
        .lock("stock")
        .ttl(Duration::from_secs(7200))
        .try_acquire()
        .await
        .unwrap_err();
    assert_eq!(e.kind(), ErrorKind::InvalidInput, "{e}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fences_increase_over_a_lost_counter() {
    let nodes = without_persistence(3).await;
    let w = connect(&nodes, "max_ttl=2s").await;
    let counter = |node: usize| -> u64 {
        let reply = nodes
            .node(node)
            .command(&["GET", "windlass:fence"])
            .unwrap();
        reply.parse().unwrap_or(0)
    };
    // Far ahead of any clock, as if a clock had been wrong: so only the other counters can help.
    let ahead = 4_000_000_000_000_000u64;
    for node in [0, 1] {
        let server = nodes.node(node);
        server
            .command(&["SET", "windlass:fence", &ahead.to_string()])
            .unwrap();
    }
    // The third node takes no part: only the other two know the fence. Else a client may choose
    // the third and not the second, and the counter below would be lost on a majority.
    nodes.node(2).pause().unwrap();
    let before = w.lock("stock").ttl(500 * MS).acquire().await.unwrap();
    let fence = before.fence();
    assert!(fence.get() > ahead);
    assert!(before.release().await.unwrap().was_held());
    nodes.node(2).resume().unwrap();
    nodes.node(0).restart().unwrap();
    nodes
        .node(2)
        .command(&["SET", "windlass:fence", "1"])
        .unwrap();
    // A client that has not seen any fence, and so cannot pass one on.
    let stranger = connect(&nodes, "max_ttl=2s").await;
    nodes.node(1).pause().unwrap();
    // Of the two remaining nodes, one lost its counter and cannot read enough of the others: not
    // even after its quarantine, which ends between 3 and 4 seconds after the start, since uptimes
    // are rounded.
    let begun = Instant::now();
    while begun.elapsed() < 5000 * MS {
        let lock = stranger.lock("stock").ttl(500 * MS);
        let e = lock.try_acquire().await.unwrap_err();
        assert_eq!(e.kind(), ErrorKind::Unreachable, "{e}");
    }
    nodes.node(1).resume().unwrap();
    let grown = eventually(SOON, || async {
        let lock = stranger.lock("stock").ttl(500 * MS);
        match lock.try_acquire().await.ok().and_then(|a| a.acquired()) {
            Some(guard) => guard.fence() > fence && counter(0) > ahead,
            None => false,
        }
    });
    assert!(grown.await, "counter {}", counter(0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fences_increase_over_a_clock_jump() {
    let builder = RedisServer::builder().binary(Flavor::Valkey);
    let nodes = RedlockNodes::start(5, builder.append_only(true).movable_clock()).unwrap();
    let (a, b) = (connect(&nodes, "").await, connect(&nodes, "").await);
    let mut last = Fence::new(0);
    for (round, seconds) in [0i64, 60, 0, 60, -60].into_iter().enumerate() {
        nodes.node(round).shift_clock(seconds).unwrap();
        for w in [&a, &b, &a] {
            // Sometimes held over the jump of the next round: its claim is then gone on one node.
            let guard = w.lock("stock").acquire_within(SOON).await.unwrap();
            let guard = guard.acquired().expect("within that time");
            assert!(guard.fence() > last, "{} after {last}", guard.fence());
            last = guard.fence();
            nodes.node((round + 1) % 5).shift_clock(60).unwrap();
            let _ = guard.release().await;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_contenders_are_all_served() {
    let nodes = RedlockNodes::durable(5, Flavor::Valkey).unwrap();
    let mut tasks = Vec::new();
    let inside = Arc::new(AtomicU64::new(0));
    for _ in 0..4 {
        // Nothing fails here: on a busy machine, allow more time.
        let patient = windlass::Options::new().call_timeout(SOON);
        let url = nodes.url("node_timeout=10s");
        let w = patient.connect(&url).await.unwrap();
        for _ in 0..16 {
            let (w, inside) = (w.clone(), Arc::clone(&inside));
            tasks.push(tokio::spawn(async move {
                for _ in 0..3 {
                    let guard = w.lock("stock").acquire().await.unwrap();
                    assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0);
                    tokio::task::yield_now().await;
                    inside.fetch_sub(1, Ordering::SeqCst);
                    assert!(guard.release().await.unwrap().was_held());
                }
            }));
        }
    }
    let began = Instant::now();
    for task in tasks {
        let left = (6 * SOON).saturating_sub(began.elapsed());
        tokio::time::timeout(left, task)
            .await
            .expect("all get their turn")
            .unwrap();
    }
    println!(
        "192 turns of 64 tasks in 4 clients took {:?}",
        began.elapsed()
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_of_several_concurrent_tries_succeeds() {
    let nodes = RedlockNodes::durable(5, Flavor::Valkey).unwrap();
    let mut clients = Vec::new();
    for _ in 0..5 {
        clients.push(connect(&nodes, "").await);
    }
    for round in 0..10 {
        let name = format!("stock-{round}");
        let tries = clients.iter().map(|w| {
            let (w, name) = (w.clone(), name.clone());
            tokio::spawn(async move { w.lock(&name).try_acquire().await.unwrap().acquired() })
        });
        let mut held = Vec::new();
        for attempt in tries.collect::<Vec<_>>() {
            held.extend(attempt.await.unwrap());
        }
        assert_eq!(held.len(), 1, "round {round}: one of five that try at once");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bad_members_are_named() {
    let nodes = RedlockNodes::durable(3, Flavor::Valkey).unwrap();
    // Once with all nodes: a node without a counter first learns those of the others.
    let w = connect(&nodes, "").await;
    let knows_counters =
        |node: &RedisServer| node.command(&["EXISTS", "windlass:fence"]).unwrap() == "1";
    let ready = eventually(SOON, || async {
        let _ = w.lock("warm-up").try_acquire().await;
        nodes.iter().all(knows_counters)
    });
    assert!(ready.await, "a node has no counter");
    let [a, b] = [nodes.node(0).addr(), nodes.node(1).addr()];
    // An unreachable node is one vote less.
    let url = format!("redlock://{a},{b},nowhere.invalid:1?node_timeout=5s");
    let w = windlass::connect(&url).await.unwrap();
    assert!(
        w.lock("stock")
            .try_acquire()
            .await
            .unwrap()
            .acquired()
            .is_some()
    );
    let began = Instant::now();
    let url = format!("redlock://{a},nowhere.invalid:1,elsewhere.invalid:1");
    let e = windlass::connect(&url).await.unwrap_err();
    assert!(began.elapsed() < Duration::from_secs(10));
    assert_eq!(e.kind(), ErrorKind::Unreachable, "{e}");
    assert!(e.to_string().contains("nowhere.invalid:1: "), "{e}");
    let e = windlass::connect(&format!("redlock://{a},{b}"))
        .await
        .unwrap_err();
    assert_eq!(e.kind(), ErrorKind::InvalidInput, "{e}");
    let e = windlass::connect(&format!("redlock://{a},{b},{a}"))
        .await
        .unwrap_err();
    assert_eq!(e.kind(), ErrorKind::InvalidInput, "{e}");
    // A wrong password is reported as such.
    let builder = RedisServer::builder()
        .binary(Flavor::Valkey)
        .password("right");
    let closed = RedlockNodes::start(3, builder).unwrap();
    let url = closed.url("").replace("redlock://", "redlock://:s3cret@");
    let e = windlass::connect(&url).await.unwrap_err();
    assert_eq!(e.kind(), ErrorKind::AccessDenied, "{e}");
    assert!(!format!("{e:?}").contains("s3cret"), "{e:?}");
}

/// The URL of the quorum, with each node behind a proxy.
fn behind_proxies(nodes: &RedlockNodes, parameters: &str) -> (Vec<FaultProxy>, String) {
    let proxy = |node: &RedisServer| FaultProxy::start(node.addr()).unwrap();
    let proxies: Vec<FaultProxy> = nodes.iter().map(proxy).collect();
    let hosts: Vec<String> = proxies.iter().map(|p| p.addr().to_string()).collect();
    let url = format!("redlock://{}?{parameters}", hosts.join(","));
    (proxies, url)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn late_node_does_not_count_dead_waiters() {
    let nodes = RedlockNodes::durable(3, Flavor::Valkey).unwrap();
    let (proxies, url) = behind_proxies(&nodes, "node_timeout=5s");
    let late = windlass::connect(&url).await.unwrap();
    let w = connect(&nodes, "").await;
    let alive = late.rwlock("config").read().await.unwrap();
    proxies[2].hold(Direction::ToServer);
    let dead = late.rwlock("config").ttl(1000 * MS).without_renewal();
    std::mem::forget(dead.read().await.unwrap());
    let writer = tokio::spawn({
        let w = w.clone();
        async move { w.rwlock("config").write().await.unwrap() }
    });
    let waiters = || async { w.rwlock("config").inspect().await.unwrap().waiters };
    let stand_in_line = |count: &'static str| {
        let node = nodes.node(2);
        eventually(SOON, move || async move {
            let reply = node.command(&["ZCARD", "windlass:rw:line:{config}"]);
            reply.unwrap().trim() == count
        })
    };
    assert!(stand_in_line("1").await, "the writer waits there");
    // Now the dead client's request arrives, behind the writer's.
    proxies[2].heal();
    assert!(stand_in_line("2").await, "the dead one waits there, too");
    tokio::time::sleep(1200 * MS).await; // its claim has expired
    assert_eq!(waiters().await, 1);
    assert!(alive.release().await.unwrap().was_held());
    let writer = tokio::time::timeout(SOON, writer).await.unwrap().unwrap();
    assert!(writer.is_held());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn short_lived_clients_use_a_distant_node_again() {
    let nodes = RedlockNodes::durable(3, Flavor::Valkey).unwrap();
    let (proxies, url) = behind_proxies(&nodes, "");
    let w = windlass::connect(&url).await.unwrap();
    for proxy in &proxies[..2] {
        // Longer than the node timeout for such a short TTL, if the connection has to be opened
        // first.
        proxy.delay(Direction::ToServer, 8 * MS);
        proxy.reset_all();
    }
    let again = eventually(SOON, || async {
        let lock = w.lock("stock").ttl(100 * MS);
        lock.try_acquire()
            .await
            .is_ok_and(|a| a.acquired().is_some())
    });
    assert!(again.await);
}

/// A node that keeps the fence would go on rejecting lower ones, so a reset that misses it says so.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn gate_reset_needs_all_nodes() {
    let nodes = RedlockNodes::durable(3, Flavor::Valkey).unwrap();
    let w = connect(&nodes, "").await;
    let gate = w.gate("stock");
    assert!(gate.admit(Fence::new(9)).await.unwrap().is_admitted());
    nodes.node(2).kill().unwrap();
    let error = gate.reset().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unreachable, "{error}");
    assert!(error.to_string().contains("2 of 3 nodes"), "{error}");
    nodes.node(2).restart().unwrap();
    let reset = eventually(SOON, || async { gate.reset().await.is_ok() });
    assert!(reset.await, "the last node forgets");
    assert!(gate.admit(Fence::new(1)).await.unwrap().is_admitted());
}
