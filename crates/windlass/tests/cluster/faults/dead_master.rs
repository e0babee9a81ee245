//! Dead masters are distinguished from living ones, and nothing is left behind.

use std::time::Duration;

use windlass::{ErrorKind, RetryPolicy};
use windlass_testkit::conformance::SOON;
use windlass_testkit::{RedisCluster, eventually};

use super::{MS, connect};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_lock_is_kept_when_one_master_is_gone() {
    let cluster = RedisCluster::start().unwrap();
    // Living nodes keep serving without the others, and no replica takes over meanwhile.
    for node in cluster.nodes() {
        for key in [
            ["cluster-require-full-coverage", "no"],
            ["cluster-replica-no-failover", "yes"],
        ] {
            node.command(&["CONFIG", "SET", key[0], key[1]]).unwrap();
        }
    }
    let w = connect(&cluster).await;
    // One lock on each master; the last master is dead, so that all other locks are held when that
    // is found.
    let names: Vec<String> = (0..100).map(|i| format!("n{i:02}")).collect();
    let mut chosen: Vec<String> = Vec::new();
    let mut ports = Vec::new();
    for name in names {
        let port = cluster.master_of(&name).unwrap().port();
        if !ports.contains(&port) {
            ports.push(port);
            chosen.push(name);
        }
    }
    assert_eq!(chosen.len(), 3);
    let long = Duration::from_secs(120);
    let all = || w.locks(chosen.clone()).ttl(long).retry(RetryPolicy::none());
    assert!(all().acquire().await.unwrap().release().await.is_ok());
    let gone = cluster.master_of(&chosen[2]).unwrap();
    for deed in ["frozen", "dead"] {
        match deed {
            "frozen" => gone.pause().unwrap(),
            _ => gone.kill().unwrap(),
        }
        let refused = tokio::time::timeout(4 * SOON, all().acquire()).await;
        let refused = refused.expect("in time").expect_err("one is gone");
        let kind = refused.kind();
        let unknown = [ErrorKind::Unreachable, ErrorKind::OutcomeUnknown];
        assert!(unknown.contains(&kind), "{deed}: {refused}");
        for name in &chosen[..2] {
            let free = eventually(4 * SOON, || async {
                let state = w.lock(name).inspect().await;
                state.is_ok_and(|state| state.holder.is_none())
            });
            assert!(free.await, "{deed}: {name} is given back");
        }
        if deed == "frozen" {
            gone.resume().unwrap();
            let back = eventually(4 * SOON, || async { all().acquire().await.is_ok() });
            assert!(back.await, "what was frozen is given back as well");
        }
    }
    // A slot without an owner, and one whose master is dead, are errors in time; other slots are
    // served.
    let name = &chosen[0];
    let slot = cluster.slot(name).unwrap().to_string();
    for node in cluster.nodes().iter().filter(|node| node.pid().is_some()) {
        let _ = node.command(&["CLUSTER", "DELSLOTS", &slot]);
    }
    for name in [&chosen[0], &chosen[2]] {
        let lock = w.lock(name).retry(RetryPolicy::none());
        let lost = eventually(4 * SOON, || async {
            let refused = tokio::time::timeout(4 * SOON, lock.acquire()).await;
            let refused = refused.expect("in time");
            refused.is_err_and(|e| e.kind() == ErrorKind::Unreachable)
        });
        assert!(lost.await, "{name} cannot be had");
    }
    let guard = w.lock(&chosen[1]).acquire().await.unwrap();
    tokio::time::sleep(10 * MS).await;
    assert!(guard.release().await.unwrap().was_held());
}
