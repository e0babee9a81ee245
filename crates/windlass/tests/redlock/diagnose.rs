//! What `windlass doctor` reports about the nodes of a quorum.

use windlass::{Coordinator, Fence, Severity};
use windlass_testkit::{Flavor, RedisServer, RedlockNodes, exhausted_fences_are_refused};

async fn connect(nodes: &RedlockNodes, parameters: &str) -> Coordinator {
    windlass::connect(&nodes.url(parameters)).await.unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn diagnose_reports_each_node() {
    let durable = RedisServer::builder()
        .binary(Flavor::Valkey)
        .append_only(true);
    let nodes = RedlockNodes::start(3, durable.movable_clock()).unwrap();
    let w = connect(&nodes, "").await;
    let severity_of = |findings: &[windlass::Finding], topic: &str, word: &str| {
        let found = |f: &&windlass::Finding| f.topic == topic && f.message.contains(word);
        let found = findings.iter().find(found).map(|f| f.severity);
        found.unwrap_or_else(|| panic!("nothing about {topic} with {word:?}: {findings:?}"))
    };
    let findings = w.diagnose().await.unwrap();
    assert_eq!(
        severity_of(&findings, "quorum", "3 of 3 nodes have a vote"),
        Severity::Fine
    );
    for node in &nodes {
        let name = node.addr().to_string();
        for topic in ["version", "role", "persistence", "eviction", "clock"] {
            assert_eq!(severity_of(&findings, topic, &name), Severity::Fine);
        }
    }
    assert_eq!(
        severity_of(&findings, "clock skew", "3 nodes"),
        Severity::Fine
    );
    // One clock against the others, whatever this machine's clock says: ahead of them, and behind.
    let one = nodes.node(1).addr();
    for (shifts, words) in [
        ([0, 60, 0], format!("{one} is at least 5")), // 59 s and a fraction
        ([60, 0, 60], format!("ahead of {one}")),
    ] {
        for (node, seconds) in (&nodes).into_iter().zip(shifts) {
            node.shift_clock(seconds).unwrap();
        }
        let findings = w.diagnose().await.unwrap();
        assert_eq!(
            severity_of(&findings, "clock skew", &words),
            Severity::Warning
        );
    }
    for node in &nodes {
        node.shift_clock(0).unwrap();
    }
    nodes.node(0).kill().unwrap();
    nodes
        .node(1)
        .command(&["CONFIG", "SET", "appendfsync", "everysec"])
        .unwrap();
    nodes
        .node(2)
        .command(&["CONFIG", "SET", "maxmemory", "100mb"])
        .unwrap();
    nodes
        .node(2)
        .command(&["CONFIG", "SET", "maxmemory-policy", "allkeys-lru"])
        .unwrap();
    // Another client, which has not known the node as durable.
    let w = connect(&nodes, "max_ttl=1h").await;
    let findings = w.diagnose().await.unwrap();
    let name = |node: usize| nodes.node(node).addr().to_string();
    assert_eq!(
        severity_of(&findings, "quorum", "1 of 3 nodes have a vote"),
        Severity::Problem
    );
    assert_eq!(severity_of(&findings, "node", &name(0)), Severity::Warning);
    assert_eq!(
        severity_of(&findings, "quarantine", &name(1)),
        Severity::Warning
    );
    assert_eq!(
        severity_of(&findings, "eviction", &name(2)),
        Severity::Problem
    );
}

/// The counters of a majority are beyond 2^53, where numbers of a script are not exact.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fences_too_high_to_be_exact_are_refused() {
    let nodes = RedlockNodes::durable(3, Flavor::Redis).unwrap();
    let w = connect(&nodes, "").await;
    let set = |count: usize, counter: u64| {
        for node in nodes.iter().take(count) {
            let words = ["SET", "windlass:fence", &counter.to_string()];
            node.command(&words).unwrap();
        }
    };
    let counters = [(2, Fence::MAX.get()), (3, 1 << 53), (3, (1 << 53) + 1)];
    let read = async || w.rwlock("table").read().await.map(drop);
    exhausted_fences_are_refused(&w, 3, set, &counters, read).await;
}
