//! Owners that come again before an earlier claim of theirs is given up; and holders that come to nodes
//! where others wait ahead of them.

use std::time::Duration;

use windlass_testkit::eventually;

use super::ballots::Ballots;
use super::nodes::NodeSet;
use super::tests::{Bed, Claimant};
use windlass_core::name::Name;
use windlass_core::store::{
    AcquireRequest, Kind, OnBusy, Released, Renewal, Renewed, SameOwner, Share, WakeAddress,
};
use windlass_core::{Fence, Owner};

const SOON: Duration = Duration::from_secs(20);

fn name(text: &str) -> Name {
    Name::new("test", None, text).unwrap()
}

fn job() -> Owner {
    Owner::new("job").unwrap()
}

fn ask(claim: u64) -> AcquireRequest {
    ask_of(job(), claim)
}

fn ask_of(owner: Owner, claim: u64) -> AcquireRequest {
    AcquireRequest {
        kind: Kind::Lock,
        name: name("stock"),
        owner,
        share: Share::ONLY,
        ttl: SOON,
        on_busy: OnBusy::Enqueue,
        note: None,
        heal_missing_ttl: false,
        record_now: true,
        again: false,
        renewed: true,
        wake: WakeAddress { client: 7, claim },
    }
}

fn renewal(of: &str, claim: u64) -> Renewal {
    Renewal {
        kind: Kind::Lock,
        name: name(of),
        owner: job(),
        fence: Fence::new(1),
        ttl: SOON,
        age: Duration::ZERO,
        note: None,
        wake: WakeAddress { client: 7, claim },
        same_owner: SameOwner::Respect,
        write_anew: false,
        renewed: true,
    }
}

fn waits(ballots: &Ballots, claim: u64) -> bool {
    ballots.waiting(claim, Fence::new(0)).is_some()
}

fn gives_up(ballots: &Ballots, of: &str, claim: Option<u64>) {
    ballots.forget(Kind::Lock, &name(of), &job(), claim);
}

#[test]
fn a_release_by_an_earlier_claim_does_not_forget_a_later_one() {
    let ballots = Ballots::default();
    ballots.insert(ask(5), NodeSet::first(3));
    gives_up(&ballots, "stock", Some(4));
    assert!(waits(&ballots, 5), "it came after");
    gives_up(&ballots, "stock", Some(5));
    assert!(!waits(&ballots, 5));
    ballots.insert(ask(6), NodeSet::first(3));
    gives_up(&ballots, "stock", None);
    assert!(!waits(&ballots, 6), "all of them");
}

#[test]
fn a_claim_is_forgotten_although_a_later_one_took_its_place() {
    let ballots = Ballots::default();
    ballots.insert(ask(4), NodeSet::first(3));
    ballots.insert(ask(5), NodeSet::first(3));
    gives_up(&ballots, "stock", Some(4));
    assert!(!waits(&ballots, 4) && waits(&ballots, 5));
    // And although that one was granted since.
    ballots.insert(ask(6), NodeSet::first(3));
    ballots.insert(ask(7), NodeSet::first(3));
    ballots.granted(5);
    ballots.granted(7);
    gives_up(&ballots, "stock", Some(6));
    assert!(!waits(&ballots, 6));
}

#[test]
fn no_renewal_that_is_under_way_brings_back_what_was_released() {
    let ballots = Ballots::default();
    let comes_back = |of: &str, claim: u64| {
        let mut acted = false;
        ballots.unless_released(&renewal(of, claim), || acted = true);
        acted
    };
    assert!(comes_back("stock", 4));
    gives_up(&ballots, "stock", Some(4));
    assert!(!comes_back("stock", 4));
    assert!(comes_back("stock", 5), "another claim of the same owner");
    assert!(
        comes_back("shop", 3),
        "of the same owner, to something else"
    );
    // However many others are released meanwhile.
    let others_are_released = |many: u64| {
        for claim in 10..10 + many {
            gives_up(&ballots, "shop", Some(claim));
        }
    };
    others_are_released(4000);
    assert!(!comes_back("stock", 4));
    // But it is not kept for ever.
    others_are_released(4000);
    gives_up(&ballots, "shop", None);
    assert!(comes_back("stock", 4) && !comes_back("shop", u64::MAX));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_holder_comes_to_a_node_where_somebody_waits_ahead_of_it() {
    let bed = Bed::patient().await;
    let holder = bed.claimant(Kind::Lock, "holder", 1);
    let fence = holder.is_granted().await;
    bed.is_everywhere().await;
    // One node has forgotten it, and takes whoever comes next for the first.
    let forgot = bed.nodes.node(2);
    for key in forgot.command(&["KEYS", "*stock*"]).unwrap().lines() {
        forgot.command(&["DEL", key]).unwrap();
    }
    let next = bed.claimant(Kind::Lock, "next", 2);
    let place = next.lines_up().await;
    let owner = || forgot.command(&["GET", "stock"]).unwrap();
    let ahead = eventually(SOON, || async { owner() == "next" });
    assert!(ahead.await, "it is ahead there");
    // The holder hears of it, lines up there, and is handed it when the other one gives way.
    let handed_over = eventually(SOON, || async {
        assert_eq!(holder.renews(fence).await, Renewed::Held { fence });
        let waits = next.renews(place).await;
        assert!(matches!(waits, Renewed::Waiting { .. }), "{waits:?}");
        owner() == "holder"
    });
    assert!(handed_over.await, "still with {}", owner());
    // So the loss of another node does no harm.
    bed.nodes.node(0).kill().unwrap();
    let outlives = eventually(SOON, || async {
        let renewed = holder.store_renews(fence).await;
        assert_ne!(renewed, Some(Renewed::Gone));
        renewed == Some(Renewed::Held { fence })
    });
    assert!(outlives.await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_release_by_an_earlier_claim_reaches_all_of_it_and_nothing_of_a_later_one() {
    let bed = Bed::patient().await;
    let first = bed.claimant(Kind::Lock, "job", 1);
    first.is_granted().await;
    bed.is_everywhere().await;
    // The same owner comes again, on a few nodes, before that one is given up.
    let again = bed.young("job", 2);
    let fence = again.is_granted().await;
    let (name, wake) = (
        Claimant::name(),
        WakeAddress {
            client: 7,
            claim: 1,
        },
    );
    let released = first.store.release(Kind::Lock, name, job(), Some(wake));
    assert_ne!(
        released.await.unwrap(),
        Released::WasHeld,
        "but for the later one"
    );
    let spare = bed.spare();
    let left = eventually(SOON, || async { !bed.has_it(spare) });
    assert!(left.await, "nothing is left where the later one is not");
    assert_eq!(again.renews(fence).await, Renewed::Held { fence });
    bed.is_everywhere().await;
    again.releases().await;
    bed.is_nowhere().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn claims_that_are_each_ahead_on_one_node_give_way_to_one() {
    let bed = Bed::patient().await;
    let holder = bed.claimant(Kind::Lock, "holder", 1);
    holder.is_granted().await;
    bed.is_everywhere().await;
    // Each node has heard of them in another order.
    let others: Vec<Claimant> = (2..5)
        .map(|claim| bed.claimant(Kind::Lock, &format!("job-{claim}"), claim))
        .collect();
    for (i, node) in bed.quorum.shared.nodes.iter().enumerate() {
        for turn in 0..3 {
            let which = (i + turn) % 3;
            let ask = ask_of(others[which].owner.clone(), which as u64 + 2);
            node.voter.vote(&ask, Fence::new(0)).await.unwrap();
        }
    }
    let mut places = Vec::new();
    for other in &others {
        places.push(other.lines_up().await);
    }
    holder.releases().await;
    let one_holds = eventually(SOON, || async {
        let mut held = 0;
        for (other, place) in others.iter().zip(&places) {
            let renewed = other.renews(*place).await;
            held += usize::from(matches!(renewed, Renewed::Held { .. }));
        }
        assert!(held < 2, "two holders");
        held == 1
    });
    assert!(one_holds.await, "nobody gives way");
}
