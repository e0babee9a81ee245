//! Read-write locks over a quorum whose nodes come and go.

use std::time::Duration;

use windlass::Coordinator;
use windlass_testkit::{Flavor, RedlockNodes, eventually};

const MS: Duration = Duration::from_millis(1);
/// Long enough for anything that should happen at once, on a busy machine.
const SOON: Duration = Duration::from_secs(20);

async fn connect(nodes: &RedlockNodes) -> Coordinator {
    windlass::connect(&nodes.url("")).await.unwrap()
}

/// Whoever holds while a node is down has it there, too, soon after it is back.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn read_repair_restores_an_rwlock_on_a_node_that_missed_it() {
    let nodes = RedlockNodes::durable(3, Flavor::Valkey).unwrap();
    let w = connect(&nodes).await;
    nodes.node(2).kill().unwrap();
    let ttl = 3000 * MS;
    let written = w.rwlock("written").ttl(ttl).write().await.unwrap();
    let read = w.rwlock("read").ttl(ttl).read().await.unwrap();
    let turned = w.rwlock("turned").ttl(ttl).write().await.unwrap();
    let turned = turned.downgrade().await.unwrap();
    nodes.node(2).restart().unwrap();
    let there = |name: &'static str| {
        let node = nodes.node(2);
        eventually(SOON, move || async move {
            let key = format!("windlass:rw:held:{{{name}}}");
            node.command(&["EXISTS", &key]).unwrap().trim() == "1"
        })
    };
    for name in ["written", "read", "turned"] {
        assert!(there(name).await, "{name} never came back");
    }
    // Now another may be lost: what is held outlives it, as what it is.
    nodes.node(0).kill().unwrap();
    tokio::time::sleep(ttl * 3 / 2).await; // several renewals, and the end of what was not renewed
    assert!(written.is_held() && read.is_held() && turned.is_held());
    let other = connect(&nodes).await;
    let busy = other.rwlock("written").try_read().await.unwrap();
    assert!(busy.acquired().is_none(), "nobody reads what is written");
    for name in ["read", "turned"] {
        let busy = other.rwlock(name).try_write().await.unwrap();
        assert!(busy.acquired().is_none(), "nobody writes {name}");
        let reads = other.rwlock(name).try_read().await.unwrap();
        assert!(reads.acquired().is_some(), "others read {name}");
    }
    // What is released stays released, on all nodes.
    assert!(written.release().await.unwrap().was_held());
    let next = other.rwlock("written").write_within(SOON).await.unwrap();
    assert!(next.acquired().is_some());
}
