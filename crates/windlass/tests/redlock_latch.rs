//! Latches over a quorum whose nodes die, come back, and forget.

use std::time::Duration;

use windlass::{Coordinator, ErrorKind, Opening, Options};
use windlass_testkit::{Direction, FaultProxy, Flavor, RedisServer, RedlockNodes, eventually};

/// Long enough for anything that should happen at once, on a busy machine.
const SOON: Duration = Duration::from_secs(20);

/// A patient client: what is slow on a busy machine is not taken for lost.
async fn connect(url: &str) -> Coordinator {
    let options = Options::new().call_timeout(Duration::from_secs(60));
    options.connect(url).await.unwrap()
}

/// What remains, as soon as enough nodes answer.
async fn remaining(w: &Coordinator) -> u32 {
    let begun = std::time::Instant::now();
    loop {
        match w.latch("ready").inspect().await {
            Ok(seen) => return seen.expect("it was begun").remaining,
            Err(e) => assert!(e.is_retryable() && begun.elapsed() < 2 * SOON, "{e}"),
        }
    }
}

/// Counts down, however long it takes until enough nodes are back.
async fn counts_down_to(w: &Coordinator, left: u32) {
    let counted = eventually(SOON, || async {
        match w.latch("ready").count_down().await {
            Ok(remaining) => {
                assert_eq!(remaining, left);
                true
            }
            Err(e) => {
                assert!(e.is_retryable(), "{e}");
                // It may have been counted all the same.
                matches!(w.latch("ready").inspect().await, Ok(Some(seen)) if seen.remaining == left)
            }
        }
    });
    assert!(counted.await, "never counted down to {left}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn any_two_of_five_may_die() {
    let nodes = RedlockNodes::durable(5, Flavor::Valkey).unwrap();
    let url = nodes.url("node_timeout=5s");
    let (a, b) = (connect(&url).await, connect(&url).await);
    a.latch("ready").reset(6).await.unwrap();
    let waiting = tokio::spawn({
        let b = b.clone();
        async move { b.latch("ready").wait().await.unwrap() }
    });
    counts_down_to(&a, 5).await;
    // Each time others: what is known is carried from majority to majority.
    for (left, pair) in [(3, (0, 1)), (1, (2, 3))] {
        nodes.node(pair.0).kill().unwrap();
        nodes.node(pair.1).kill().unwrap();
        counts_down_to(&b, left + 1).await;
        assert_eq!(remaining(&a).await, left + 1);
        nodes.node(pair.0).restart().unwrap();
        nodes.node(pair.1).restart().unwrap();
        counts_down_to(&a, left).await;
    }
    assert!(!waiting.is_finished());
    nodes.node(0).kill().unwrap();
    nodes.node(4).kill().unwrap();
    counts_down_to(&a, 0).await;
    let opened = tokio::time::timeout(SOON, waiting).await.unwrap().unwrap();
    assert_eq!(opened, Opening::Opened);
    // Three are too many, and each is named.
    nodes.node(1).kill().unwrap();
    let e = a.latch("ready").inspect().await.unwrap_err();
    assert_eq!(e.kind(), ErrorKind::Unreachable, "{e}");
    let name = nodes.node(1).addr().to_string();
    assert!(e.to_string().contains(&format!("{name}: ")), "{e}");
}

/// Two that keep everything and one that forgets when it is started anew.
struct Mixed {
    durable: RedlockNodes,
    forgetful: RedlockNodes,
}

impl Mixed {
    fn start() -> Mixed {
        Mixed {
            durable: RedlockNodes::durable(2, Flavor::Valkey).unwrap(),
            forgetful: RedlockNodes::forgetful(1, Flavor::Valkey).unwrap(),
        }
    }

    /// A client that all three of them vote for.
    async fn client(&self) -> Coordinator {
        let hosts = self.durable.iter().chain(&self.forgetful);
        let hosts: Vec<String> = hosts.map(|node| node.addr().to_string()).collect();
        let w = connect(&format!(
            "redlock://{}?max_ttl=2s&node_timeout=5s",
            hosts.join(",")
        ))
        .await;
        self.all_vote(&w).await;
        w
    }

    async fn all_vote(&self, w: &Coordinator) {
        let all = eventually(SOON, || async {
            let findings = w.examine().await.unwrap();
            let all = |f: &windlass::Finding| f.message.contains("3 of 3 nodes have a vote");
            findings.iter().any(all)
        });
        assert!(all.await, "one has no vote");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_forgot_is_not_asked_what_it_knew() {
    let nodes = Mixed::start();
    let [a, b, c] = [
        nodes.durable.node(0),
        nodes.durable.node(1),
        nodes.forgetful.node(0),
    ];
    let w = nodes.client().await;
    w.latch("ready").reset(50).await.unwrap();
    // A node that is late may miss a change: until C has the latest, too.
    let ballot = |node: &RedisServer| {
        let told = node.command(&["HGET", "windlass:quorum:latch:{ready}", "ballot"]);
        told.unwrap()
    };
    let mut left = 50;
    while ballot(c) != ballot(a) {
        left -= 1;
        counts_down_to(&w, left).await;
    }
    // B misses one; A and C, which has forgotten nothing yet, are enough.
    b.kill().unwrap();
    counts_down_to(&w, left - 1).await;
    // C forgets, and votes again; A is gone, and B knows only how it was before.
    b.restart().unwrap();
    c.restart().unwrap();
    let other = nodes.client().await;
    a.kill().unwrap();
    let told = eventually(SOON, || async {
        let e = other.latch("ready").inspect().await.unwrap_err();
        let hint = e.hint().unwrap().contains("appendfsync always");
        e.to_string().contains("may have forgotten") && hint
    });
    assert!(told.await, "why C is not asked");
    let e = other.latch("ready").count_down().await.unwrap_err();
    assert_eq!(e.kind(), ErrorKind::Unreachable, "{e}");
    // With A, there are two again that remember; and what they write, C knows from then on.
    a.restart().unwrap();
    counts_down_to(&other, left - 2).await;
    nodes.all_vote(&other).await;
    counts_down_to(&other, left - 3).await;
    assert_eq!(remaining(&other).await, left - 3);
}

/// What only one node has accepted, because whoever wrote it died, is seen by all once it was seen.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_seen_once_stays() {
    let nodes = RedlockNodes::durable(3, Flavor::Valkey).unwrap();
    let w = connect(&nodes.url("node_timeout=1s")).await;
    w.latch("ready").reset(2).await.unwrap();
    assert_eq!(w.latch("ready").count_down().await.unwrap(), 1);
    // What somebody leaves behind who has counted to zero on the first node, and no further.
    let key = "windlass:quorum:latch:{ready}";
    let first = nodes.node(0);
    let number = first.command(&["INCR", "windlass:fence"]).unwrap();
    let value = first.command(&["HGET", key, "value"]).unwrap();
    let value = value.replacen("1 2 1 ", "1 2 0 ", 1);
    assert!(value.starts_with("1 2 0 "), "{value:?}");
    let number = number.trim();
    let fields = ["promised", number, "ballot", number, "value", &value];
    let written = first.command(&[&["HSET", key], &fields[..]].concat());
    assert!(written.is_ok(), "{written:?}");
    nodes.node(1).pause().unwrap();
    assert_eq!(remaining(&w).await, 0);
    nodes.node(1).resume().unwrap();
    first.pause().unwrap();
    assert_eq!(remaining(&w).await, 0, "it was open, and cannot close");
    first.resume().unwrap();
}

/// Three nodes, each behind a proxy.
fn behind_proxies(nodes: &RedlockNodes, node_timeout: &str) -> (Vec<FaultProxy>, String) {
    let proxy = |node: &RedisServer| FaultProxy::start(node.addr()).unwrap();
    let proxies: Vec<FaultProxy> = nodes.iter().map(proxy).collect();
    let hosts: Vec<String> = proxies.iter().map(|p| p.addr().to_string()).collect();
    let url = format!("redlock://{}?node_timeout={node_timeout}", hosts.join(","));
    (proxies, url)
}

/// All nodes have written it down, and no answer says so: whoever counted asks again, as the same.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lost_answer_is_counted_once() {
    let nodes = RedlockNodes::durable(3, Flavor::Valkey).unwrap();
    let (proxies, url) = behind_proxies(&nodes, "10s");
    let (w, direct) = (connect(&url).await, connect(&nodes.url("")).await);
    direct.latch("ready").reset(9).await.unwrap();
    // So that what is written is seen before the answer arrives.
    let late = Duration::from_millis(300);
    for left in [8, 7] {
        proxies
            .iter()
            .for_each(|p| p.delay(Direction::ToClient, late));
        let counting = tokio::spawn({
            let w = w.clone();
            async move { w.latch("ready").count_down().await }
        });
        let written = eventually(SOON, || async { remaining(&direct).await == left });
        assert!(written.await, "it was asked for");
        // On a machine so slow that the answer came first, nothing is lost, and what follows holds as well.
        for proxy in &proxies {
            proxy.reset_all();
            proxy.heal();
        }
        let counted = tokio::time::timeout(2 * SOON, counting).await.unwrap();
        match counted.unwrap() {
            Ok(remained) => assert_eq!(remained, left, "what remained after it"),
            // All of its tries may have met connections that were about to break.
            Err(e) => assert!(e.is_retryable(), "{e}"),
        }
        assert_eq!(remaining(&direct).await, left, "counted twice");
    }
}

/// The connections of a majority break again and again, with whatever is under way.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_counted_stays_counted_while_connections_break() {
    let nodes = RedlockNodes::durable(3, Flavor::Valkey).unwrap();
    let (proxies, url) = behind_proxies(&nodes, "300ms");
    let w = connect(&url).await;
    w.latch("ready").reset(50).await.unwrap();
    let counting = tokio::spawn({
        let w = w.clone();
        async move {
            let mut counted = 0;
            for _ in 0..20 {
                // Nobody knows of those whose last answer was lost, too.
                counted += u32::from(w.latch("ready").count_down().await.is_ok());
            }
            counted
        }
    });
    while !counting.is_finished() {
        proxies[0].reset_all();
        proxies[1].reset_all();
        tokio::time::sleep(Duration::from_millis(25)).await;
    }
    let counted = counting.await.unwrap();
    let direct = connect(&nodes.url("")).await;
    let seen = direct.latch("ready").inspect().await.unwrap().unwrap();
    assert!(50 - seen.remaining >= counted, "{counted}: {seen:?}");
    assert!(50 - seen.remaining <= 20, "counted twice: {seen:?}");
}

/// How often a node wrote something down: a number that it gave, or a value.
fn writes(node: &RedisServer) -> u32 {
    let told = node.command(&["INFO", "commandstats"]).unwrap();
    let its = told
        .lines()
        .find_map(|l| l.strip_prefix("cmdstat_hset:calls="));
    its.map_or(0, |calls| calls.split(',').next().unwrap().parse().unwrap())
}

/// A tenth of a second away, each way: whoever is about to write is let write for as long as that takes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn writers_that_are_far_away_take_turns() {
    let nodes = RedlockNodes::durable(3, Flavor::Valkey).unwrap();
    let (proxies, url) = behind_proxies(&nodes, "5s");
    let mut clients = Vec::new();
    for _ in 0..6 {
        clients.push(connect(&url).await);
    }
    clients[0].latch("ready").reset(12).await.unwrap();
    let before = writes(nodes.node(0));
    for proxy in &proxies {
        for direction in [Direction::ToServer, Direction::ToClient] {
            proxy.delay(direction, Duration::from_millis(100));
        }
    }
    let counts = |(nth, w): (u32, Coordinator)| async move {
        // Not in step: each comes while others are about to write.
        tokio::time::sleep(nth * Duration::from_millis(35)).await;
        for _ in 0..2 {
            w.latch("ready").count_down().await.unwrap();
        }
    };
    let all = (0..).zip(clients).map(counts).map(tokio::spawn);
    for done in all.collect::<Vec<_>>() {
        done.await.unwrap();
    }
    let direct = connect(&nodes.url("")).await;
    assert_eq!(remaining(&direct).await, 0, "each was counted once");
    // Two for each change, and as many for each that was thrown back before it knew how far away they are.
    let writes = writes(nodes.node(0)) - before;
    println!("{writes} writes for 12 changes");
    assert!(writes <= 100, "{writes} for 12 changes");
}

/// Known for as long as was said after the last change, as elsewhere; and kept for no more than a day.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn it_ends_in_time() {
    let nodes = RedlockNodes::durable(3, Flavor::Valkey).unwrap();
    let w = connect(&nodes.url("")).await;
    let latch = w.latch("ready").keep(Duration::from_secs(2));
    latch.reset(1).await.unwrap();
    for node in &nodes {
        let left = node.command(&["PTTL", "windlass:quorum:latch:{ready}"]);
        let left: i64 = left.unwrap().trim().parse().unwrap();
        let day = 24 * 60 * 60 * 1000;
        assert!((-2..=day).contains(&left) && left != -1, "{left}");
    }
    let gone = eventually(SOON, || async { latch.inspect().await.unwrap().is_none() });
    assert!(gone.await);
    assert_eq!(latch.reset(5).await.unwrap(), 5, "it begins anew");
}
