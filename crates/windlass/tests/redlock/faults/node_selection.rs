//! Locks start on a majority of the nodes: losing some of those must cost nothing.

use windlass_testkit::conformance::wait_until_free;
use windlass_testkit::{Flavor, RedlockNodes, eventually};

use super::{MS, SOON, connect};

fn nodes_that_have(nodes: &RedlockNodes, name: &str) -> Vec<usize> {
    let has_it = |node: &usize| {
        let reply = nodes.node(*node).command(&["EXISTS", name]);
        reply.unwrap().trim() == "1"
    };
    (0..5).filter(has_it).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_first_nodes_may_die_after_the_grant() {
    let nodes = RedlockNodes::durable(5, Flavor::Valkey).unwrap();
    let w = connect(&nodes, "").await;
    let other = connect(&nodes, "").await;
    let held = w.lock("held").ttl(2500 * MS).acquire().await.unwrap();
    let began_on = nodes_that_have(&nodes, "held");
    assert!(began_on.len() >= 3, "{began_on:?}");
    nodes.node(began_on[0]).kill().unwrap();
    nodes.node(began_on[1]).kill().unwrap();
    tokio::time::sleep(3000 * MS).await; // the first grant has expired by now
    assert!(held.is_held());
    let busy = other.lock("held").try_acquire().await.unwrap();
    assert!(busy.acquired().is_none(), "another client got it");
    assert!(held.release().await.unwrap().was_held());
    wait_until_free(&other, "held").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn grant_reaches_all_nodes_and_release_clears_them() {
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

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn idle_node_votes_again_before_it_is_needed() {
    let nodes = super::without_persistence(3).await;
    let w = connect(&nodes, "max_ttl=2s").await;
    let mut by_name: Vec<usize> = (0..3).collect();
    by_name.sort_by_key(|node| nodes.node(*node).addr().to_string());
    let (asked_first, spared) = (by_name[0], by_name[2]);
    let knows_its_number = || {
        let reply = nodes.node(spared).command(&["GET", "windlass:fence"]);
        reply.is_ok_and(|number| number.trim().parse::<u64>().is_ok())
    };
    nodes.node(spared).restart().unwrap();
    assert!(!knows_its_number());
    // Held for a moment only, so that it never reaches all nodes.
    let served = || async {
        // On a busy machine, a reply may arrive after such a short claim has expired.
        if let Ok(attempt) = w.lock("stock").ttl(500 * MS).try_acquire().await
            && let Some(guard) = attempt.acquired()
        {
            let _ = guard.release().await;
        }
        knows_its_number()
    };
    assert!(eventually(SOON, served).await, "it was forgotten");
    nodes.node(asked_first).kill().unwrap();
    let lock = w.lock("stock").ttl(2000 * MS);
    let served = || async {
        let attempt = lock.acquire_within(SOON).await;
        attempt.is_ok_and(|attempt| attempt.acquired().is_some())
    };
    assert!(
        eventually(SOON, served).await,
        "two are left, and both vote"
    );
}
