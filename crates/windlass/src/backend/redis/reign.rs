//! Fences over a change of masters.
//!
//! Replication is asynchronous, and so is what reaches the disk: a master that takes over, or one that
//! starts anew, may have forgotten the last numbers that were given out. Each start of a reign has a
//! replication id of its own. Before the first grant over a connection, whoever asks for it makes sure
//! that the counter was raised for that reign: `scripts/reign.lua` does so once. So no fence of a new
//! reign is as low as one of an old reign, whatever got lost, and no clock is needed for it as long as
//! fewer than [`MARGIN`] grants got lost.

use std::sync::atomic::{AtomicU64, Ordering};

use super::slots::SLOTS;

/// More grants than a replica can have missed while it was connected: 256 MB of them (the usual limit of
/// what a master keeps for a slow replica), at less than a hundred bytes each, are under 4 million. As
/// microseconds, which a counter starts from, they are 4 seconds.
pub(super) const MARGIN: u64 = 1 << 22;

/// Whether a command takes numbers from the counter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Draws {
    Never,
    /// Not usually, and it must be tried even on a server that refuses to raise the counter (having no
    /// memory left, say): such a server would refuse to draw from it, too.
    Perhaps,
    Surely,
}

/// For which counters that was made sure, over one connection.
#[derive(Debug)]
pub(super) struct Assured(Box<[AtomicU64]>);

impl Assured {
    pub(super) fn new() -> Assured {
        let words = usize::from(SLOTS) / 64;
        Assured((0..words).map(|_| AtomicU64::new(0)).collect())
    }

    pub(super) fn has(&self, slot: u16) -> bool {
        let (word, bit) = place(slot);
        self.0[word].load(Ordering::Acquire) & bit != 0
    }

    pub(super) fn set(&self, slot: u16) {
        let (word, bit) = place(slot);
        self.0[word].fetch_or(bit, Ordering::AcqRel);
    }

    /// The slot is elsewhere, and may come back.
    pub(super) fn clear(&self, slot: u16) {
        let (word, bit) = place(slot);
        self.0[word].fetch_and(!bit, Ordering::AcqRel);
    }
}

fn place(slot: u16) -> (usize, u64) {
    (usize::from(slot / 64), 1 << (slot % 64))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_do_not_stand_for_each_other() {
        let assured = Assured::new();
        for slot in [0, 63, 64, SLOTS - 1] {
            assert!(!assured.has(slot));
            assured.set(slot);
            assert!(assured.has(slot));
        }
        assert!(!assured.has(1) && !assured.has(65));
        assured.clear(64);
        assert!(!assured.has(64) && assured.has(63));
    }
}
