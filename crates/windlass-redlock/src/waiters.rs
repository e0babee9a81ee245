//! The claims of this client that wait.
//!
//! A claim waits in the queues of the nodes that its request was [sent to](super::node_selection).
//! Each of these nodes may hand it the lock; it holds the lock once a majority has. Which node
//! handed over when is in [`wake_up`](super::wake_up), what is done about it in
//! [`waiter_heartbeat`](super::waiter_heartbeat).

use std::collections::{HashMap, VecDeque};
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::nodes::NodeSet;
use windlass_core::name::Name;
use windlass_core::store::{AcquireRequest, Kind, Renewal};
use windlass_core::{Fence, Owner};

/// More than are released while a renewal is in flight.
const MAX_RELEASED: usize = 4096;

type ClaimKey = (Kind, Name, Owner);

#[derive(Default)]
pub(super) struct Waiters(Mutex<WaiterTable>);

#[derive(Default)]
struct WaiterTable {
    by_claim: HashMap<u64, QuorumWaiter>,
    by_key: HashMap<ClaimKey, u64>,
    /// Recent releases, newest last, with the claim if only that one was released.
    released: VecDeque<(ClaimKey, Option<u64>)>,
    /// Of the last waiter.
    generation: u64,
}

struct QuorumWaiter {
    /// The request, for a node that does not know it.
    request: AcquireRequest,
    /// The nodes that were sent the request.
    sent_to: NodeSet,
    /// The nodes that reported a grant.
    held_on: NodeSet,
    recheck_scheduled: bool,
    /// Rechecks since a node last reported a grant.
    rechecks: u32,
    /// Different each time that the claim is queued.
    generation: u64,
    /// The fences under which heartbeats found the claim held. The lease runtime may have missed
    /// the replies.
    fences: Vec<Fence>,
}

impl Waiters {
    pub(super) fn insert(&self, request: AcquireRequest, sent_to: NodeSet) {
        let mut table = self.table();
        let claim = request.wake.claim;
        let key = (request.kind, request.name.clone(), request.owner.clone());
        table.by_key.insert(key, claim);
        table.generation += 1;
        let waiter = QuorumWaiter {
            request,
            sent_to,
            held_on: NodeSet::default(),
            recheck_scheduled: false,
            rechecks: 0,
            generation: table.generation,
            fences: Vec::new(),
        };
        table.by_claim.insert(claim, waiter);
    }

    /// The request and generation of a claim, if it waits as far as the lease runtime knows.
    ///
    /// `known` is the runtime's fence or ticket. A runtime that has one of the waiter's fences
    /// knows that the claim holds, and the waiter is removed. Until then the claim counts as
    /// waiting: a ticket is no fence.
    pub(super) fn find_waiting(&self, claim: u64, known: Fence) -> Option<(AcquireRequest, u64)> {
        let mut table = self.table();
        let waiter = table.by_claim.get(&claim)?;
        if !waiter.fences.contains(&known) {
            return Some((waiter.request.clone(), waiter.generation));
        }
        table.remove(claim);
        None
    }

    /// The claim does not wait any more.
    pub(super) fn remove(&self, claim: u64) {
        self.table().remove(claim);
    }

    /// The claim does not wait any more, unless it was queued again since.
    pub(super) fn remove_generation(&self, claim: u64, generation: u64) {
        let mut table = self.table();
        let waiter = table.by_claim.get(&claim);
        if waiter.is_some_and(|waiter| waiter.generation == generation) {
            table.remove(claim);
        }
    }

    /// A heartbeat found that the claim holds under this fence.
    pub(super) fn add_fence(&self, claim: u64, generation: u64, fence: Fence) {
        if let Some(waiter) = self.table().by_claim.get_mut(&claim)
            && waiter.generation == generation
        {
            waiter.fences.push(fence);
        }
    }

    /// The owner releases what it has of that name: it does not wait any more, and no renewal in
    /// flight requests it again. With a `claim`, only that claim and earlier ones.
    ///
    /// Whether it was waiting, as far as this client knows.
    pub(super) fn release(
        &self,
        kind: Kind,
        name: &Name,
        owner: &Owner,
        claim: Option<u64>,
    ) -> bool {
        let mut table = self.table();
        if table.released.len() == MAX_RELEASED {
            table.released.pop_front();
        }
        let key = (kind, name.clone(), owner.clone());
        table.released.push_back((key.clone(), claim));
        if table.by_claim.is_empty() {
            return false;
        }
        // `by_key` may have a later claim of the same owner.
        let mut waited = claim.is_some_and(|claim| table.remove(claim));
        if let Some(&waiting) = table.by_key.get(&key)
            && claim.is_none_or(|claim| waiting <= claim)
        {
            waited |= table.remove(waiting);
        }
        waited
    }

    /// Calls `send` if the claim waits, with the nodes that were sent its request; `send` adds to
    /// them. The claim cannot be released meanwhile, so its release is sent after, and to these
    /// nodes too.
    pub(super) fn send_while_waiting(&self, claim: u64, send: impl FnOnce(&mut NodeSet)) {
        if let Some(waiter) = self.table().by_claim.get_mut(&claim) {
            send(&mut waiter.sent_to);
        }
    }

    /// Calls `send` unless the claim was released recently. It cannot be released meanwhile.
    pub(super) fn send_unless_released(&self, claim: &Renewal, send: impl FnOnce()) {
        let table = self.table();
        // A later claim of the same owner has a higher number.
        let is_it = |((kind, name, owner), which): &(ClaimKey, Option<u64>)| {
            (*kind, name, owner) == (claim.kind, &claim.name, &claim.owner)
                && which.is_none_or(|which| claim.wake.claim <= which)
        };
        if !table.released.iter().any(is_it) {
            send();
        }
    }

    /// The nodes where the claim is held now.
    pub(super) fn set_held_on(&self, claim: u64, nodes: NodeSet) {
        if let Some(waiter) = self.table().by_claim.get_mut(&claim) {
            waiter.held_on = nodes;
        }
    }

    /// A node reported a grant: on how many nodes the claim is held now. `None` if it does not
    /// wait.
    pub(super) fn add_grant(&self, claim: u64, node: usize) -> Option<usize> {
        let mut table = self.table();
        let waiter = table.by_claim.get_mut(&claim)?;
        waiter.rechecks = 0;
        waiter.held_on.insert(node);
        Some(waiter.held_on.len())
    }

    /// Notes that a recheck is scheduled, and returns how many were since the last grant. `None` if
    /// the claim does not wait or a recheck is scheduled already.
    pub(super) fn schedule_recheck(&self, claim: u64) -> Option<u32> {
        let mut table = self.table();
        let waiter = table.by_claim.get_mut(&claim)?;
        if waiter.recheck_scheduled {
            return None;
        }
        waiter.recheck_scheduled = true;
        waiter.rechecks += 1;
        Some(waiter.rechecks)
    }

    /// A scheduled recheck is due: whether the claim still waits.
    pub(super) fn recheck_due(&self, claim: u64) -> bool {
        match self.table().by_claim.get_mut(&claim) {
            Some(waiter) => {
                waiter.recheck_scheduled = false;
                true
            }
            None => false,
        }
    }

    fn table(&self) -> MutexGuard<'_, WaiterTable> {
        // Nothing panics between two changes that belong together.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl WaiterTable {
    /// Whether it was waiting: not if a heartbeat found that it holds.
    fn remove(&mut self, claim: u64) -> bool {
        let Some(QuorumWaiter {
            request, fences, ..
        }) = self.by_claim.remove(&claim)
        else {
            return false;
        };
        let key = (request.kind, request.name, request.owner);
        if self.by_key.get(&key) == Some(&claim) {
            self.by_key.remove(&key);
        }
        fences.is_empty()
    }
}
