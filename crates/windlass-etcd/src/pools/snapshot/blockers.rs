//! Which claims of a pool block which others.

use std::cmp::Reverse;

use super::{ClaimEntry, MAX_WATCHED, PoolSnapshot, WaitingClaim, holds_for_certain};
use windlass_core::store::Kind;

impl PoolSnapshot {
    /// The claims that must stay for no waiter to be granted: the first waiter, which blocks those behind it, and
    /// enough holders to leave no capacity for it. Empty if none waits, and for a large semaphore.
    pub(crate) fn blockers_of_first(&self, kind: Kind) -> Vec<&ClaimEntry> {
        let size = self.size(kind).unwrap_or(0);
        let first = self.waiters().find(|entry| entry.stored.weight <= size);
        let Some(first) = first.filter(|_| !self.is_large(kind)) else {
            return Vec::new();
        };
        let mut holders: Vec<&ClaimEntry> = self.holders().collect();
        holders.sort_by_key(|entry| Reverse(entry.stored.weight));
        let mut taken = u64::from(first.stored.weight);
        let mut blockers = vec![first];
        for holder in holders {
            if taken > u64::from(size) {
                break;
            }
            taken += u64::from(holder.stored.weight);
            blockers.push(holder);
        }
        blockers
    }

    /// Some claims that block a waiter for as long as none of them changes, nor the size. Older claims block it
    /// whether they hold or wait; newer ones only if they hold for certain. Chosen are the newest of them, which
    /// are likely to stay longest, or the heaviest if the newest would be too many.
    ///
    /// In a large semaphore, two of the waiters ahead if there are as many: waiters become holders by a write
    /// there, and cannot be overtaken by this one. One is the last ahead of it, the other half-way to the first: so
    /// the waiters behind a client that died still learn of free capacity, and if much becomes free at once, all
    /// of them do soon.
    ///
    /// `None` if these would be too many, or if something else blocks the waiter.
    pub(crate) fn blockers_of(&self, kind: Kind, waiter: WaitingClaim) -> Option<Vec<&ClaimEntry>> {
        if !matches!(kind, Kind::Semaphore | Kind::ReadWrite) {
            return None; // a barrier opens and closes for all
        }
        let size = self.size(kind).filter(|size| waiter.weight <= *size)?;
        let is_ahead = |entry: &&ClaimEntry| entry.created() < waiter.created;
        // A claim that can never fit blocks no other.
        let can_fit = |entry: &&ClaimEntry| entry.stored.weight <= size;
        if self.is_large(kind) {
            let waiters = self.waiters().filter(is_ahead).filter(can_fit);
            let waiters: Vec<&ClaimEntry> = waiters.collect();
            if waiters.len() >= 2 {
                let last = waiters.len() - 1;
                return Some(vec![waiters[last / 2], waiters[last]]);
            }
        }
        let through = self.stored.and_then(|pool| pool.through);
        let ahead = self.entries.iter().rev().filter(is_ahead).filter(can_fit);
        let behind = self.entries.iter();
        let behind = behind.filter(|entry| entry.created() > waiter.created);
        let behind = behind.filter(|entry| holds_for_certain(entry, through));
        let mut blockers: Vec<&ClaimEntry> = ahead.chain(behind).collect();
        let enough = |entries: &[&ClaimEntry]| {
            let mut taken = u64::from(waiter.weight);
            let leaves_no_capacity = |entry: &&ClaimEntry| {
                taken += u64::from(entry.stored.weight);
                taken > u64::from(size)
            };
            let mut watched = entries.iter().take(MAX_WATCHED);
            watched.position(leaves_no_capacity).map(|last| last + 1)
        };
        let mut count = enough(&blockers);
        if count.is_none() {
            blockers.sort_by_key(|entry| Reverse(entry.stored.weight));
            count = enough(&blockers);
        }
        blockers.truncate(count?);
        Some(blockers)
    }

    /// The waiters that must enter the queue again when the size changes. Some are older than a holder, which could
    /// pass them because they were too heavy: they would be counted among the holders. Others are too heavy now: a
    /// newer claim may have passed them and be gone, and if they fitted again, their fences would be lower.
    pub(crate) fn passed_over(
        &self,
        kind: Kind,
        through: Option<i64>,
    ) -> impl Iterator<Item = &ClaimEntry> {
        let size = self.size(kind).unwrap_or(0);
        self.waiters().filter(move |entry| {
            entry.stored.weight > size || through.is_some_and(|through| entry.created() <= through)
        })
    }

    /// For a snapshot of some older claims only: whether these leave no capacity for that weight.
    pub(crate) fn is_full_for(&self, size: u32, weight: u32) -> bool {
        let ahead = self.entries.iter().map(|entry| entry.stored.weight);
        let ahead: u64 = ahead.filter(|weight| *weight <= size).map(u64::from).sum();
        ahead + u64::from(weight) > u64::from(size)
    }
}
