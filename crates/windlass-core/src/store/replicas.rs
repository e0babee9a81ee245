//! How many copies of a grant must exist before it counts.

use std::time::Duration;

/// A grant counts only when so many replicas have acknowledged it in time; otherwise it is undone.
///
/// It narrows what a failover can break, and does not close it: a failover may still choose a replica
/// that had not acknowledged. Only stores that replicate asynchronously offer it (`redis://`,
/// `redis+sentinel://`, `redis+cluster://`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Replicas {
    /// How many.
    pub count: u32,
    /// How long to wait for them.
    pub timeout: Duration,
    /// Whether it must have reached the disks of the master and of so many replicas.
    pub on_disk: bool,
}

/// What became of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Acknowledged {
    /// Whether the claim was there at all.
    pub is_held: bool,
    /// How many replicas have it.
    pub replicas: u32,
    /// Whether the disk of the master has it, where that was asked for.
    pub on_own_disk: bool,
}

impl Acknowledged {
    /// Whether that is what was wanted.
    pub fn is_enough(&self, wanted: &Replicas) -> bool {
        self.is_held && self.replicas >= wanted.count && (self.on_own_disk || !wanted.on_disk)
    }
}
