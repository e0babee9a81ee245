//! Names of claim nodes, in the layouts of Curator and kazoo.
//!
//! `_c_<uuid>-lock-<sequence>` is Curator's mutex, `-latch-` its leader latch, `-__READ__` and
//! `-__WRIT__` its read-write lock; `<uuid>__lock__<sequence>` is kazoo's lock. Semaphores and barriers
//! use the same form with words of Windlass: `-lease-<weight>-`, `-barged-<weight>-` and `-party-`.
//!
//! The UUID is Curator's protection id: a client that lost the reply to its create request finds its
//! node by it. In Curator it is random. In Windlass its first half is a digest of the owner, so that any
//! client finds all claims of an owner. The second half is a digest of the claim's number, and counts
//! the client's requests: a claim that is requested again after it expired must not take its earlier
//! node, which is being removed, for its own.

use std::cmp::Ordering;
use std::sync::atomic::{self, AtomicU16};

use sha2::{Digest as _, Sha256};

use zookeeper_client::CreateMode;

use windlass_core::Owner;
use windlass_core::store::{Kind, WakeAddress};

/// A writer's weight.
const ALL: u32 = windlass_core::store::MAX_READERS;
/// The length of a sequence number.
const DIGITS: usize = 10;

/// Which library's names the nodes of a lock have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NodeLayout {
    Curator,
    Kazoo,
}

impl NodeLayout {
    /// How the parent of a queue is created. kazoo creates a lock's path once and then relies on it:
    /// its second `acquire` fails if the server has removed an empty container in between.
    pub(super) fn parent_mode(self, kind: Kind) -> CreateMode {
        match (kind, self) {
            (Kind::Lock, NodeLayout::Kazoo) => CreateMode::Persistent,
            _ => CreateMode::Container,
        }
    }
}

/// The protection id of a claim, part of its node's name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct ProtectionId(pub(super) [u8; 16]);

impl ProtectionId {
    /// An id for one more request of this claim.
    pub(super) fn new(owner: &Owner, wake: WakeAddress) -> ProtectionId {
        static REQUESTS: AtomicU16 = AtomicU16::new(0);
        let request = REQUESTS.fetch_add(1, atomic::Ordering::Relaxed);
        let mut id = [0; 16];
        id[..8].copy_from_slice(&half_digest(&[owner.as_str().as_bytes()]));
        let (client, claim) = (wake.client.to_be_bytes(), wake.claim.to_be_bytes());
        id[8..].copy_from_slice(&half_digest(&[b"claim", &client, &claim]));
        id[14..].copy_from_slice(&request.to_be_bytes());
        ProtectionId(id)
    }

    /// Whether both claims have the same owner.
    pub(super) fn same_owner(self, other: ProtectionId) -> bool {
        self.0[..8] == other.0[..8]
    }

    /// Whether both are of the same claim, perhaps of different requests.
    pub(super) fn same_claim(self, other: ProtectionId) -> bool {
        self.0[..14] == other.0[..14]
    }

    fn hex(self) -> String {
        self.0.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    fn uuid(self) -> String {
        let hex = self.hex();
        let (a, b, c) = (&hex[..8], &hex[8..12], &hex[12..16]);
        format!("{a}-{b}-{c}-{}-{}", &hex[16..20], &hex[20..])
    }

    fn parse(text: &str) -> Option<ProtectionId> {
        let hex: String = text.chars().filter(|c| *c != '-').collect();
        let mut id = [0; 16];
        if hex.len() != 32 || !hex.is_ascii() {
            return None;
        }
        for (i, byte) in id.iter_mut().enumerate() {
            *byte = u8::from_str_radix(&hex[2 * i..2 * i + 2], 16).ok()?;
        }
        Some(ProtectionId(id))
    }
}

fn half_digest(parts: &[&[u8]]) -> [u8; 8] {
    let mut hasher = Sha256::new();
    for part in parts {
        hasher.update(part);
    }
    let digest = hasher.finalize();
    let mut half = [0; 8];
    half.copy_from_slice(&digest[..8]);
    half
}

/// A claim, as its node's name describes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ClaimNode {
    pub(super) name: String,
    /// `None` if another library created the node without one.
    pub(super) id: Option<ProtectionId>,
    pub(super) weight: u32,
    /// Whether it was granted ahead of waiters: it holds, whatever is before it.
    pub(super) barged: bool,
    /// Its position in the queue.
    pub(super) sequence: Sequence,
}

/// The number that the server appends to a sequential node. It counts up for every child of a parent,
/// and wraps around after 2³¹.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Sequence(pub(super) i32);

impl Sequence {
    /// Which node was created first. No two that exist at once are 2³¹ apart, so the shorter distance
    /// around the ring decides.
    pub(super) fn order(self, other: Sequence) -> Ordering {
        self.0.wrapping_sub(other.0).cmp(&0)
    }

    /// The digits as the server writes them.
    pub(super) fn text(self) -> String {
        format!("{:010}", self.0)
    }
}

/// The name of a claim's node, up to the sequence number.
pub(super) fn prefix(
    layout: NodeLayout,
    kind: Kind,
    id: ProtectionId,
    weight: u32,
    barged: bool,
) -> String {
    let uuid = id.uuid();
    match (kind, layout) {
        (Kind::Lock, NodeLayout::Kazoo) => format!("{}__lock__", id.hex()),
        (Kind::Lock, NodeLayout::Curator) => format!("_c_{uuid}-lock-"),
        (Kind::Election, _) => format!("_c_{uuid}-latch-"),
        (Kind::ReadWrite, _) if weight == ALL => format!("_c_{uuid}-__WRIT__"),
        (Kind::ReadWrite, _) => format!("_c_{uuid}-__READ__"),
        (Kind::Barrier, _) => format!("_c_{uuid}-party-"),
        _ if barged => format!("_c_{uuid}-barged-{weight}-"),
        _ => format!("_c_{uuid}-lease-{weight}-"),
    }
}

/// A child of the parent of claims.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum ChildNode {
    Claim(ClaimNode),
    /// A claim in another layout: its client does not see the claims of this layout.
    Foreign,
    /// Not a claim: a part of the path of a longer name.
    Other,
}

/// Parses the name of a child.
pub(super) fn parse(layout: NodeLayout, kind: Kind, name: &str) -> ChildNode {
    let (front, sequence) = match split(name) {
        Some((front, sequence)) if !front.is_empty() => (front, sequence),
        Some(_) => return ChildNode::Foreign,
        None => return ChildNode::Other,
    };
    let node = |id: &str, weight, barged| {
        ChildNode::Claim(ClaimNode {
            name: name.to_owned(),
            id: ProtectionId::parse(id),
            weight,
            barged,
            sequence,
        })
    };
    let protected = front.strip_prefix("_c_").unwrap_or(front);
    let before = |ending: &str| {
        let rest = protected.strip_suffix(ending)?;
        // Without protection, Curator writes the word alone.
        Some(rest.strip_suffix('-').unwrap_or(rest))
    };
    let known = match (kind, layout) {
        (Kind::Lock, NodeLayout::Kazoo) => protected
            .strip_suffix("__lock__")
            .map(|id| node(id, 1, false)),
        (Kind::Lock, NodeLayout::Curator) => before("lock-").map(|id| node(id, 1, false)),
        (Kind::Election, _) => before("latch-").map(|id| node(id, 1, false)),
        (Kind::ReadWrite, _) => before("__READ__")
            .map(|id| node(id, 1, false))
            .or_else(|| before("__WRIT__").map(|id| node(id, ALL, false))),
        (Kind::Barrier, _) => before("party-").map(|id| node(id, 1, false)),
        _ => weighted(protected).map(|(id, weight, barged)| node(id, weight, barged)),
    };
    known.unwrap_or(ChildNode::Foreign)
}

/// `<id>-lease-<weight>-` or `<id>-barged-<weight>-`
fn weighted(front: &str) -> Option<(&str, u32, bool)> {
    let (front, weight) = front.strip_suffix('-')?.rsplit_once('-')?;
    let weight = weight.parse().ok()?;
    match front.strip_suffix("-lease") {
        Some(id) => Some((id, weight, false)),
        None => Some((front.strip_suffix("-barged")?, weight, true)),
    }
}

/// The part before the sequence number, and the sequence number.
fn split(name: &str) -> Option<(&str, Sequence)> {
    let front = name.len().checked_sub(DIGITS)?;
    let digits = name.get(front..)?;
    if !digits.bytes().all(|b| b.is_ascii_digit()) {
        return negative(name);
    }
    let number: i64 = digits.parse().ok()?;
    match name[..front].strip_suffix('-') {
        // After a wrap-around: a minus sign and ten digits. A hyphen is a minus sign only after a word
        // that ends with a hyphen or an underscore of its own.
        Some(word) if word.ends_with(['-', '_']) => {
            Some((word, Sequence(i32::try_from(-number).ok()?)))
        }
        _ => Some((&name[..front], Sequence(i32::try_from(number).ok()?))),
    }
}

/// A negative number of fewer than ten digits is padded to ten characters with its sign.
fn negative(name: &str) -> Option<(&str, Sequence)> {
    let front = name.len().checked_sub(DIGITS)?;
    let text = name.get(front..)?;
    let digits = text.strip_prefix('-')?;
    if !digits.bytes().all(|b| b.is_ascii_digit()) {
        return None;
    }
    let number: i32 = text.parse().ok()?;
    Some((&name[..front], Sequence(number)))
}

/// Whether a name has the form of a claim's name, in any layout.
pub(super) fn is_like_a_claim(name: &str) -> bool {
    split(name).is_some()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wake(claim: u64) -> WakeAddress {
        WakeAddress { client: 7, claim }
    }

    fn claim(layout: NodeLayout, kind: Kind, name: &str) -> ClaimNode {
        match parse(layout, kind, name) {
            ChildNode::Claim(node) => node,
            other => panic!("{name} is {other:?}"),
        }
    }

    #[test]
    fn names_are_parsed_as_written() {
        let owner = Owner::new("ann").unwrap();
        let id = ProtectionId::new(&owner, wake(1));
        for (kind, weight, barged) in [
            (Kind::Lock, 1, false),
            (Kind::Election, 1, false),
            (Kind::ReadWrite, 1, false),
            (Kind::ReadWrite, ALL, false),
            (Kind::Semaphore, 3, false),
            (Kind::Semaphore, 1_000_000, true),
            (Kind::Barrier, 1, false),
        ] {
            for layout in [NodeLayout::Curator, NodeLayout::Kazoo] {
                for sequence in [0, 42, i32::MAX, i32::MIN, -2_000_000_000, -999_999_999, -1] {
                    let sequence = Sequence(sequence);
                    let front = prefix(layout, kind, id, weight, barged);
                    let node = claim(layout, kind, &format!("{front}{}", sequence.text()));
                    assert_eq!(node.id, Some(id), "{}", node.name);
                    assert_eq!((node.weight, node.barged), (weight, barged));
                    assert_eq!(node.sequence, sequence, "{}", node.name);
                }
            }
        }
    }

    #[test]
    fn names_of_other_libraries_are_parsed() {
        let curator = "_c_45c3e2cb-4ae1-4a38-a6e3-3d5f3a1a2b3c-lock-0000000003";
        assert_eq!(
            claim(NodeLayout::Curator, Kind::Lock, curator).sequence.0,
            3
        );
        assert_eq!(
            parse(NodeLayout::Kazoo, Kind::Lock, curator),
            ChildNode::Foreign
        );
        let kazoo = "5d1c5a7d8a5b4d5e9f0a1b2c3d4e5f60__lock__0000000012";
        assert_eq!(claim(NodeLayout::Kazoo, Kind::Lock, kazoo).sequence.0, 12);
        assert_eq!(
            parse(NodeLayout::Curator, Kind::Lock, kazoo),
            ChildNode::Foreign
        );
        assert_eq!(
            parse(NodeLayout::Curator, Kind::Lock, "x-17-0000000001"),
            ChildNode::Foreign
        );
        assert_eq!(
            parse(NodeLayout::Curator, Kind::Lock, "0000000001"),
            ChildNode::Foreign
        );
        assert_eq!(
            parse(NodeLayout::Curator, Kind::Lock, "orders"),
            ChildNode::Other
        );
        let writer = "_c_45c3e2cb-4ae1-4a38-a6e3-3d5f3a1a2b3c-__WRIT__0000000004";
        assert_eq!(
            claim(NodeLayout::Curator, Kind::ReadWrite, writer).weight,
            ALL
        );
    }

    #[test]
    fn protection_ids_of_one_owner_match() {
        let (ann, bob) = (Owner::new("ann").unwrap(), Owner::new("bob").unwrap());
        let id = ProtectionId::new(&ann, wake(1));
        assert!(id.same_owner(ProtectionId::new(&ann, wake(2))));
        assert!(!id.same_owner(ProtectionId::new(&bob, wake(1))));
        let again = ProtectionId::new(&ann, wake(1));
        assert!(id.same_claim(again) && id != again);
        assert!(!id.same_claim(ProtectionId::new(&ann, wake(2))));
    }

    #[test]
    fn order_survives_wrap_around() {
        let numbers = [i32::MAX - 1, i32::MAX, i32::MIN, i32::MIN + 1].map(Sequence);
        for pair in numbers.windows(2) {
            assert_eq!(pair[0].order(pair[1]), Ordering::Less);
            assert_eq!(pair[1].order(pair[0]), Ordering::Greater);
        }
        let zero = [-1, 0, 1].map(Sequence);
        assert_eq!(zero[0].order(zero[2]), Ordering::Less);
    }
}
