//! Barriers over a quorum whose nodes die, freeze, come back, and have clocks of their own; and parties that
//! die.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use windlass::{Barrier, Coordinator, ErrorKind, Fence, Options, Party, Released};
use windlass_testkit::{FaultProxy, Flavor, RedisServer, RedlockNodes, eventually};

/// Long enough for anything that should happen at once, on a busy machine; and for the next heartbeat of those who
/// missed some news, which is 20 s away at most.
const SOON: Duration = Duration::from_secs(60);
const KEY: &str = "windlass:quorum:barrier:{phase}";

/// A patient client: what is slow on a busy machine is not taken for lost.
async fn connect(url: &str) -> Coordinator {
    let options = Options::new().call_timeout(Duration::from_secs(60));
    options.connect(url).await.unwrap()
}

fn phase(w: &Coordinator, parties: u32) -> Barrier {
    w.barrier("phase", parties).ttl(Duration::from_secs(60))
}

/// How many are in and in line, as soon as enough nodes answer.
async fn inside(w: &Coordinator) -> (u64, u64) {
    loop {
        match w.barrier("phase", 2).inspect(0).await {
            Ok(seen) => return (seen.used, seen.waiters),
            Err(e) => assert!(e.is_retryable(), "{e}"),
        }
    }
}

async fn comes_to(w: &Coordinator, expected: (u64, u64)) {
    let seen = eventually(SOON, || async { inside(w).await == expected });
    assert!(seen.await, "{:?} and not {expected:?}", inside(w).await);
}

/// Comes in together with the others, however long it takes until enough nodes are back.
fn enters(barrier: &Barrier) -> tokio::task::JoinHandle<Party> {
    let barrier = barrier.clone();
    tokio::spawn(async move {
        loop {
            match barrier.enter().await {
                Ok(party) => return party,
                Err(e) => assert!(e.is_retryable(), "{e}"),
            }
        }
    })
}

async fn soon<T>(task: tokio::task::JoinHandle<T>) -> T {
    tokio::time::timeout(SOON, task).await.unwrap().unwrap()
}

/// All have left, however long it takes until enough nodes are back.
fn leaves(party: Party) -> tokio::task::JoinHandle<()> {
    tokio::spawn(async move {
        // Whether the answer came or not, it has left: in the background, if need be.
        if let Err(e) = party.leave().await {
            assert!(e.is_retryable(), "{e}");
        }
    })
}

/// One round of three, with something in between.
async fn round(clients: [&Coordinator; 3], between: impl FnOnce()) -> Fence {
    let tasks = clients.map(|w| enters(&phase(w, 3)));
    let mut parties = Vec::new();
    for task in tasks {
        parties.push(soon(task).await);
    }
    let number = parties[0].round();
    assert!(parties.iter().all(|party| party.round() == number));
    between();
    assert!(parties.iter().all(|party| party.is_held()));
    for task in parties.into_iter().map(leaves).collect::<Vec<_>>() {
        soon(task).await;
    }
    comes_to(clients[0], (0, 0)).await;
    number
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn any_two_of_five_may_die() {
    let nodes = RedlockNodes::durable(5, Flavor::Valkey).unwrap();
    let url = nodes.url("node_timeout=5s");
    let (a, b) = (connect(&url).await, connect(&url).await);
    let mut last = Fence::new(0);
    // Each time others: what is known is carried from majority to majority.
    for pair in [(0, 1), (2, 3), (4, 0)] {
        let before = enters(&phase(&a, 3));
        comes_to(&b, (1, 0)).await;
        nodes.node(pair.0).kill().unwrap();
        nodes.node(pair.1).kill().unwrap();
        comes_to(&b, (1, 0)).await;
        let (other, third) = (enters(&phase(&b, 3)), enters(&phase(&b, 3)));
        let parties = [soon(before).await, soon(other).await, soon(third).await];
        assert!(parties[0].round() > last);
        last = parties[0].round();
        assert!(parties.iter().all(|party| party.round() == last));
        // They are back, without what has happened meanwhile.
        nodes.node(pair.0).restart().unwrap();
        nodes.node(pair.1).restart().unwrap();
        for task in parties.map(leaves) {
            soon(task).await;
        }
        comes_to(&a, (0, 0)).await;
    }
    // Three are too many, and each is named.
    for node in [1, 2, 3] {
        nodes.node(node).kill().unwrap();
    }
    let e = phase(&a, 3).inspect(0).await.unwrap_err();
    assert_eq!(e.kind(), ErrorKind::Unreachable, "{e}");
    for node in [1, 2, 3] {
        let name = nodes.node(node).addr().to_string();
        assert!(e.to_string().contains(&format!("{name}: ")), "{e}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_frozen_node_holds_up_nobody() {
    let nodes = RedlockNodes::durable(3, Flavor::Valkey).unwrap();
    let url = nodes.url("node_timeout=1s");
    let (a, b) = (connect(&url).await, connect(&url).await);
    nodes.node(0).pause().unwrap();
    let first = round([&a, &b, &a], || {
        // What was said to it meanwhile, it hears now.
        nodes.node(0).resume().unwrap();
        nodes.node(1).pause().unwrap();
    });
    let first = first.await;
    nodes.node(1).resume().unwrap();
    assert!(round([&b, &a, &b], || ()).await > first);
}

/// A party that is in, in a process of its own, which ends without a word.
fn enters_and_dies(url: &str, parties: u32, ttl: Duration, w: &Coordinator) {
    let (dead, url) = (w.clone(), url.to_owned());
    let handle = tokio::runtime::Handle::current();
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        runtime.block_on(async {
            let w = connect(&url).await;
            let barrier = w.barrier("phase", parties).ttl(ttl);
            let mut entering = Box::pin(async move { barrier.enter().await.map(drop) });
            tokio::select! {
                entered = &mut entering => panic!("all others have come: {entered:?}"),
                seen = handle.spawn(async move { comes_to(&dead, (1, 0)).await }) => seen.unwrap(),
            }
            // Nobody cleans up after the dead.
            std::mem::forget(entering);
        });
        runtime.shutdown_background();
    })
    .join()
    .unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_party_that_dies_is_taken_off_after_its_ttl_and_another_comes_in_its_place() {
    let nodes = RedlockNodes::durable(3, Flavor::Valkey).unwrap();
    let url = nodes.url("node_timeout=5s");
    let (a, b) = (connect(&url).await, connect(&url).await);
    let ttl = Duration::from_secs(2);
    let since = Instant::now();
    tokio::task::block_in_place(|| enters_and_dies(&url, 3, ttl, &a));
    // It waits for two, of whom one is dead.
    let alive = enters(&phase(&a, 3));
    let gone = eventually(SOON, || async {
        let seen = phase(&b, 3).inspect(9).await.unwrap();
        let dead = seen.holders.iter().any(|h| h.remaining < Some(2 * ttl));
        // Its own clock counts milliseconds from their beginning.
        assert!(dead || since.elapsed() + Duration::from_millis(5) >= ttl);
        assert_eq!(seen.open, None, "one of them is dead");
        !dead && seen.used == 1
    });
    assert!(gone.await);
    let others = [enters(&phase(&b, 3)), enters(&phase(&b, 3))];
    let party = soon(alive).await;
    for other in others {
        assert_eq!(soon(other).await.round(), party.round());
    }
}

/// Those in line hear of their turn from the change itself: their next heartbeat is 20 minutes away.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn those_in_line_are_told_of_their_turn() {
    let nodes = RedlockNodes::durable(3, Flavor::Valkey).unwrap();
    let url = nodes.url("node_timeout=5s&max_ttl=1h");
    let (a, b, c) = (
        connect(&url).await,
        connect(&url).await,
        connect(&url).await,
    );
    let enters = |w: &Coordinator| enters(&w.barrier("phase", 2).ttl(Duration::from_secs(3600)));
    let (one, two) = (enters(&a), enters(&b));
    let (one, two) = (soon(one).await, soon(two).await);
    let next = [enters(&b), enters(&c)];
    comes_to(&a, (2, 2)).await;
    for task in [leaves(one), leaves(two)] {
        soon(task).await;
    }
    let mut rounds = Vec::new();
    for party in next {
        rounds.push(soon(party).await.round());
    }
    assert_eq!(rounds[0], rounds[1]);
}

/// The number under which a node keeps what it has.
fn ballot(node: &RedisServer) -> String {
    node.command(&["HGET", KEY, "ballot"]).unwrap()
}

/// Nothing is under way any more that only some have.
async fn all_have_the_same(nodes: &RedlockNodes) {
    let same = eventually(SOON, || async {
        let first = ballot(nodes.node(0));
        nodes.iter().all(|node| ballot(node) == first)
    });
    if !same.await {
        panic!("{:?}", nodes.iter().map(ballot).collect::<Vec<_>>());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_clock_that_jumps_ends_nobody() {
    let builder = RedisServer::builder().binary(Flavor::Valkey);
    let nodes = RedlockNodes::start(3, builder.append_only(true).movable_clock()).unwrap();
    let url = nodes.url("node_timeout=20s");
    let (a, b) = (connect(&url).await, connect(&url).await);
    let one = enters(&phase(&a, 2));
    comes_to(&b, (1, 0)).await;
    all_have_the_same(&nodes).await;
    nodes.node(0).shift_clock(120).unwrap();
    for _ in 0..20 {
        assert_eq!(inside(&b).await, (1, 0), "it was renewed just now");
    }
    let two = enters(&phase(&b, 2));
    let (one, two) = (soon(one).await, soon(two).await);
    assert_eq!(one.round(), two.round());
    all_have_the_same(&nodes).await;
    // Ahead once more, and one is back to where it was.
    nodes.node(0).shift_clock(0).unwrap();
    nodes.node(1).shift_clock(120).unwrap();
    for _ in 0..20 {
        assert_eq!(inside(&b).await, (2, 0), "nobody has left");
    }
    assert!(one.is_held() && two.is_held());
    for task in [leaves(one), leaves(two)] {
        soon(task).await;
    }
    comes_to(&a, (0, 0)).await;
}

/// What is forgotten of a barrier is over a minute after the longest ttl; that nodes have been up so long is what
/// their clocks say.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_forgot_is_not_asked_until_all_it_may_have_known_is_over() {
    let builder = RedisServer::builder().binary(Flavor::Valkey);
    let nodes = RedlockNodes::start(3, builder.movable_clock()).unwrap();
    let url = nodes.url("node_timeout=5s&max_ttl=10s");
    let up = |seconds| {
        for node in &nodes {
            node.shift_clock(seconds).unwrap();
        }
    };
    let ttl = Duration::from_secs(10);
    // Long enough to vote on locks.
    up(40);
    let w = connect(&url).await;
    let lock = w.lock("stock").ttl(ttl).try_acquire().await.unwrap();
    assert!(lock.acquired().is_some());
    let barrier = w.barrier("phase", 2).ttl(ttl);
    let e = barrier.enter_within(SOON).await.unwrap_err();
    assert_eq!(e.kind(), ErrorKind::Unreachable, "{e}");
    assert!(e.to_string().contains("within the last 75 s"), "{e}");
    assert!(e.hint().unwrap().contains("appendfsync always"), "{e}");
    up(120);
    let w = connect(&url).await;
    let barrier = w.barrier("phase", 2).ttl(ttl);
    let parties = [enters(&barrier), enters(&barrier)];
    for party in parties {
        drop(soon(party).await);
    }
    let e = w.latch("ready").reset(1).await.unwrap_err();
    assert!(e.to_string().contains("within the last 24 h"), "{e}");
}

/// A request that reached one node only, and was given up, is not taken up by whoever hears of it later.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_given_up_stays_away() {
    let nodes = RedlockNodes::durable(3, Flavor::Valkey).unwrap();
    let w = connect(&nodes.url("node_timeout=20s")).await;
    let ann = enters(&phase(&w, 2).owner("ann"));
    comes_to(&w, (1, 0)).await;
    all_have_the_same(&nodes).await;
    let first = nodes.node(0);
    let value = first.command(&["HGET", KEY, "value"]).unwrap();
    assert!(value.contains("ann"), "{value}");
    ann.abort();
    comes_to(&w, (0, 0)).await;
    all_have_the_same(&nodes).await;
    // What is left of a request for which all gave a number, and only the first accepted the value.
    let numbers: Vec<String> = nodes
        .iter()
        .map(|node| node.command(&["INCR", "windlass:fence"]).unwrap())
        .collect();
    let number = numbers[0].trim();
    let fields = ["ballot", number, "value", &value];
    first
        .command(&[&["HSET", KEY], &fields[..]].concat())
        .unwrap();
    first.command(&["PEXPIRE", KEY, "86400000"]).unwrap();
    first.pause().unwrap();
    let left = eventually(SOON, || async {
        match phase(&w, 2).leave_as("ann").await {
            Ok(left) => {
                assert_eq!(left, Released::WasGone);
                true
            }
            Err(_) => false,
        }
    });
    assert!(left.await);
    first.resume().unwrap();
    for _ in 0..50 {
        assert_eq!(inside(&w).await, (0, 0), "it was given up");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// Connections break with whatever is under way: no round has more parties than it is for, none is had twice,
/// and nothing is left behind.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lost_answers_leave_nobody_behind() {
    let nodes = RedlockNodes::durable(3, Flavor::Valkey).unwrap();
    let proxy = |node: &RedisServer| FaultProxy::start(node.addr()).unwrap();
    let proxies: Vec<FaultProxy> = nodes.iter().map(proxy).collect();
    let hosts: Vec<String> = proxies.iter().map(|p| p.addr().to_string()).collect();
    let url = format!("redlock://{}?node_timeout=300ms", hosts.join(","));
    let stop = Arc::new(AtomicBool::new(false));
    let mut parties = Vec::new();
    for _ in 0..3 {
        let (w, stop) = (connect(&url).await, Arc::clone(&stop));
        parties.push(tokio::spawn(async move {
            let mut rounds = Vec::new();
            while !stop.load(Ordering::Relaxed) {
                let patience = Duration::from_millis(500);
                if let Ok(Some(party)) = phase(&w, 2).enter_within(patience).await {
                    rounds.push(party.round());
                    let _ = party.leave_within(patience).await;
                }
            }
            rounds
        }));
    }
    for _ in 0..40 {
        // The connections of a majority break, with whatever is under way.
        proxies[0].reset_all();
        proxies[1].reset_all();
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    stop.store(true, Ordering::Relaxed);
    let mut all = Vec::new();
    for party in parties {
        let rounds = soon(party).await;
        assert!(rounds.is_sorted_by(|a, b| a < b), "{rounds:?}");
        all.extend(rounds);
    }
    all.sort_unstable();
    for round in &all {
        let parties = all.iter().filter(|other| *other == round).count();
        assert!(parties <= 2, "{parties} in one round of 2");
    }
    let direct = connect(&nodes.url("")).await;
    comes_to(&direct, (0, 0)).await;
    // And it goes on as if nothing had happened.
    let pair = [enters(&phase(&direct, 2)), enters(&phase(&direct, 2))];
    for party in pair {
        drop(soon(party).await);
    }
}
