//! What `windlass doctor` reports about sentinels and clusters.

use std::time::Duration;

use windlass::{Coordinator, Finding, Severity};
use windlass_testkit::{RedisCluster, RedisReplicated, RedisServer, eventually};

async fn look(w: &Coordinator, topic: &str) -> Finding {
    let found = w.diagnose().await.unwrap();
    let of_topic = found.iter().find(|finding| finding.topic == topic);
    of_topic
        .cloned()
        .unwrap_or_else(|| panic!("nothing about {topic}: {found:?}"))
}

/// Nodes learn of each other gradually, and any node may be queried.
async fn says(w: &Coordinator, topic: &str, severity: Severity, words: &str) {
    let said = eventually(Duration::from_secs(20), || async {
        let found = look(w, topic).await;
        found.severity == severity && found.message.contains(words)
    });
    let said = said.await;
    let found = look(w, topic).await;
    assert!(said, "{found:?} does not say {words:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_the_persistence_of_one_server() {
    let redis = RedisServer::start().unwrap();
    let w = windlass::connect(&redis.url()).await.unwrap();
    says(&w, "persistence", Severity::Warning, "no append-only file").await;
    let set = |key, value| redis.command(&["CONFIG", "SET", key, value]).unwrap();
    set("appendonly", "yes");
    for (value, severity, words) in [
        ("always", Severity::Fine, "survive a power cut"),
        ("everysec", Severity::Fine, "about the last second"),
        ("no", Severity::Warning, "the kernel has not written yet"),
    ] {
        set("appendfsync", value);
        says(&w, "persistence", severity, words).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_sentinels() {
    let redis = RedisReplicated::with_movable_clocks().unwrap();
    let w = windlass::connect(&redis.url()).await.unwrap();
    says(&w, "role", Severity::Fine, "takes writes").await;
    says(&w, "sentinels", Severity::Fine, "3 of the 3 named answer").await;
    says(&w, "replicas", Severity::Warning, "2 connected").await;
    says(&w, "lag", Severity::Fine, "2 in sync").await;
    says(&w, "clock skew", Severity::Fine, "3 nodes").await;
    let wrong = &redis.servers()[2];
    wrong.shift_clock(60).unwrap();
    let words = format!("{} is at least 5", wrong.addr()); // 59 s and a fraction
    says(&w, "clock skew", Severity::Warning, &words).await;
    wrong.shift_clock(0).unwrap();
    says(&w, "clock skew", Severity::Fine, "3 nodes").await;
    says(&w, "eviction", Severity::Fine, "never evicted").await;
    says(&w, "persistence", Severity::Warning, "no append-only file").await;
    says(&w, "min-replicas", Severity::Warning, "goes on granting").await;
    let master = redis.master().unwrap();
    for (key, value) in [
        ("min-replicas-to-write", "1"),
        ("maxmemory", "100mb"),
        ("maxmemory-policy", "allkeys-lru"),
    ] {
        master.command(&["CONFIG", "SET", key, value]).unwrap();
    }
    says(&w, "min-replicas", Severity::Fine, "stops granting").await;
    says(&w, "eviction", Severity::Problem, "held locks are evicted").await;
    redis.sentinels()[0].kill().unwrap();
    says(&w, "sentinels", Severity::Warning, "2 of the 3").await;
    redis.sentinels()[1].kill().unwrap();
    says(&w, "sentinels", Severity::Problem, "too few to agree").await;
    for replica in redis.replicas().unwrap() {
        replica.kill().unwrap();
    }
    let alone = async || look(&w, "lag").await.severity == Severity::Problem;
    assert!(eventually(Duration::from_secs(10), alone).await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_a_cluster() {
    let cluster = RedisCluster::start().unwrap();
    let w = windlass::connect(&cluster.url()).await.unwrap();
    says(&w, "version", Severity::Fine, "cluster").await;
    says(&w, "cluster", Severity::Fine, "3 masters").await;
    says(&w, "slots", Severity::Fine, "all 16384").await;
    says(&w, "replicas", Severity::Warning, "every master has one").await;
    says(&w, "lag", Severity::Fine, "3 in sync").await;
    says(&w, "clock skew", Severity::Fine, "3 nodes").await;
    says(&w, "min-replicas", Severity::Warning, "goes on granting").await;
    let last = &cluster.nodes()[2];
    for (key, value) in [("maxmemory", "100mb"), ("maxmemory-policy", "allkeys-lru")] {
        last.command(&["CONFIG", "SET", key, value]).unwrap();
    }
    says(&w, "eviction", Severity::Problem, &last.addr().to_string()).await;
    // One replica less, and then a slot without an owner.
    cluster.nodes()[5].kill().unwrap();
    let alone = async || look(&w, "replicas").await.message.contains("has none");
    assert!(eventually(Duration::from_secs(20), alone).await);
    // A dead master does not prevent reports about the others.
    for node in &cluster.nodes()[..2] {
        let words = ["CONFIG", "SET", "min-replicas-to-write", "1"];
        node.command(&words).unwrap();
    }
    last.kill().unwrap();
    says(&w, "min-replicas", Severity::Warning, "1 did not answer").await;
    for node in cluster.nodes().iter().filter(|node| node.pid().is_some()) {
        let _ = node.command(&["CLUSTER", "DELSLOTS", "16383"]);
    }
    let uncovered = async || look(&w, "slots").await.severity == Severity::Problem;
    assert!(eventually(Duration::from_secs(20), uncovered).await);
}
