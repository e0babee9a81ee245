//! Acknowledgement of grants by replicas.

use std::time::Duration;

/// A grant counts only once this many replicas have acknowledged it in time; otherwise it is
/// released.
///
/// This narrows the window in which a failover can lose a lock, and does not close it: a failover
/// may still promote a replica that has not acknowledged. Only stores that replicate asynchronously
/// offer it (`redis://`, `redis+sentinel://`, `redis+cluster://`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Replicas {
    /// The number of replicas.
    pub count: u32,
    /// How long to wait for them.
    pub timeout: Duration,
    /// Whether the grant must be on the disks of the master and of these replicas.
    pub on_disk: bool,
}

/// How many copies of a grant exist.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Acknowledged {
    /// Whether the claim is held.
    pub is_held: bool,
    /// The number of replicas that have acknowledged it.
    pub replicas: u32,
    /// Whether it is on the disk of the master, if that was requested.
    pub on_own_disk: bool,
}

impl Acknowledged {
    /// Whether these are the copies that `wanted` requires.
    pub fn is_enough(&self, wanted: &Replicas) -> bool {
        self.is_held && self.replicas >= wanted.count && (self.on_own_disk || !wanted.on_disk)
    }
}
