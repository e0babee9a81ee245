//! Who holds, by the names of the claims alone.
//!
//! Every client that sees the same children comes to the same answer, so nobody has to be told, and
//! nothing has to be written, for a claim to be granted:
//!
//! - claims are ordered by the numbers that the server gave them as they came;
//! - whoever comes first, and fits, holds; and so on, up to the first that does not fit: nobody goes
//!   past one who waits;
//! - what is held stays held: nobody can come in before it, so what is before it only grows less;
//! - a claim that barged in holds whatever is before it. It writes that into its name in a transaction
//!   that fails if anything has changed that its decision rests on (see `barge.rs`).

use std::collections::HashMap;

use super::claim_data::RoomData;
use super::claim_table::{Entry, Placed};
use super::node_name::{Child, Layout, Mark, Node, Sequence, read};
use windlass_core::Fence;
use windlass_core::store::Kind;

/// What a look at the children has shown.
#[derive(Debug)]
pub(super) struct View {
    /// In the order in which they came.
    pub(super) nodes: Vec<Node>,
    /// Which of them hold.
    pub(super) held: Vec<bool>,
    /// What the holders take.
    pub(super) used: u64,
    /// What the parent says, and the version of that.
    pub(super) room: RoomData,
    pub(super) version: i32,
    /// The transaction that last changed what the parent says: somebody barged in, or resized.
    pub(super) changed: i64,
    /// One of another layout, if there is any.
    pub(super) foreign: Option<String>,
    by_mark: HashMap<Mark, usize>,
}

impl View {
    pub(super) fn new(
        layout: Layout,
        kind: Kind,
        children: Vec<String>,
        room: RoomData,
        version: i32,
        changed: i64,
    ) -> View {
        let mut nodes = Vec::with_capacity(children.len());
        let mut foreign = None;
        for child in children {
            match read(layout, kind, &child) {
                Child::Claim(node) => nodes.push(node),
                Child::Foreign => foreign = Some(child),
                Child::Other => {}
            }
        }
        nodes.sort_by(|a, b| a.sequence.order(b.sequence));
        View::of(kind, nodes, room, version, changed, foreign)
    }

    fn of(
        kind: Kind,
        nodes: Vec<Node>,
        room: RoomData,
        version: i32,
        changed: i64,
        foreign: Option<String>,
    ) -> View {
        let (held, used) = standing(kind, &nodes, &room);
        let marks = nodes.iter().enumerate().rev();
        let by_mark = marks
            .filter_map(|(i, node)| Some((node.mark?, i)))
            .collect();
        View {
            nodes,
            held,
            used,
            room,
            version,
            changed,
            foreign,
            by_mark,
        }
    }

    /// Whether the parent has run out of numbers: depending on its version and on what else is going on
    /// just then, a server gives the last one again and again, or goes on below zero. Then only the
    /// transactions that created the claims tell their order.
    pub(super) fn is_out_of_numbers(&self) -> bool {
        let is_last = |node: &Node| node.sequence.0 == i32::MAX || node.sequence.0 < 0;
        self.nodes.iter().any(is_last)
    }

    /// The same in the order of these transactions, by the names of the nodes. One whose transaction is
    /// not known has gone.
    pub(super) fn in_order_of(self, kind: Kind, created: &HashMap<String, i64>) -> View {
        let mut nodes = self.nodes;
        nodes.retain(|node| created.contains_key(&node.name));
        nodes.sort_by_key(|node| created.get(&node.name).copied());
        let (room, version) = (self.room, self.version);
        View::of(kind, nodes, room, version, self.changed, self.foreign)
    }

    /// Nothing at all: the parent does not exist.
    pub(super) fn empty() -> View {
        View::new(
            Layout::Curator,
            Kind::Lock,
            Vec::new(),
            RoomData::default(),
            -1,
            0,
        )
    }

    /// Where the claim with this mark is; the first one, should there be several.
    pub(super) fn index_of(&self, mark: Mark) -> Option<usize> {
        self.by_mark.get(&mark).copied()
    }

    /// All claims of the owner of this mark.
    pub(super) fn of_owner(&self, mark: Mark) -> impl Iterator<Item = usize> {
        let same = move |node: &Node| node.mark.is_some_and(|m| m.same_owner(mark));
        let nodes = self.nodes.iter().enumerate();
        nodes.filter(move |(_, node)| same(node)).map(|(i, _)| i)
    }

    pub(super) fn waiters(&self) -> u64 {
        self.held.iter().filter(|held| !**held).count() as u64
    }

    /// Whose going could let the claim at `index` in: the last that keeps it out. Readers are kept out
    /// by writers alone.
    pub(super) fn blocker(&self, kind: Kind, index: usize) -> Option<&Node> {
        let weight = self.nodes[index].weight;
        let mut before = self.nodes[..index].iter();
        match kind {
            Kind::ReadWrite if weight == 1 => before.rev().find(|node| node.weight > 1),
            _ => before.next_back(),
        }
    }

    /// Whether somebody may have barged in since the claim came: then its fence would not be higher.
    pub(super) fn was_overtaken(&self, entry: &Entry) -> bool {
        let came_before = |node: &Placed| self.changed > node.created;
        entry.kind == Kind::Semaphore && entry.node.as_ref().is_some_and(came_before)
    }

    /// Whether nobody waits before the claim at `index`.
    pub(super) fn is_head(&self, index: usize) -> bool {
        self.held[..index].iter().all(|held| *held)
    }

    /// The number of a barrier's round that has begun and is not over.
    pub(super) fn open(&self) -> Option<Fence> {
        let round = self.room.round?;
        let any = self.nodes.iter().any(|n| up_to(n, round.last));
        any.then(|| Fence::new(round.number))
    }

    /// The last party of a round that could begin, and has not been written down.
    pub(super) fn complete(&self) -> Option<&Node> {
        if self.room.size == 0 || self.open().is_some() {
            return None;
        }
        self.nodes.get(self.room.size as usize - 1)
    }
}

fn up_to(node: &Node, last: i32) -> bool {
    node.sequence.order(Sequence(last)).is_le()
}

/// How much there is of something.
pub(super) fn size(kind: Kind, room: &RoomData) -> u32 {
    match kind {
        Kind::ReadWrite => windlass_core::store::MAX_READERS,
        Kind::Semaphore | Kind::Barrier => room.size,
        _ => 1,
    }
}

/// Which of the claims hold, and how much they take.
fn standing(kind: Kind, nodes: &[Node], room: &RoomData) -> (Vec<bool>, u64) {
    let size = u64::from(size(kind, room));
    let mut held = vec![false; nodes.len()];
    if kind == Kind::Barrier
        && let Some(round) = room.round
        && nodes.iter().any(|node| up_to(node, round.last))
    {
        let mut used = 0;
        for (node, held) in nodes.iter().zip(&mut held) {
            *held = up_to(node, round.last);
            used += u64::from(*held);
        }
        return (held, used);
    }
    let barged = nodes.iter().filter(|node| node.barged);
    let mut used: u64 = barged.map(|node| u64::from(node.weight)).sum();
    let mut full = false;
    for (node, held) in nodes.iter().zip(&mut held) {
        let weight = u64::from(node.weight);
        if node.barged {
            *held = true;
            continue;
        }
        let was_held = room.held_to.is_some_and(|last| up_to(node, last));
        if was_held || (!full && used + weight <= size) {
            *held = true;
            used += weight;
        } else {
            full = true;
        }
    }
    (held, used)
}

#[cfg(test)]
mod tests {
    use super::super::claim_data::Round;
    use super::*;

    fn view(kind: Kind, names: &[&str], room: RoomData) -> View {
        let uuid = |i: usize| format!("_c_00000000-0000-0000-0000-{i:012}");
        let named = |(i, name): (usize, &&str)| format!("{}-{name}", uuid(i));
        let children = names.iter().enumerate().map(named).collect();
        View::new(Layout::Curator, kind, children, room, 0, 0)
    }

    #[test]
    fn the_first_holds_a_lock() {
        let seen = view(
            Kind::Lock,
            &["lock-0000000012", "lock-0000000002", "lock-0000000007"],
            RoomData::default(),
        );
        assert_eq!(seen.held, [true, false, false]);
        assert_eq!(seen.nodes[0].sequence.0, 2);
        assert_eq!(seen.blocker(Kind::Lock, 2).unwrap().sequence.0, 7);
    }

    #[test]
    fn the_first_holds_after_the_numbers_came_round() {
        let seen = view(
            Kind::Lock,
            &["lock--2147483648", "lock-2147483647", "lock--2147483647"],
            RoomData::default(),
        );
        let order: Vec<i32> = seen.nodes.iter().map(|n| n.sequence.0).collect();
        assert_eq!(order, [i32::MAX, i32::MIN, i32::MIN + 1]);
        assert_eq!(seen.held, [true, false, false]);
    }

    #[test]
    fn readers_share_up_to_the_first_writer() {
        let seen = view(
            Kind::ReadWrite,
            &[
                "__READ__0000000001",
                "__READ__0000000002",
                "__WRIT__0000000003",
                "__READ__0000000004",
            ],
            RoomData::default(),
        );
        assert_eq!(seen.held, [true, true, false, false]);
        assert_eq!(seen.blocker(Kind::ReadWrite, 3).unwrap().sequence.0, 3);
        assert_eq!(seen.blocker(Kind::ReadWrite, 2).unwrap().sequence.0, 2);
    }

    #[test]
    fn nobody_goes_past_the_heavy_but_who_barged() {
        let names = [
            "lease-2-0000000001",
            "lease-3-0000000002",
            "lease-1-0000000003",
        ];
        let seen = view(Kind::Semaphore, &names, RoomData::of_size(4));
        assert_eq!(
            (seen.held.as_slice(), seen.used),
            (&[true, false, false][..], 2)
        );
        assert!(seen.is_head(1) && !seen.is_head(2));
        let names = [
            "lease-2-0000000001",
            "lease-3-0000000002",
            "barged-1-0000000003",
        ];
        let seen = view(Kind::Semaphore, &names, RoomData::of_size(4));
        assert_eq!(
            (seen.held.as_slice(), seen.used),
            (&[true, false, true][..], 3)
        );
        // The one before has gone: 3 and 1 fit in 4, but 3 and 2 would not.
        let names = ["lease-3-0000000002", "barged-2-0000000003"];
        let seen = view(Kind::Semaphore, &names, RoomData::of_size(4));
        assert_eq!(seen.held, [false, true], "what barged in is not pushed out");
    }

    #[test]
    fn a_smaller_size_takes_nothing_away() {
        let names = [
            "lease-1-0000000001",
            "lease-2-0000000002",
            "lease-1-0000000003",
        ];
        let room = RoomData {
            held_to: Some(2),
            ..RoomData::of_size(1)
        };
        let seen = view(Kind::Semaphore, &names, room);
        assert_eq!(
            (seen.held.as_slice(), seen.used),
            (&[true, true, false][..], 3)
        );
    }

    #[test]
    fn rounds_do_not_mix() {
        let names = ["party-0000000001", "party-0000000002", "party-0000000003"];
        let seen = view(Kind::Barrier, &names, RoomData::of_size(2));
        assert_eq!(seen.held, [true, true, false]);
        assert_eq!(seen.complete().unwrap().sequence.0, 2);
        let begun = RoomData {
            round: Some(Round { last: 2, number: 9 }),
            ..RoomData::of_size(2)
        };
        let seen = view(Kind::Barrier, &names[1..], begun.clone());
        assert_eq!(
            seen.held,
            [true, false],
            "a place given up early is not for the next round"
        );
        assert_eq!(seen.open(), Some(Fence::new(9)));
        assert!(seen.complete().is_none());
        let seen = view(Kind::Barrier, &names[2..], begun);
        assert_eq!((seen.held.as_slice(), seen.open()), (&[true][..], None));
    }
}
