//! Who holds and who waits, decided by the names of the claim nodes.
//!
//! This is the only place that decides which claims hold. Every client that reads the same children comes
//! to the same result, so a grant needs no write and no message:
//!
//! - claims are ordered by the sequence numbers that the server gave them;
//! - from the front of the queue, each claim that fits into the pool holds, up to the first that does
//!   not fit: no claim overtakes a waiter;
//! - a claim that holds keeps holding: no claim can be inserted before it, so the weight before it only
//!   decreases;
//! - a barging claim holds whatever is before it. It writes that into its name in a transaction that
//!   fails if anything changed that the decision depends on (see `barging.rs`).

use std::collections::HashMap;

use super::node_name::{ChildNode, ClaimNode, NodeLayout, ProtectionId, Sequence, parse};
use super::pool::PoolData;
use windlass_core::Fence;
use windlass_core::store::Kind;

/// The claims to one name, as one read has shown them.
#[derive(Debug)]
pub(super) struct QueueView {
    /// In the order of the queue.
    pub(super) nodes: Vec<ClaimNode>,
    /// Which of the nodes hold.
    pub(super) held: Vec<bool>,
    /// The total weight of the holders.
    pub(super) used: u64,
    pub(super) parent: QueueParent,
    /// A claim in another layout, if there is one.
    pub(super) foreign: Option<String>,
    by_id: HashMap<ProtectionId, usize>,
}

/// The parent node of the claims.
#[derive(Clone, Debug, Default)]
pub(super) struct QueueParent {
    pub(super) pool: PoolData,
    pub(super) version: i32,
    /// The transaction that last wrote the data: a client barged in, or changed the size.
    pub(super) changed_zxid: i64,
}

impl QueueParent {
    /// The version of a parent that does not exist.
    const MISSING: i32 = -1;

    pub(super) fn exists(&self) -> bool {
        self.version > QueueParent::MISSING
    }
}

impl QueueView {
    pub(super) fn new(
        layout: NodeLayout,
        kind: Kind,
        children: Vec<String>,
        parent: QueueParent,
    ) -> QueueView {
        let mut nodes = Vec::with_capacity(children.len());
        let mut foreign = None;
        for child in children {
            match parse(layout, kind, &child) {
                ChildNode::Claim(node) => nodes.push(node),
                ChildNode::Foreign => foreign = Some(child),
                ChildNode::Other => {}
            }
        }
        nodes.sort_by(|a, b| a.sequence.order(b.sequence));
        QueueView::of_ordered(kind, nodes, parent, foreign)
    }

    fn of_ordered(
        kind: Kind,
        nodes: Vec<ClaimNode>,
        parent: QueueParent,
        foreign: Option<String>,
    ) -> QueueView {
        let (held, used) = decide_holders(kind, &nodes, &parent.pool);
        // Should several nodes have one id, the first one counts.
        let indexes = nodes.iter().enumerate().rev();
        let by_id = indexes
            .filter_map(|(i, node)| Some((node.id?, i)))
            .collect();
        QueueView {
            nodes,
            held,
            used,
            parent,
            foreign,
            by_id,
        }
    }

    /// The view of a parent that does not exist.
    pub(super) fn missing() -> QueueView {
        let parent = QueueParent {
            version: QueueParent::MISSING,
            ..QueueParent::default()
        };
        QueueView::of_ordered(Kind::Lock, Vec::new(), parent, None)
    }

    /// Whether the parent has run out of sequence numbers: depending on its version and its load, a
    /// server then repeats the last number, or continues below zero. From then on only the zxids that
    /// created the claims tell their order.
    pub(super) fn is_out_of_numbers(&self) -> bool {
        let is_last = |node: &ClaimNode| node.sequence.0 == i32::MAX || node.sequence.0 < 0;
        self.nodes.iter().any(is_last)
    }

    /// The same claims in the order of these zxids, by node name. A node without a zxid is gone.
    pub(super) fn ordered_by_zxid(self, kind: Kind, created: &HashMap<String, i64>) -> QueueView {
        let mut nodes = self.nodes;
        nodes.retain(|node| created.contains_key(&node.name));
        nodes.sort_by_key(|node| created.get(&node.name).copied());
        QueueView::of_ordered(kind, nodes, self.parent, self.foreign)
    }

    /// The index of the claim with this id; of the first, should there be several.
    pub(super) fn index_of(&self, id: ProtectionId) -> Option<usize> {
        self.by_id.get(&id).copied()
    }

    /// All claims of the owner of this id.
    pub(super) fn of_owner(&self, id: ProtectionId) -> impl Iterator<Item = usize> {
        let same = move |node: &ClaimNode| node.id.is_some_and(|known| known.same_owner(id));
        let nodes = self.nodes.iter().enumerate();
        nodes.filter(move |(_, node)| same(node)).map(|(i, _)| i)
    }

    pub(super) fn waiters(&self) -> u64 {
        self.held.iter().filter(|held| !**held).count() as u64
    }

    /// The last claim that keeps the one at `index` waiting. Only writers keep readers waiting.
    pub(super) fn blocker(&self, kind: Kind, index: usize) -> Option<&ClaimNode> {
        let weight = self.nodes[index].weight;
        let mut before = self.nodes[..index].iter();
        match kind {
            Kind::ReadWrite if weight == 1 => before.rev().find(|node| node.weight > 1),
            _ => before.next_back(),
        }
    }

    /// Whether another client may have barged in after a node was created: then that node's zxid may be
    /// lower than a fence that was given out.
    pub(super) fn was_overtaken(&self, kind: Kind, created_zxid: i64) -> bool {
        kind == Kind::Semaphore && self.parent.changed_zxid > created_zxid
    }

    /// Whether a waiter of this weight can never hold, because the size was made smaller.
    pub(super) fn is_too_heavy(&self, kind: Kind, weight: u32) -> bool {
        weight > self.parent.pool.capacity(kind)
    }

    /// Whether no claim waits before the one at `index`.
    pub(super) fn is_first_waiter(&self, index: usize) -> bool {
        self.held[..index].iter().all(|held| *held)
    }

    /// The number of a barrier's round that has begun and is not over.
    pub(super) fn open_round(&self) -> Option<Fence> {
        let round = self.parent.pool.round?;
        let any = self.nodes.iter().any(|node| is_up_to(node, round.last));
        any.then(|| Fence::new(round.number))
    }

    /// The last party of a round that is complete, and has not begun.
    pub(super) fn complete_round(&self) -> Option<&ClaimNode> {
        if self.parent.pool.size == 0 || self.open_round().is_some() {
            return None;
        }
        self.nodes.get(self.parent.pool.size as usize - 1)
    }
}

fn is_up_to(node: &ClaimNode, last: i32) -> bool {
    node.sequence.order(Sequence(last)).is_le()
}

/// Which of the claims hold, and their total weight.
fn decide_holders(kind: Kind, nodes: &[ClaimNode], pool: &PoolData) -> (Vec<bool>, u64) {
    let capacity = u64::from(pool.capacity(kind));
    let mut held = vec![false; nodes.len()];
    if kind == Kind::Barrier
        && let Some(round) = pool.round
        && nodes.iter().any(|node| is_up_to(node, round.last))
    {
        let mut used = 0;
        for (node, held) in nodes.iter().zip(&mut held) {
            *held = is_up_to(node, round.last);
            used += u64::from(*held);
        }
        return (held, used);
    }
    let barged = nodes.iter().filter(|node| node.barged);
    let mut used: u64 = barged.map(|node| u64::from(node.weight)).sum();
    let mut is_full = false;
    for (node, held) in nodes.iter().zip(&mut held) {
        let weight = u64::from(node.weight);
        if node.barged {
            *held = true;
            continue;
        }
        let was_held = pool.held_to.is_some_and(|last| is_up_to(node, last));
        if was_held || (!is_full && used + weight <= capacity) {
            *held = true;
            used += weight;
        } else {
            is_full = true;
        }
    }
    (held, used)
}

#[cfg(test)]
mod tests {
    use super::super::pool::BarrierRound;
    use super::*;

    fn view_of(kind: Kind, names: &[&str], pool: PoolData) -> QueueView {
        let uuid = |i: usize| format!("_c_00000000-0000-0000-0000-{i:012}");
        let named = |(i, name): (usize, &&str)| format!("{}-{name}", uuid(i));
        let children = names.iter().enumerate().map(named).collect();
        let parent = QueueParent {
            pool,
            ..QueueParent::default()
        };
        QueueView::new(NodeLayout::Curator, kind, children, parent)
    }

    #[test]
    fn first_claim_holds_a_lock() {
        let view = view_of(
            Kind::Lock,
            &["lock-0000000012", "lock-0000000002", "lock-0000000007"],
            PoolData::default(),
        );
        assert_eq!(view.held, [true, false, false]);
        assert_eq!(view.nodes[0].sequence.0, 2);
        assert_eq!(view.blocker(Kind::Lock, 2).unwrap().sequence.0, 7);
    }

    #[test]
    fn first_claim_holds_after_wrap_around() {
        let view = view_of(
            Kind::Lock,
            &["lock--2147483648", "lock-2147483647", "lock--2147483647"],
            PoolData::default(),
        );
        let order: Vec<i32> = view.nodes.iter().map(|n| n.sequence.0).collect();
        assert_eq!(order, [i32::MAX, i32::MIN, i32::MIN + 1]);
        assert_eq!(view.held, [true, false, false]);
    }

    #[test]
    fn readers_hold_up_to_the_first_writer() {
        let view = view_of(
            Kind::ReadWrite,
            &[
                "__READ__0000000001",
                "__READ__0000000002",
                "__WRIT__0000000003",
                "__READ__0000000004",
            ],
            PoolData::default(),
        );
        assert_eq!(view.held, [true, true, false, false]);
        assert_eq!(view.blocker(Kind::ReadWrite, 3).unwrap().sequence.0, 3);
        assert_eq!(view.blocker(Kind::ReadWrite, 2).unwrap().sequence.0, 2);
    }

    #[test]
    fn only_barging_claims_overtake_a_heavy_waiter() {
        let names = [
            "lease-2-0000000001",
            "lease-3-0000000002",
            "lease-1-0000000003",
        ];
        let view = view_of(Kind::Semaphore, &names, PoolData::with_size(4));
        assert_eq!(
            (view.held.as_slice(), view.used),
            (&[true, false, false][..], 2)
        );
        assert!(view.is_first_waiter(1) && !view.is_first_waiter(2));
        let names = [
            "lease-2-0000000001",
            "lease-3-0000000002",
            "barged-1-0000000003",
        ];
        let view = view_of(Kind::Semaphore, &names, PoolData::with_size(4));
        assert_eq!(
            (view.held.as_slice(), view.used),
            (&[true, false, true][..], 3)
        );
        // The first holder left. A waiter of 3 would fit beside 1, but not beside the barging 2.
        let names = ["lease-3-0000000002", "barged-2-0000000003"];
        let view = view_of(Kind::Semaphore, &names, PoolData::with_size(4));
        assert_eq!(view.held, [false, true], "a barging claim keeps holding");
    }

    #[test]
    fn holders_survive_a_smaller_size() {
        let names = [
            "lease-1-0000000001",
            "lease-2-0000000002",
            "lease-1-0000000003",
        ];
        let pool = PoolData {
            held_to: Some(2),
            ..PoolData::with_size(1)
        };
        let view = view_of(Kind::Semaphore, &names, pool);
        assert_eq!(
            (view.held.as_slice(), view.used),
            (&[true, true, false][..], 3)
        );
    }

    #[test]
    fn parties_stay_in_their_round() {
        let names = ["party-0000000001", "party-0000000002", "party-0000000003"];
        let view = view_of(Kind::Barrier, &names, PoolData::with_size(2));
        assert_eq!(view.held, [true, true, false]);
        assert_eq!(view.complete_round().unwrap().sequence.0, 2);
        let begun = PoolData {
            round: Some(BarrierRound { last: 2, number: 9 }),
            ..PoolData::with_size(2)
        };
        let view = view_of(Kind::Barrier, &names[1..], begun.clone());
        assert_eq!(
            view.held,
            [true, false],
            "a party of the next round does not replace one that left"
        );
        assert_eq!(view.open_round(), Some(Fence::new(9)));
        assert!(view.complete_round().is_none());
        let view = view_of(Kind::Barrier, &names[2..], begun);
        assert_eq!(
            (view.held.as_slice(), view.open_round()),
            (&[true][..], None)
        );
    }
}
