//! Which claims of a pool hold.
//!
//! Nothing is written when capacity passes from one claim to the next. Which claims hold follows from the keys
//! that exist: the oldest claims, as many as fit. So a claim that ends, in whatever way, hands over by that.
//!
//! **Safety.** A claim that holds keeps holding until its own key is gone: newer claims cannot displace it, and
//! older ones only leave. When the size is reduced, the claims that held are recorded
//! ([`StoredPool::through`]). A claim that barges in is recorded as [admitted](StoredClaim::admitted), in a
//! transaction that fails if another claim was granted since the pool was read.
//!
//! **How a transaction makes sure of that.** A claim that leaves writes nothing, so the transaction checks the
//! keys that must still exist for no waiter to be granted ([`PoolSnapshot::blockers_of_first`]). In a large
//! semaphore these would be more than a transaction can check. There, a waiter becomes a holder by a write: it
//! is recorded as admitted. So none was granted if nothing was written.

mod blockers;
#[cfg(test)]
mod tests;

use std::borrow::Cow;
use std::collections::HashMap;

use crate::errors::foreign_key;
use crate::keys::unescape;
use crate::proto::KeyValue;
use crate::record::{StoredClaim, StoredPool};
use windlass_core::Fence;
use windlass_core::error::Result;
use windlass_core::store::{AcquireRequest, Kind, OnSizeMismatch, Refusal};

/// The most keys that are watched for one waiter, unless all keys of the pool are.
const MAX_WATCHED: usize = 64;

/// A semaphore of this size or more is large: the claims that block a waiter may be too many to be watched. A
/// smaller one also has so few holders that a transaction can check them all, and more conditions besides
/// ([`MAX_OPS`](crate::txn::MAX_OPS)).
const LARGE: u32 = MAX_WATCHED as u32 + 1;

/// The keys of a pool at one revision.
#[derive(Clone, Debug, Default)]
pub(crate) struct PoolSnapshot {
    pub(crate) revision: i64,
    pub(crate) stored: Option<StoredPool>,
    /// The mod revision of the pool's own key; 0 if it does not exist.
    pub(crate) stored_revision: i64,
    /// The oldest first.
    pub(crate) entries: Vec<ClaimEntry>,
    /// Which of the entries hold.
    held: Vec<bool>,
    by_key: HashMap<Vec<u8>, usize>,
}

/// A claim in the pool.
#[derive(Clone, Debug)]
pub(crate) struct ClaimEntry {
    pub(crate) owner: String,
    pub(crate) stored: StoredClaim,
    pub(crate) kv: KeyValue,
}

/// A claim that waits.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WaitingClaim {
    /// The create revision of its key.
    pub(crate) created: i64,
    pub(crate) weight: u32,
}

/// What a snapshot says about a claim.
pub(crate) enum ClaimStatus<'a> {
    Held(&'a ClaimEntry),
    /// It may hold, but only after a write that records that.
    HeldOnceRecorded(&'a ClaimEntry),
    Waiting(&'a ClaimEntry),
    /// It waits, and can never hold: its weight exceeds the size.
    TooHeavy(&'a ClaimEntry),
    /// It has no key.
    Gone,
}

impl ClaimEntry {
    pub(crate) fn key(&self) -> Cow<'_, str> {
        String::from_utf8_lossy(&self.kv.key)
    }

    pub(crate) fn waiting(&self) -> WaitingClaim {
        WaitingClaim {
            created: self.created(),
            weight: self.stored.weight,
        }
    }

    pub(crate) fn created(&self) -> i64 {
        self.kv.create_revision
    }

    /// The fence, or while it waits the ticket that becomes the fence.
    pub(crate) fn fence(&self) -> Fence {
        Fence::new(self.stored.fence.unwrap_or(self.created() as u64))
    }
}

impl PoolSnapshot {
    /// From all keys under the pool's prefix.
    pub(crate) fn new(
        kind: Kind,
        prefix: &str,
        revision: i64,
        kvs: Vec<KeyValue>,
    ) -> Result<PoolSnapshot> {
        let mut pool = PoolSnapshot {
            revision,
            ..PoolSnapshot::default()
        };
        for kv in kvs {
            let rest = kv.key.get(prefix.len()..).unwrap_or_default();
            let rest = String::from_utf8_lossy(rest).into_owned();
            match rest.strip_prefix(':') {
                Some(owner) => {
                    let stored =
                        StoredClaim::from_json(&kv.value).ok_or_else(|| foreign_key(&kv.key))?;
                    let owner = unescape(owner);
                    pool.entries.push(ClaimEntry { owner, stored, kv });
                }
                None => {
                    let stored =
                        StoredPool::from_json(&kv.value).ok_or_else(|| foreign_key(&kv.key))?;
                    pool.stored = Some(stored);
                    pool.stored_revision = kv.mod_revision;
                }
            }
        }
        pool.entries.sort_by_key(ClaimEntry::created);
        let keys = pool.entries.iter().map(|entry| entry.kv.key.clone());
        pool.by_key = keys.zip(0..).collect();
        pool.held = pool.which_hold(kind);
        Ok(pool)
    }

    /// The size, if it is stored or a claim names it.
    pub(crate) fn size(&self, kind: Kind) -> Option<u32> {
        let stored = match kind {
            Kind::Semaphore => self.stored,
            // The size of a barrier is valid for one round.
            _ => self.stored.filter(|_| self.round().is_some()),
        };
        let stored = stored.map(|pool| pool.size).filter(|size| *size > 0);
        stored.or_else(|| self.entries.first().map(|entry| entry.stored.size))
    }

    /// The round of a barrier that is open: until all claims of the round are gone.
    pub(crate) fn round(&self) -> Option<Fence> {
        let stored = self.stored?;
        let through = stored.through?;
        let is_left = |entry: &ClaimEntry| entry.created() <= through;
        let some_left = self.entries.first().is_some_and(is_left);
        stored.round().filter(|_| some_left)
    }

    /// Decides whether a claim holds.
    pub(crate) fn status(&self, kind: Kind, key: &str) -> ClaimStatus<'_> {
        let Some((at, entry)) = self.find(key) else {
            return ClaimStatus::Gone;
        };
        let is_too_heavy = |size: u32| entry.stored.weight > size;
        match self.holds(at) {
            true if self.must_be_recorded(kind, entry) => ClaimStatus::HeldOnceRecorded(entry),
            true => ClaimStatus::Held(entry),
            false if self.size(kind).is_some_and(is_too_heavy) => ClaimStatus::TooHeavy(entry),
            false => ClaimStatus::Waiting(entry),
        }
    }

    /// Whether the entry at that index holds.
    pub(crate) fn holds(&self, at: usize) -> bool {
        self.held[at]
    }

    pub(crate) fn holders(&self) -> impl Iterator<Item = &ClaimEntry> {
        let held = self.entries.iter().zip(&self.held);
        held.filter_map(|(entry, held)| held.then_some(entry))
    }

    pub(crate) fn waiters(&self) -> impl Iterator<Item = &ClaimEntry> {
        let held = self.entries.iter().zip(&self.held);
        held.filter_map(|(entry, held)| (!held).then_some(entry))
    }

    fn which_hold(&self, kind: Kind) -> Vec<bool> {
        let size = u64::from(self.size(kind).unwrap_or(0));
        let through = match kind {
            Kind::Barrier => self.round().and(self.stored).and_then(|pool| pool.through),
            _ => self.stored.and_then(|pool| pool.through),
        };
        let is_certain = |entry: &&ClaimEntry| holds_for_certain(entry, through);
        let weight = |entry: &ClaimEntry| u64::from(entry.stored.weight);
        let certain = self.entries.iter().filter(is_certain);
        let mut used: u64 = certain.map(weight).sum();
        let mut is_full = self.round().is_some();
        self.entries
            .iter()
            .map(|entry| {
                if holds_for_certain(entry, through) {
                    return true;
                }
                // A claim that can never fit blocks no other.
                if is_full || weight(entry) > size {
                    return false;
                }
                is_full = used + weight(entry) > size;
                if !is_full {
                    used += weight(entry);
                }
                !is_full
            })
            .collect()
    }

    /// The capacity in use.
    pub(crate) fn used(&self) -> u64 {
        let weights = self.holders().map(|entry| u64::from(entry.stored.weight));
        weights.sum()
    }

    /// Whether a claim waits that can be granted some day.
    pub(crate) fn has_waiters(&self, kind: Kind) -> bool {
        let size = self.size(kind).unwrap_or(0);
        self.waiters().any(|entry| entry.stored.weight <= size)
    }

    /// Whether a claim of that weight would fit if none waited.
    pub(crate) fn fits(&self, size: u32, weight: u32) -> bool {
        self.round().is_none() && self.used() + u64::from(weight) <= u64::from(size)
    }

    pub(crate) fn find(&self, key: &str) -> Option<(usize, &ClaimEntry)> {
        let at = *self.by_key.get(key.as_bytes())?;
        Some((at, &self.entries[at]))
    }

    /// Whether a claim has that revision as its fence, or may get it.
    pub(crate) fn is_fence(&self, revision: i64) -> bool {
        let fence = Fence::new(revision as u64);
        self.entries
            .iter()
            .any(|entry| entry.fence() == fence || entry.created() == revision)
    }

    /// Whether a claim that barged in has overtaken a waiter, which then needs a higher fence than its ticket.
    pub(crate) fn was_overtaken(&self, entry: &ClaimEntry) -> bool {
        let overtook = self.stored.and_then(|pool| pool.overtook);
        entry.stored.fence.is_none() && overtook.is_some_and(|at| entry.created() <= at)
    }

    /// Why a request can never be granted, if so.
    pub(crate) fn refusal(&self, request: &AcquireRequest, key: &str) -> Option<Refusal> {
        let share = request.share;
        let stored = self.size(request.kind).unwrap_or(share.size);
        if stored != share.size && share.on_size_mismatch == OnSizeMismatch::Refuse {
            return Some(Refusal::OtherSize { stored });
        }
        if share.weight > stored {
            return Some(Refusal::TooHeavy { stored });
        }
        let claimed = self.find(key)?.1.stored.weight;
        (claimed != share.weight).then_some(Refusal::OtherWeight { claimed })
    }

    /// Whether waiters become holders by a write. Only for semaphores: other pools have a fixed size, and
    /// admit no barging.
    pub(crate) fn is_large(&self, kind: Kind) -> bool {
        kind == Kind::Semaphore && self.size(kind).is_some_and(is_large)
    }

    /// Whether a claim that holds by this snapshot must be recorded as a holder first.
    fn must_be_recorded(&self, kind: Kind, entry: &ClaimEntry) -> bool {
        if entry.stored.admitted {
            return false;
        }
        // The write of a claim that fits at once has recorded it.
        let waited = entry.created() < self.revision;
        let through = self.stored.and_then(|pool| pool.through);
        let is_certain = through.is_some_and(|through| entry.created() <= through);
        self.was_overtaken(entry) || (self.is_large(kind) && waited && !is_certain)
    }

    /// The newest claim that holds and is not recorded as admitted, for [`StoredPool::through`].
    pub(crate) fn held_through(&self) -> Option<i64> {
        let held = self.holders().filter(|entry| !entry.stored.admitted);
        held.map(ClaimEntry::created).max()
    }
}

/// Whether a claim holds whatever other claims exist: it was admitted, or held when the size changed.
fn holds_for_certain(entry: &ClaimEntry, through: Option<i64>) -> bool {
    entry.stored.admitted || through.is_some_and(|through| entry.created() <= through)
}

/// Whether a semaphore of that size is large.
pub(crate) fn is_large(size: u32) -> bool {
    size >= LARGE
}
