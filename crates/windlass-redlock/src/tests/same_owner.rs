//! Owners that acquire again before an earlier claim of theirs is released, and claims that are
//! ahead of each other on different nodes.

use windlass_testkit::eventually;

use super::fixture::{Claimant, SOON, TestQuorum};
use crate::nodes::NodeSet;
use crate::waiters::Waiters;
use windlass_core::name::Name;
use windlass_core::store::{AcquireRequest, Kind, OnBusy, Released, Renewal, Renewed, WakeAddress};
use windlass_core::{Fence, Owner};

fn name(text: &str) -> Name {
    Name::new("test", None, text).unwrap()
}

fn job() -> Owner {
    Owner::new("job").unwrap()
}

fn request(claim: u64) -> AcquireRequest {
    request_of(job(), claim)
}

fn request_of(owner: Owner, claim: u64) -> AcquireRequest {
    AcquireRequest {
        ttl: SOON,
        on_busy: OnBusy::Enqueue,
        record_now: true,
        wake: WakeAddress { client: 7, claim },
        ..AcquireRequest::new(Kind::Lock, name("stock"), owner)
    }
}

fn renewal(of: &str, claim: u64) -> Renewal {
    Renewal {
        name: name(of),
        ..Renewal::of(&request(claim), Fence::new(1))
    }
}

fn waits(waiters: &Waiters, claim: u64) -> bool {
    waiters.find_waiting(claim, Fence::new(0)).is_some()
}

fn release(waiters: &Waiters, of: &str, claim: Option<u64>) {
    waiters.release(Kind::Lock, &name(of), &job(), claim);
}

#[test]
fn releasing_an_earlier_claim_keeps_a_later_one_waiting() {
    let waiters = Waiters::default();
    waiters.insert(request(5), NodeSet::all(3));
    release(&waiters, "stock", Some(4));
    assert!(waits(&waiters, 5), "it came after");
    release(&waiters, "stock", Some(5));
    assert!(!waits(&waiters, 5));
    waiters.insert(request(6), NodeSet::all(3));
    release(&waiters, "stock", None);
    assert!(!waits(&waiters, 6), "all of them");
}

#[test]
fn a_released_claim_stops_waiting_although_a_later_one_replaced_it() {
    let waiters = Waiters::default();
    waiters.insert(request(4), NodeSet::all(3));
    waiters.insert(request(5), NodeSet::all(3));
    release(&waiters, "stock", Some(4));
    assert!(!waits(&waiters, 4) && waits(&waiters, 5));
    // Also if the later one was granted since.
    waiters.insert(request(6), NodeSet::all(3));
    waiters.insert(request(7), NodeSet::all(3));
    waiters.remove(5);
    waiters.remove(7);
    release(&waiters, "stock", Some(6));
    assert!(!waits(&waiters, 6));
}

#[test]
fn read_repair_does_not_request_a_released_claim() {
    let waiters = Waiters::default();
    let is_sent = |of: &str, claim: u64| {
        let mut sent = false;
        waiters.send_unless_released(&renewal(of, claim), || sent = true);
        sent
    };
    assert!(is_sent("stock", 4));
    release(&waiters, "stock", Some(4));
    assert!(!is_sent("stock", 4));
    assert!(is_sent("stock", 5), "a later claim of the same owner");
    assert!(is_sent("shop", 3), "another lock of the same owner");
    // However many other claims are released meanwhile.
    let release_others = |many: u64| {
        for claim in 10..10 + many {
            release(&waiters, "shop", Some(claim));
        }
    };
    release_others(4000);
    assert!(!is_sent("stock", 4));
    // But releases are not kept for ever.
    release_others(4000);
    release(&waiters, "shop", None);
    assert!(is_sent("stock", 4) && !is_sent("shop", u64::MAX));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_holder_gets_a_node_that_granted_a_waiter_first() {
    let quorum = TestQuorum::start_patient().await;
    let holder = quorum.claimant(Kind::Lock, "holder", 1);
    let fence = holder.is_granted().await;
    quorum.lock_is_on_all_nodes().await;
    // One node loses the lock, and grants it to the next claim.
    let amnesiac = quorum.servers.node(2);
    for key in amnesiac.command(&["KEYS", "*stock*"]).unwrap().lines() {
        amnesiac.command(&["DEL", key]).unwrap();
    }
    let next = quorum.claimant(Kind::Lock, "next", 2);
    let ticket = next.is_queued().await;
    let owner = || amnesiac.command(&["GET", "stock"]).unwrap();
    let ahead = eventually(SOON, || async { owner() == "next" });
    assert!(ahead.await, "it holds that node");
    // The holder queues there, and gets the node when the waiter yields.
    let handed_over = eventually(SOON, || async {
        assert_eq!(holder.renew(fence).await, Renewed::Held { fence });
        let waits = next.renew(ticket).await;
        assert!(matches!(waits, Renewed::Waiting { .. }), "{waits:?}");
        owner() == "holder"
    });
    assert!(handed_over.await, "still held by {}", owner());
    // So the claim survives the loss of another node.
    quorum.servers.node(0).kill().unwrap();
    let survives = eventually(SOON, || async {
        let renewed = holder.try_renew(fence).await;
        assert_ne!(renewed, Some(Renewed::Gone));
        renewed == Some(Renewed::Held { fence })
    });
    assert!(survives.await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn releasing_an_earlier_claim_releases_all_of_it_and_nothing_of_a_later_one() {
    let quorum = TestQuorum::start_patient().await;
    let first = quorum.claimant(Kind::Lock, "job", 1);
    first.is_granted().await;
    quorum.lock_is_on_all_nodes().await;
    // The same owner acquires again, on a majority, before the first claim is released.
    let again = quorum.partial_claimant("job", 2);
    let fence = again.is_granted().await;
    let (name, wake) = (Claimant::name(), first.wake);
    let released = first.store.release(Kind::Lock, name, job(), Some(wake));
    assert_ne!(
        released.await.unwrap(),
        Released::WasHeld,
        "held by the later claim only"
    );
    let skipped = quorum.skipped_node();
    let released = eventually(SOON, || async { !quorum.node_has_lock(skipped) });
    assert!(released.await, "the later claim is not on this node");
    assert_eq!(again.renew(fence).await, Renewed::Held { fence });
    quorum.lock_is_on_all_nodes().await;
    again.release().await;
    quorum.lock_is_on_no_node().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_claims_that_each_hold_one_node_all_but_one_yield() {
    let quorum = TestQuorum::start_patient().await;
    let holder = quorum.claimant(Kind::Lock, "holder", 1);
    holder.is_granted().await;
    quorum.lock_is_on_all_nodes().await;
    // Each node receives them in another order.
    let others: Vec<Claimant> = (2..5)
        .map(|claim| quorum.claimant(Kind::Lock, &format!("job-{claim}"), claim))
        .collect();
    for (i, node) in quorum.state().nodes.iter().enumerate() {
        for turn in 0..3 {
            let which = (i + turn) % 3;
            let request = request_of(others[which].owner.clone(), which as u64 + 2);
            node.client.acquire(&request, Fence::new(0)).await.unwrap();
        }
    }
    let mut tickets = Vec::new();
    for other in &others {
        tickets.push(other.is_queued().await);
    }
    holder.release().await;
    let one_holds = eventually(SOON, || async {
        let mut held = 0;
        for (other, ticket) in others.iter().zip(&tickets) {
            let renewed = other.renew(*ticket).await;
            held += usize::from(matches!(renewed, Renewed::Held { .. }));
        }
        assert!(held < 2, "two holders");
        held == 1
    });
    assert!(one_holds.await, "none yields");
}
