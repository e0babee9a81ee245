//! Claims that begin on a majority: where they are, and what a failure of these few costs.

use std::time::Duration;

use windlass_testkit::{Direction, FaultProxy, eventually};

use super::nodes::NodeSet;
use super::tests::{Bed, Claimant};
use windlass_core::store::{Kind, Released, Renewed};

const SOON: Duration = Duration::from_secs(20);

impl Bed {
    /// One where nobody is late, however busy the machine is.
    pub(super) async fn patient() -> Bed {
        let bed = Bed::with("?node_timeout=5s").await;
        bed.usually_takes(Duration::from_secs(5));
        bed
    }

    fn usually_takes(&self, time: Duration) {
        (0..500).for_each(|_| self.quorum.shared.pace.decided_after(time));
    }

    fn preferred(&self) -> NodeSet {
        self.quorum.shared.preferred
    }

    /// The one that is not asked at first.
    pub(super) fn spare(&self) -> usize {
        let all = self.quorum.shared.everybody();
        all.without(self.preferred()).iter().next().unwrap()
    }

    /// One that is.
    fn one_of_few(&self) -> usize {
        self.preferred().iter().next().unwrap()
    }

    fn is_on(&self) -> NodeSet {
        (0..3).filter(|node| self.has_it(*node)).collect()
    }

    fn preferred_nodes_lose_it(&self) {
        let name = Claimant::name();
        for node in self.preferred().iter() {
            let node = self.nodes.node(node);
            node.command(&["DEL", name.as_str()]).unwrap();
        }
    }

    pub(super) async fn is_everywhere(&self) {
        let everywhere = eventually(SOON, || async { self.is_on().len() == 3 });
        assert!(everywhere.await, "on {:?} alone", self.is_on());
    }

    pub(super) async fn is_nowhere(&self) {
        let nowhere = eventually(SOON, || async { self.is_on().len() == 0 });
        assert!(nowhere.await, "still on {:?}", self.is_on());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_claim_begins_on_a_majority_and_is_everywhere_once_it_was_renewed() {
    let bed = Bed::patient().await;
    let brief = bed.young("brief", 1);
    brief.is_granted().await;
    assert_eq!(bed.is_on(), bed.preferred());
    brief.releases().await;
    bed.is_nowhere().await;

    let long = bed.young("long", 2);
    let fence = long.is_granted().await;
    assert_eq!(bed.is_on(), bed.preferred());
    assert_eq!(long.renews(fence).await, Renewed::Held { fence });
    bed.is_everywhere().await;
    long.releases().await;
    bed.is_nowhere().await;

    // Of one that nobody renews soon, all nodes must know at once.
    let lasting = bed.claimant(Kind::Lock, "lasting", 3);
    lasting.is_granted().await;
    bed.is_everywhere().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_waits_leaves_the_other_nodes_to_the_holder() {
    let bed = Bed::patient().await;
    let holder = bed.young("holder", 1);
    let fence = holder.is_granted().await;
    let next = bed.young("next", 2);
    let place = next.lines_up().await;
    assert!(matches!(next.renews(place).await, Renewed::Waiting { .. }));
    for _ in 0..20 {
        // Whatever was asked in passing would be there by now.
        tokio::time::sleep(Duration::from_millis(10)).await;
        assert!(!bed.has_it(bed.spare()), "nobody is there yet");
    }
    assert_eq!(holder.renews(fence).await, Renewed::Held { fence });
    bed.is_everywhere().await;
    // The one who comes next is everywhere without being renewed.
    holder.releases().await;
    next.holds(place).await;
    bed.is_everywhere().await;
    next.releases().await;
    bed.is_nowhere().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_claim_outlives_the_loss_of_a_node_that_it_began_on() {
    let bed = Bed::patient().await;
    let holder = bed.young("holder", 1);
    let fence = holder.is_granted().await;
    let next = bed.young("next", 2);
    let place = next.lines_up().await;
    let lost = bed.one_of_few();
    bed.nodes.node(lost).kill().unwrap();
    // One renewal, or the next if the connection was not known to be broken yet.
    let mut renewed = Vec::new();
    for _ in 0..3 {
        renewed.push(holder.store_renews(fence).await);
        if matches!(renewed.last(), Some(Some(Renewed::Held { .. }))) {
            break;
        }
    }
    assert_eq!(
        renewed.last(),
        Some(&Some(Renewed::Held { fence })),
        "{renewed:?}"
    );
    assert!(bed.has_it(bed.spare()));
    // Turns go on.
    holder.releases().await;
    assert!(next.holds(place).await > fence);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_does_not_answer_is_waited_for_once() {
    let bed = Bed::open().await;
    let shared = &bed.quorum.shared;
    let slow = bed.one_of_few();
    assert!(!shared.nodes[slow].is_in_doubt());
    bed.proxies[slow].blackhole(Direction::ToClient);
    let first = bed.young("first", 1);
    first.is_granted().await;
    assert!(shared.nodes[slow].is_in_doubt(), "so all are asked");
    first.releases().await;
    let second = bed.young("second", 2);
    second.is_granted().await;
    assert!(bed.has_it(bed.spare()));
    second.releases().await;
    bed.proxies.iter().for_each(FaultProxy::heal);
    // As soon as it answers in time again, few are asked again.
    let mut claim = 3;
    let trusted = eventually(SOON, || {
        let again = bed.young(&format!("again{claim}"), claim);
        claim += 1;
        async {
            let again = again;
            again.is_granted().await;
            again.releases().await;
            !shared.nodes[slow].is_in_doubt()
        }
    });
    assert!(trusted.await, "it answers again");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_release_does_not_wait_for_a_node_that_is_gone() {
    let bed = Bed::patient().await;
    let holder = bed.young("holder", 1);
    holder.is_granted().await;
    let slow = bed.one_of_few();
    bed.proxies[slow].blackhole(Direction::ToServer);
    bed.usually_takes(Duration::ZERO);
    let (name, owner) = (Claimant::name(), holder.owner.clone());
    let released = holder.store.release(Kind::Lock, name, owner, None).await;
    assert_eq!(released.unwrap(), Released::WasHeld);
    assert!(bed.quorum.shared.nodes[slow].is_in_doubt());
    assert!(bed.has_it(slow), "it has not heard of it");
    bed.proxies.iter().for_each(FaultProxy::heal);
    bed.is_nowhere().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_has_lost_its_majority_leaves_the_other_nodes_too() {
    let bed = Bed::patient().await;
    let holder = bed.young("holder", 1);
    let fence = holder.is_granted().await;
    bed.preferred_nodes_lose_it();
    // The one that was not asked before is asked now, and is free.
    assert_eq!(holder.renews(fence).await, Renewed::Gone);
    // Whoever comes next need not wait for its ttl.
    bed.is_nowhere().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_left_of_a_lost_claim_was_not_waiting() {
    let bed = Bed::patient().await;
    let holder = bed.claimant(Kind::Lock, "holder", 1);
    holder.is_granted().await;
    bed.is_everywhere().await;
    let name = Claimant::name();
    bed.preferred_nodes_lose_it();
    // So that the one who has it answers first.
    bed.preferred().iter().for_each(|node| {
        bed.proxies[node].delay(Direction::ToClient, Duration::from_millis(100));
    });
    let (owner, wake) = (holder.owner.clone(), holder.wake);
    let released = holder.store.release(Kind::Lock, name, owner, Some(wake));
    assert_eq!(released.await.unwrap(), Released::WasGone);
    bed.is_nowhere().await;
}
