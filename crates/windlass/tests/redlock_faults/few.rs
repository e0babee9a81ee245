//! Locks begin on a majority of the nodes: the loss of some of those must cost nothing.

use windlass_testkit::conformance::is_free;
use windlass_testkit::{Flavor, RedlockNodes, eventually};

use super::{MS, SOON, connect};

fn nodes_that_have(nodes: &RedlockNodes, name: &str) -> Vec<usize> {
    let has_it = |node: &usize| {
        let told = nodes.node(*node).command(&["EXISTS", name]);
        told.unwrap().trim() == "1"
    };
    (0..5).filter(has_it).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_of_the_nodes_that_a_lock_began_on_may_die_right_after() {
    let nodes = RedlockNodes::durable(5, Flavor::Valkey).unwrap();
    let w = connect(&nodes, "").await;
    let other = connect(&nodes, "").await;
    let held = w.lock("held").ttl(2500 * MS).acquire().await.unwrap();
    let began_on = nodes_that_have(&nodes, "held");
    assert!(began_on.len() >= 3, "{began_on:?}");
    nodes.node(began_on[0]).kill().unwrap();
    nodes.node(began_on[1]).kill().unwrap();
    tokio::time::sleep(3000 * MS).await; // what was granted at first has ended by now
    assert!(held.is_held());
    let busy = other.lock("held").try_acquire().await.unwrap();
    assert!(busy.acquired().is_none(), "somebody else got it");
    assert!(held.release().await.unwrap().was_held());
    is_free(&other, "held").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_held_for_a_moment_is_on_all_nodes_and_leaves_them_all() {
    let nodes = RedlockNodes::durable(5, Flavor::Valkey).unwrap();
    let w = connect(&nodes, "").await;
    let first = w.lock("stock").acquire().await.unwrap();
    let waiting = tokio::spawn({
        let w = w.clone();
        async move { w.lock("stock").acquire().await.unwrap() }
    });
    let everywhere = || async { nodes_that_have(&nodes, "stock").len() == 5 };
    assert!(eventually(SOON, everywhere).await, "the first");
    assert!(first.release().await.unwrap().was_held());
    let second = waiting.await.unwrap();
    assert!(eventually(SOON, everywhere).await, "the one who waited");
    assert!(second.release().await.unwrap().was_held());
    let nowhere = || async { nodes_that_have(&nodes, "stock").is_empty() };
    assert!(eventually(SOON, nowhere).await, "nobody");
}
