//! The names of claims' nodes, in the layouts that other libraries use.
//!
//! `_c_<uuid>-lock-<sequence>` is Curator's mutex, `-latch-` its leader latch, `-__READ__` and
//! `-__WRIT__` its read-write lock; `<uuid>__lock__<sequence>` is kazoo's lock. Semaphores and barriers
//! are laid out the same way, in names of our own.
//!
//! Curator marks its nodes with a random UUID, so that one whose creation went unanswered is found
//! again. Ours says more: its first half is a digest of the owner, so that anybody finds what an owner
//! has, and the second half is the claim's own.

use std::cmp::Ordering;

use sha2::{Digest as _, Sha256};

use windlass_core::Owner;
use windlass_core::store::{Kind, WakeAddress};

/// All of a read-write lock.
const ALL: u32 = windlass_core::store::MAX_READERS;
/// The digits of a sequence number.
const DIGITS: usize = 10;

/// Whose names a lock's nodes have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Layout {
    Curator,
    Kazoo,
}

/// The mark of a claim, in its node's name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Mark(pub(super) [u8; 16]);

impl Mark {
    /// The mark of one claim of an owner.
    pub(super) fn new(owner: &Owner, wake: WakeAddress) -> Mark {
        let mut mark = [0; 16];
        mark[..8].copy_from_slice(&half(&[owner.as_str().as_bytes()]));
        let (client, claim) = (wake.client.to_be_bytes(), wake.claim.to_be_bytes());
        mark[8..].copy_from_slice(&half(&[b"claim", &client, &claim]));
        Mark(mark)
    }

    /// Whether both are an owner's.
    pub(super) fn same_owner(self, other: Mark) -> bool {
        self.0[..8] == other.0[..8]
    }

    fn hex(self) -> String {
        self.0.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    fn uuid(self) -> String {
        let hex = self.hex();
        let (a, b, c) = (&hex[..8], &hex[8..12], &hex[12..16]);
        format!("{a}-{b}-{c}-{}-{}", &hex[16..20], &hex[20..])
    }

    fn parse(text: &str) -> Option<Mark> {
        let hex: String = text.chars().filter(|c| *c != '-').collect();
        let mut mark = [0; 16];
        if hex.len() != 32 || !hex.is_ascii() {
            return None;
        }
        for (i, byte) in mark.iter_mut().enumerate() {
            *byte = u8::from_str_radix(&hex[2 * i..2 * i + 2], 16).ok()?;
        }
        Some(Mark(mark))
    }
}

fn half(parts: &[&[u8]]) -> [u8; 8] {
    let mut hasher = Sha256::new();
    for part in parts {
        hasher.update(part);
    }
    let digest = hasher.finalize();
    let mut half = [0; 8];
    half.copy_from_slice(&digest[..8]);
    half
}

/// One claim, as its node's name tells.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Node {
    /// The name.
    pub(super) name: String,
    /// Its mark; `None` for a library that does not mark its nodes.
    pub(super) mark: Option<Mark>,
    /// How much it takes.
    pub(super) weight: u32,
    /// Whether it went ahead of others who wait, and holds whatever comes before it.
    pub(super) barged: bool,
    /// Its place in line.
    pub(super) sequence: Sequence,
}

/// A number that the server counts up for every child, and that comes round after 2³¹.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Sequence(pub(super) i32);

impl Sequence {
    /// Which came first. No two that are alive are 2³¹ apart, so the shorter way round tells.
    pub(super) fn order(self, other: Sequence) -> Ordering {
        self.0.wrapping_sub(other.0).cmp(&0)
    }

    /// As the server writes it.
    pub(super) fn text(self) -> String {
        format!("{:010}", self.0)
    }
}

/// What a claim's node is called, up to the sequence number.
pub(super) fn prefix(layout: Layout, kind: Kind, mark: Mark, weight: u32, barged: bool) -> String {
    let uuid = mark.uuid();
    match (kind, layout) {
        (Kind::Lock, Layout::Kazoo) => format!("{}__lock__", mark.hex()),
        (Kind::Lock, Layout::Curator) => format!("_c_{uuid}-lock-"),
        (Kind::Election, _) => format!("_c_{uuid}-latch-"),
        (Kind::ReadWrite, _) if weight == ALL => format!("_c_{uuid}-__WRIT__"),
        (Kind::ReadWrite, _) => format!("_c_{uuid}-__READ__"),
        (Kind::Barrier, _) => format!("_c_{uuid}-party-"),
        _ if barged => format!("_c_{uuid}-barged-{weight}-"),
        _ => format!("_c_{uuid}-lease-{weight}-"),
    }
}

/// What a child of a parent of claims is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Child {
    Claim(Node),
    /// A claim of another layout: who made it does not see ours.
    Foreign,
    /// Something else: the path of longer names leads through here.
    Other,
}

/// Reads the name of a child.
pub(super) fn read(layout: Layout, kind: Kind, name: &str) -> Child {
    let (front, sequence) = match split(name) {
        Some((front, sequence)) if !front.is_empty() => (front, sequence),
        Some(_) => return Child::Foreign,
        None => return Child::Other,
    };
    let node = |mark: &str, weight, barged| {
        Child::Claim(Node {
            name: name.to_owned(),
            mark: Mark::parse(mark),
            weight,
            barged,
            sequence,
        })
    };
    let protected = front.strip_prefix("_c_").unwrap_or(front);
    let marked = |ending: &str| {
        let rest = protected.strip_suffix(ending)?;
        // Curator without protection writes the bare word.
        Some(rest.strip_suffix('-').unwrap_or(rest))
    };
    let known = match (kind, layout) {
        (Kind::Lock, Layout::Kazoo) => protected
            .strip_suffix("__lock__")
            .map(|m| node(m, 1, false)),
        (Kind::Lock, Layout::Curator) => marked("lock-").map(|m| node(m, 1, false)),
        (Kind::Election, _) => marked("latch-").map(|m| node(m, 1, false)),
        (Kind::ReadWrite, _) => marked("__READ__")
            .map(|m| node(m, 1, false))
            .or_else(|| marked("__WRIT__").map(|m| node(m, ALL, false))),
        (Kind::Barrier, _) => marked("party-").map(|m| node(m, 1, false)),
        _ => weighted(protected).map(|(mark, weight, barged)| node(mark, weight, barged)),
    };
    known.unwrap_or(Child::Foreign)
}

/// `<mark>-lease-<weight>-`
fn weighted(front: &str) -> Option<(&str, u32, bool)> {
    let (front, weight) = front.strip_suffix('-')?.rsplit_once('-')?;
    let weight = weight.parse().ok()?;
    match front.strip_suffix("-lease") {
        Some(mark) => Some((mark, weight, false)),
        None => Some((front.strip_suffix("-barged")?, weight, true)),
    }
}

/// What is in front of the sequence number, and that.
fn split(name: &str) -> Option<(&str, Sequence)> {
    let front = name.len().checked_sub(DIGITS)?;
    let digits = name.get(front..)?;
    if !digits.bytes().all(|b| b.is_ascii_digit()) {
        return negative(name);
    }
    let number: i64 = digits.parse().ok()?;
    match name[..front].strip_suffix('-') {
        // After it came round: a sign and ten digits. A hyphen of the word before is told by the number.
        Some(word) if word.ends_with(['-', '_']) => {
            Some((word, Sequence(i32::try_from(-number).ok()?)))
        }
        _ => Some((&name[..front], Sequence(i32::try_from(number).ok()?))),
    }
}

/// A negative number of fewer than ten digits takes ten characters with its sign.
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

/// Whether a name could be taken for that of a claim, of whatever layout.
pub(super) fn looks_like_a_claim(name: &str) -> bool {
    split(name).is_some()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wake(claim: u64) -> WakeAddress {
        WakeAddress { client: 7, claim }
    }

    fn claim(layout: Layout, kind: Kind, name: &str) -> Node {
        match read(layout, kind, name) {
            Child::Claim(node) => node,
            other => panic!("{name} is {other:?}"),
        }
    }

    #[test]
    fn what_is_written_is_read() {
        let owner = Owner::new("ann").unwrap();
        let mark = Mark::new(&owner, wake(1));
        for (kind, weight, barged) in [
            (Kind::Lock, 1, false),
            (Kind::Election, 1, false),
            (Kind::ReadWrite, 1, false),
            (Kind::ReadWrite, ALL, false),
            (Kind::Semaphore, 3, false),
            (Kind::Semaphore, 1_000_000, true),
            (Kind::Barrier, 1, false),
        ] {
            for layout in [Layout::Curator, Layout::Kazoo] {
                for sequence in [0, 42, i32::MAX, i32::MIN, -2_000_000_000, -999_999_999, -1] {
                    let sequence = Sequence(sequence);
                    let front = prefix(layout, kind, mark, weight, barged);
                    let node = claim(layout, kind, &format!("{front}{}", sequence.text()));
                    assert_eq!(node.mark, Some(mark), "{}", node.name);
                    assert_eq!((node.weight, node.barged), (weight, barged));
                    assert_eq!(node.sequence, sequence, "{}", node.name);
                }
            }
        }
    }

    #[test]
    fn nodes_of_other_libraries() {
        let curator = "_c_45c3e2cb-4ae1-4a38-a6e3-3d5f3a1a2b3c-lock-0000000003";
        assert_eq!(claim(Layout::Curator, Kind::Lock, curator).sequence.0, 3);
        assert_eq!(read(Layout::Kazoo, Kind::Lock, curator), Child::Foreign);
        let kazoo = "5d1c5a7d8a5b4d5e9f0a1b2c3d4e5f60__lock__0000000012";
        assert_eq!(claim(Layout::Kazoo, Kind::Lock, kazoo).sequence.0, 12);
        assert_eq!(read(Layout::Curator, Kind::Lock, kazoo), Child::Foreign);
        assert_eq!(
            read(Layout::Curator, Kind::Lock, "x-17-0000000001"),
            Child::Foreign
        );
        assert_eq!(
            read(Layout::Curator, Kind::Lock, "0000000001"),
            Child::Foreign
        );
        assert_eq!(read(Layout::Curator, Kind::Lock, "orders"), Child::Other);
        let writer = "_c_45c3e2cb-4ae1-4a38-a6e3-3d5f3a1a2b3c-__WRIT__0000000004";
        assert_eq!(claim(Layout::Curator, Kind::ReadWrite, writer).weight, ALL);
    }

    #[test]
    fn an_owner_is_found_by_the_mark() {
        let (ann, bob) = (Owner::new("ann").unwrap(), Owner::new("bob").unwrap());
        let mark = Mark::new(&ann, wake(1));
        assert!(mark.same_owner(Mark::new(&ann, wake(2))));
        assert!(!mark.same_owner(Mark::new(&bob, wake(1))));
    }

    #[test]
    fn the_order_survives_coming_round() {
        let numbers = [i32::MAX - 1, i32::MAX, i32::MIN, i32::MIN + 1].map(Sequence);
        for pair in numbers.windows(2) {
            assert_eq!(pair[0].order(pair[1]), Ordering::Less);
            assert_eq!(pair[1].order(pair[0]), Ordering::Greater);
        }
        let zero = [-1, 0, 1].map(Sequence);
        assert_eq!(zero[0].order(zero[2]), Ordering::Less);
    }
}
