//! Claims that start on a majority: where they are, and what the failure of one of these nodes
//! costs.

use std::time::Duration;

use windlass_testkit::{Direction, FaultProxy, eventually};

use super::fixture::{Claimant, SOON, TestQuorum};
use windlass_core::store::{Kind, Released, Renewed};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_claim_starts_on_a_majority_and_reaches_all_nodes_when_renewed() {
    let quorum = TestQuorum::start_patient().await;
    let brief = quorum.partial_claimant("brief", 1);
    brief.is_granted().await;
    assert_eq!(quorum.nodes_with_lock(), quorum.preferred());
    brief.release().await;
    quorum.lock_is_on_no_node().await;

    let long = quorum.partial_claimant("long", 2);
    let fence = long.is_granted().await;
    assert_eq!(quorum.nodes_with_lock(), quorum.preferred());
    assert_eq!(long.renew(fence).await, Renewed::Held { fence });
    quorum.lock_is_on_all_nodes().await;
    long.release().await;
    quorum.lock_is_on_no_node().await;

    // A claim that is not renewed early is requested from all nodes at once.
    let lasting = quorum.claimant(Kind::Lock, "lasting", 3);
    lasting.is_granted().await;
    quorum.lock_is_on_all_nodes().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_waiter_leaves_skipped_nodes_to_the_holder() {
    let quorum = TestQuorum::start_patient().await;
    let holder = quorum.partial_claimant("holder", 1);
    let fence = holder.is_granted().await;
    let next = quorum.partial_claimant("next", 2);
    let ticket = next.is_queued().await;
    assert!(matches!(next.renew(ticket).await, Renewed::Waiting { .. }));
    let skipped = quorum.skipped_node();
    for _ in 0..20 {
        // Long enough for a request in the background to arrive.
        tokio::time::sleep(Duration::from_millis(10)).await;
        assert!(!quorum.node_has_lock(skipped), "requested by the waiter");
    }
    assert_eq!(holder.renew(fence).await, Renewed::Held { fence });
    quorum.lock_is_on_all_nodes().await;
    // The waiter is on all nodes once it holds, without a renewal.
    holder.release().await;
    next.renew_until_held(ticket).await;
    quorum.lock_is_on_all_nodes().await;
    next.release().await;
    quorum.lock_is_on_no_node().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_claim_survives_the_loss_of_a_node_that_granted_it() {
    let quorum = TestQuorum::start_patient().await;
    let holder = quorum.partial_claimant("holder", 1);
    let fence = holder.is_granted().await;
    let next = quorum.partial_claimant("next", 2);
    let ticket = next.is_queued().await;
    let lost = quorum.a_preferred_node();
    quorum.servers.node(lost).kill().unwrap();
    // One renewal, or another if the connection was not known to be broken yet.
    let mut renewed = Vec::new();
    for _ in 0..3 {
        renewed.push(holder.try_renew(fence).await);
        if matches!(renewed.last(), Some(Some(Renewed::Held { .. }))) {
            break;
        }
    }
    assert_eq!(
        renewed.last(),
        Some(&Some(Renewed::Held { fence })),
        "{renewed:?}"
    );
    assert!(quorum.node_has_lock(quorum.skipped_node()));
    // The waiter still gets its turn.
    holder.release().await;
    assert!(next.renew_until_held(ticket).await > fence);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_silent_node_delays_only_one_acquire() {
    let quorum = TestQuorum::start().await;
    let silent = quorum.a_preferred_node();
    assert!(!quorum.node(silent).is_suspect());
    quorum.proxies[silent].blackhole(Direction::ToClient);
    let first = quorum.partial_claimant("first", 1);
    first.is_granted().await;
    assert!(quorum.node(silent).is_suspect(), "so all nodes are called");
    first.release().await;
    let second = quorum.partial_claimant("second", 2);
    second.is_granted().await;
    assert!(quorum.node_has_lock(quorum.skipped_node()));
    second.release().await;
    quorum.proxies.iter().for_each(FaultProxy::heal);
    // Once it replies in time, it is relied on again.
    let mut claim = 3;
    let relied_on = eventually(SOON, || {
        let again = quorum.partial_claimant(&format!("again{claim}"), claim);
        claim += 1;
        async {
            let again = again;
            again.is_granted().await;
            again.release().await;
            !quorum.node(silent).is_suspect()
        }
    });
    assert!(relied_on.await, "still suspect");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_release_does_not_wait_for_a_silent_node() {
    let quorum = TestQuorum::start_patient().await;
    let holder = quorum.partial_claimant("holder", 1);
    holder.is_granted().await;
    let silent = quorum.a_preferred_node();
    quorum.proxies[silent].blackhole(Direction::ToServer);
    quorum.set_latency(Duration::ZERO);
    let (name, owner) = (Claimant::name(), holder.owner.clone());
    let released = holder.store.release(Kind::Lock, name, owner, None).await;
    assert_eq!(released.unwrap(), Released::WasHeld);
    assert!(quorum.node(silent).is_suspect());
    assert!(quorum.node_has_lock(silent), "it is not released there yet");
    quorum.proxies.iter().for_each(FaultProxy::heal);
    quorum.lock_is_on_no_node().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_claim_that_lost_its_majority_is_released_on_the_other_nodes() {
    let quorum = TestQuorum::start_patient().await;
    let holder = quorum.partial_claimant("holder", 1);
    let fence = holder.is_granted().await;
    quorum.delete_lock_on_preferred_nodes();
    // The renewal requests it from the skipped node, where the lock is free.
    assert_eq!(holder.renew(fence).await, Renewed::Gone);
    // The next holder need not wait for the ttl.
    quorum.lock_is_on_no_node().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_rest_of_a_lost_claim_does_not_count_as_waiting() {
    let quorum = TestQuorum::start_patient().await;
    let holder = quorum.claimant(Kind::Lock, "holder", 1);
    holder.is_granted().await;
    quorum.lock_is_on_all_nodes().await;
    let name = Claimant::name();
    quorum.delete_lock_on_preferred_nodes();
    // So that the node that has the lock replies first.
    quorum.preferred().iter().for_each(|node| {
        quorum.proxies[node].delay(Direction::ToClient, Duration::from_millis(100));
    });
    let (owner, wake) = (holder.owner.clone(), holder.wake);
    let released = holder.store.release(Kind::Lock, name, owner, Some(wake));
    assert_eq!(released.await.unwrap(), Released::WasGone);
    quorum.lock_is_on_no_node().await;
}
