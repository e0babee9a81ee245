//! Inventory: the names under which a store keeps data. Claims and limiters have lists of their own,
//! [`ClaimStore::list`](super::ClaimStore::list) and [`LimitStore::list`](super::limit::LimitStore::list).

use std::fmt;

use super::Pending;
use super::unsupported::{ALL_COORDINATION, ALL_PRIMITIVES, not_supported};
use crate::error::Error;

/// Lists names.
pub trait InventoryStore: Send + Sync + fmt::Debug {
    /// At most `most` of the names of this kind that match the pattern, where `*` matches any text and
    /// `?` one character. Without those whose retention is over.
    fn names(&self, kind: DataKind, pattern: String, most: usize) -> Pending<'_, NamePage>;
}

/// A primitive that keeps data under a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum DataKind {
    /// A latch.
    Latch,
    /// A gate.
    Gate,
    /// A counter.
    Counter,
    /// A Bloom filter.
    Bloom,
    /// A permission space.
    Permissions,
    /// An idempotency key.
    Once,
}

impl DataKind {
    /// All of them.
    pub const ALL: [DataKind; 6] = [
        DataKind::Latch,
        DataKind::Gate,
        DataKind::Counter,
        DataKind::Bloom,
        DataKind::Permissions,
        DataKind::Once,
    ];

    /// The kind as a word: `latch`, `gate`, …
    pub fn word(self) -> &'static str {
        match self {
            DataKind::Latch => "latch",
            DataKind::Gate => "gate",
            DataKind::Counter => "counter",
            DataKind::Bloom => "bloom",
            DataKind::Permissions => "perm",
            DataKind::Once => "once",
        }
    }

    /// The error of a store that does not support this kind.
    pub fn unsupported(self, store: &'static str) -> Error {
        let (primitive, stores) = match self {
            DataKind::Latch => ("latches", ALL_COORDINATION),
            DataKind::Gate => ("gates", ALL_COORDINATION),
            DataKind::Counter => ("counters", ALL_PRIMITIVES),
            DataKind::Bloom => ("Bloom filters", ALL_PRIMITIVES),
            DataKind::Permissions => ("permissions", ALL_PRIMITIVES),
            DataKind::Once => ("`once`", ALL_PRIMITIVES),
        };
        not_supported(store, primitive, None, stores)
    }
}

/// Names found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct NamePage {
    /// The names, in order.
    pub names: Vec<String>,
    /// Whether there are more than were asked for.
    pub more: bool,
}

impl NamePage {
    /// The first `most` of these names.
    pub fn new(mut names: Vec<String>, most: usize) -> NamePage {
        names.sort_unstable();
        names.dedup();
        let more = names.len() > most;
        names.truncate(most);
        NamePage { names, more }
    }
}
