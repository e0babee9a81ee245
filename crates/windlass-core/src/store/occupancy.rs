//! What inspection shows: the holders of a name, and how many wait.

use std::time::Duration;

use super::Kind;
use crate::Fence;

/// A holder, as inspection shows it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Holder {
    /// The owner. Bytes of other libraries that are not UTF-8 are escaped.
    pub owner: String,
    /// The fence; `None` for a holder that uses a library without fences.
    pub fence: Option<Fence>,
    /// The weight of its claim: 1 for a lock.
    pub weight: u32,
    /// Time left unless renewed; `None` for a key of another library that never expires.
    #[cfg_attr(
        feature = "serde",
        serde(rename = "remaining_ms", with = "crate::millis")
    )]
    pub remaining: Option<Duration>,
    /// How long it has been held, where known.
    #[cfg_attr(feature = "serde", serde(rename = "age_ms", with = "crate::millis"))]
    pub age: Option<Duration>,
    /// The holder's note.
    pub note: Option<String>,
}

impl Holder {
    /// A holder of weight 1, without further details.
    pub fn new(owner: impl Into<String>) -> Holder {
        Holder {
            owner: owner.into(),
            fence: None,
            weight: 1,
            remaining: None,
            age: None,
            note: None,
        }
    }

    /// A holder of unknown identity.
    pub fn unknown() -> Holder {
        Holder::new("another client")
    }
}

/// The state of one name, as inspection shows it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Occupancy {
    /// The primitive.
    pub kind: Kind,
    /// The name; a store includes the namespace.
    pub name: String,
    /// The size of the pool; 0 if it is not known, because no client has stated it recently.
    pub size: u32,
    /// The weight of all holders.
    pub used: u64,
    /// The number of waiters.
    pub waiters: u64,
    /// The holders in the order of their expiry; not all of them if there are more than were
    /// requested.
    pub holders: Vec<Holder>,
    /// For a barrier, from when all parties have arrived until all have left: a number unique to
    /// this round.
    pub open: Option<Fence>,
}

impl Occupancy {
    /// A name without holders and waiters, whose size is not known.
    pub fn new(kind: Kind, name: impl Into<String>) -> Occupancy {
        Occupancy {
            kind,
            name: name.into(),
            size: 0,
            used: 0,
            waiters: 0,
            holders: Vec::new(),
            open: None,
        }
    }
}
