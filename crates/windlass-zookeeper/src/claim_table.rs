//! The claims of this client: their nodes, the sessions that keep them, and when they expire.
//!
//! The server ends a session that stops pinging. A claim that is not renewed while its session goes on
//! is ended by this client, which removes its node when the claim expires. If the process dies before
//! that, its session ends.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::Instant;

use super::claim_data::ClaimData;
use super::node_name::{ProtectionId, Sequence};
use super::removal::NodeRemover;
use super::session::Session;
use windlass_core::name::Name;
use windlass_core::store::{AcquireRequest, Kind, Renewal};
use windlass_core::{Fence, Owner};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LocalClaimState {
    /// Requested; its node may or may not exist.
    Requested,
    Waiting,
    Held,
}

/// A claim of this client.
#[derive(Clone, Debug)]
pub(super) struct LocalClaim {
    /// Its number within this client.
    pub(super) number: u64,
    pub(super) kind: Kind,
    pub(super) name: Name,
    pub(super) owner: Owner,
    pub(super) id: ProtectionId,
    pub(super) weight: u32,
    pub(super) state: LocalClaimState,
    /// The session that keeps its node.
    pub(super) session: Arc<Session>,
    /// Its node, once known to exist.
    pub(super) node: Option<CreatedNode>,
    /// Whether a request to create its node was sent, and not refused.
    pub(super) may_have_node: bool,
    pub(super) data: ClaimData,
    /// When it ends unless renewed.
    pub(super) expires: Instant,
    /// It does not end before this time, which was promised to the claim of the same owner that it
    /// replaced.
    pub(super) promised_until: Instant,
}

/// The node of a claim.
#[derive(Clone, Debug)]
pub(super) struct CreatedNode {
    pub(super) path: String,
    pub(super) sequence: Sequence,
    pub(super) fence: Fence,
    /// The transaction that created it or, if it replaced another node, the other's fence.
    pub(super) created_zxid: i64,
}

impl CreatedNode {
    /// A node whose fence is the zxid that created it.
    pub(super) fn new(path: String, sequence: Sequence, created_zxid: i64) -> CreatedNode {
        CreatedNode {
            path,
            sequence,
            fence: Fence::new(created_zxid as u64),
            created_zxid,
        }
    }
}

impl LocalClaim {
    pub(super) fn new(request: &AcquireRequest, session: Arc<Session>) -> LocalClaim {
        let now = Instant::now();
        LocalClaim {
            number: request.wake.claim,
            kind: request.kind,
            name: request.name.clone(),
            owner: request.owner.clone(),
            id: ProtectionId::new(&request.owner, request.wake),
            weight: request.share.weight,
            state: LocalClaimState::Requested,
            session,
            node: None,
            may_have_node: false,
            data: ClaimData::new(&request.owner, request.ttl, request.note.as_deref()),
            expires: now + request.ttl,
            promised_until: now,
        }
    }

    /// A claim that is about to replace another one of the same owner.
    pub(super) fn for_renewal(
        renewal: &Renewal,
        id: ProtectionId,
        weight: u32,
        session: Arc<Session>,
    ) -> LocalClaim {
        let now = Instant::now();
        LocalClaim {
            number: renewal.wake.claim,
            kind: renewal.kind,
            name: renewal.name.clone(),
            owner: renewal.owner.clone(),
            id,
            weight,
            state: LocalClaimState::Requested,
            session,
            node: None,
            may_have_node: false,
            data: ClaimData::new(&renewal.owner, renewal.ttl, renewal.note.as_deref()),
            expires: now + renewal.ttl,
            promised_until: now,
        }
    }

    /// Expires one TTL from now.
    pub(super) fn extend(&mut self, ttl: Duration) {
        self.expires = (Instant::now() + ttl).max(self.promised_until);
    }

    /// Takes over the promise that a replaced claim of this TTL was given.
    pub(super) fn inherit_promise(&mut self, ttl: Duration) {
        self.promised_until = self.promised_until.max(Instant::now() + ttl);
        self.expires = self.expires.max(self.promised_until);
    }

    /// The order of this client's waiters; one without a node comes last.
    pub(super) fn queue_order(&self) -> (bool, i64) {
        match &self.node {
            Some(node) => (false, node.created_zxid),
            None => (true, 0),
        }
    }
}

type QueueKey = (Kind, Name);

/// All claims of this client, by number.
pub(super) struct ClaimTable {
    inner: Mutex<ClaimIndex>,
    /// Notified when a claim may expire before the expiry task would wake up.
    expires_sooner: Notify,
    remover: Arc<NodeRemover>,
}

#[derive(Default)]
struct ClaimIndex {
    claims: HashMap<u64, LocalClaim>,
    by_owner: HashMap<(Kind, Name, Owner), Vec<u64>>,
    waiting: HashMap<QueueKey, LocalWaiters>,
    /// Whether the expiry task runs.
    expiring: bool,
    /// When the expiry task wakes up.
    next_expiry: Option<Instant>,
}

/// The claims of this client that wait in one queue.
#[derive(Default)]
struct LocalWaiters {
    claims: HashSet<u64>,
    changed: Arc<Notify>,
    /// Whether a task watches the queue for them.
    watched: bool,
}

impl ClaimTable {
    pub(super) fn new(remover: Arc<NodeRemover>) -> ClaimTable {
        ClaimTable {
            inner: Mutex::default(),
            expires_sooner: Notify::new(),
            remover,
        }
    }

    fn inner(&self) -> MutexGuard<'_, ClaimIndex> {
        // No change panics halfway.
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn get(&self, number: u64) -> Option<LocalClaim> {
        self.inner().claims.get(&number).cloned()
    }

    /// Adds a claim, or replaces the one with its number.
    pub(super) fn insert(self: &Arc<Self>, claim: LocalClaim) {
        let mut inner = self.inner();
        let number = claim.number;
        let key = (claim.kind, claim.name.clone(), claim.owner.clone());
        let known = inner.by_owner.entry(key).or_default();
        if !known.contains(&number) {
            known.push(number);
        }
        let expires = claim.expires;
        inner.claims.insert(number, claim);
        if !inner.expiring {
            inner.expiring = true;
            tokio::spawn(expire_claims(Arc::clone(self)));
        }
        if inner.next_expiry.is_some_and(|next| expires < next) {
            self.expires_sooner.notify_one();
        }
    }

    /// Changes a claim, if it is still in the table.
    pub(super) fn change<T>(
        &self,
        number: u64,
        change: impl FnOnce(&mut LocalClaim) -> T,
    ) -> Option<T> {
        let mut inner = self.inner();
        let claim = inner.claims.get_mut(&number)?;
        let changed = change(claim);
        let (expires, waits) = (claim.expires, claim.state == LocalClaimState::Waiting);
        let queue = (claim.kind, claim.name.clone());
        if inner.next_expiry.is_some_and(|next| expires < next) {
            self.expires_sooner.notify_one();
        }
        match waits {
            true => {
                let waiters = inner.waiting.entry(queue).or_default();
                if waiters.claims.insert(number) {
                    waiters.changed.notify_one();
                }
            }
            false => inner.leave_queue(&queue, number),
        }
        Some(changed)
    }

    /// Records a claim's node. The claim lives for one TTL from now. False if it is not in the table.
    pub(super) fn set_node(&self, number: u64, node: CreatedNode, ttl: Duration) -> bool {
        let known = self.change(number, |claim| {
            claim.node = Some(node);
            claim.extend(ttl);
        });
        known.is_some()
    }

    /// The claim lives for one TTL from now. False if it is not in the table.
    pub(super) fn extend(&self, number: u64, ttl: Duration) -> bool {
        self.change(number, |claim| claim.extend(ttl)).is_some()
    }

    /// Records that a claim is granted with this fence, and returns it. `None` if the claim is not in
    /// the table, has no node, or was requested again since.
    pub(super) fn set_held(&self, granted: &LocalClaim, fence: Fence) -> Option<Fence> {
        let granted = self.change(granted.number, |claim| {
            let node = claim.node.as_mut().filter(|_| claim.id == granted.id)?;
            node.fence = fence;
            claim.state = LocalClaimState::Held;
            Some(fence)
        });
        granted.flatten()
    }

    /// Records that a claim waits, and returns its ticket. `None` if the claim is not in the table, or
    /// has no node.
    pub(super) fn set_waiting(&self, number: u64) -> Option<Fence> {
        let ticket = self.change(number, |claim| {
            claim.state = LocalClaimState::Waiting;
            claim.node.as_ref().map(|node| node.fence)
        });
        ticket.flatten()
    }

    /// Forgets a claim. Its node stays.
    pub(super) fn remove(&self, number: u64) -> Option<LocalClaim> {
        self.inner().remove(number)
    }

    /// Forgets a claim, unless it was requested again since.
    pub(super) fn forget(&self, claim: &LocalClaim) -> Option<LocalClaim> {
        let mut inner = self.inner();
        let known = inner.claims.get(&claim.number)?;
        match known.id == claim.id {
            true => inner.remove(claim.number),
            false => None,
        }
    }

    /// Forgets a claim, and removes its node in the background until the server confirms it.
    pub(super) fn abandon(&self, claim: &LocalClaim) {
        if let Some(claim) = self.forget(claim) {
            tokio::spawn(Arc::clone(&self.remover).remove_until_confirmed(claim));
        }
    }

    /// The numbers of an owner's claims to a name.
    pub(super) fn of_owner(&self, kind: Kind, name: &Name, owner: &Owner) -> Vec<u64> {
        let key = (kind, name.clone(), owner.clone());
        self.inner().by_owner.get(&key).cloned().unwrap_or_default()
    }

    /// Forgets the claim with this id, whose node `claim` has replaced.
    pub(super) fn forget_replaced(&self, claim: &LocalClaim, id: Option<ProtectionId>) {
        for number in self.of_owner(claim.kind, &claim.name, &claim.owner) {
            let replaced =
                |known: &LocalClaim| Some(known.id) == id && known.number != claim.number;
            if self.get(number).is_some_and(|known| replaced(&known)) {
                self.remove(number);
            }
        }
    }

    /// Whether the caller must start a task that watches this queue. From now on the queue counts as
    /// watched.
    pub(super) fn begin_watch(&self, kind: Kind, name: &Name) -> bool {
        let mut inner = self.inner();
        let waiters = inner.waiting.get_mut(&(kind, name.clone()));
        waiters.is_some_and(|waiters| !std::mem::replace(&mut waiters.watched, true))
    }

    /// The zxid that created the first of this client's waiters.
    pub(super) fn first_waiting(&self, kind: Kind, name: &Name) -> Option<i64> {
        let inner = self.inner();
        let waiters = inner.waiting.get(&(kind, name.clone()))?;
        let claims = waiters.claims.iter().filter_map(|n| inner.claims.get(n));
        claims
            .filter_map(|claim| Some(claim.node.as_ref()?.created_zxid))
            .min()
    }

    /// Whether a claim of this client with this id waits in the queue.
    pub(super) fn has_waiting(&self, kind: Kind, name: &Name, id: ProtectionId) -> bool {
        let inner = self.inner();
        let waiters = inner.waiting.get(&(kind, name.clone()));
        let has_id = |number: &u64| inner.claims.get(number).is_some_and(|claim| claim.id == id);
        waiters.is_some_and(|waiters| waiters.claims.iter().any(has_id))
    }

    /// This client's waiters in a queue, and what is notified when they change. `None` if there are
    /// none: then the queue counts as not watched.
    pub(super) fn waiting(
        &self,
        kind: Kind,
        name: &Name,
    ) -> Option<(Vec<LocalClaim>, Arc<Notify>)> {
        let mut inner = self.inner();
        let queue = (kind, name.clone());
        let waiters = inner.waiting.get(&queue)?;
        if waiters.claims.is_empty() {
            inner.waiting.remove(&queue);
            return None;
        }
        let claim = |number: &u64| inner.claims.get(number).cloned();
        let claims = waiters.claims.iter().filter_map(claim).collect();
        Some((claims, Arc::clone(&waiters.changed)))
    }

    /// Takes out the expired claims, and returns them with the time of the next expiry.
    fn take_expired(&self) -> (Vec<LocalClaim>, Option<Instant>) {
        let mut inner = self.inner();
        let now = Instant::now();
        let is_expired =
            |(number, claim): (&u64, &LocalClaim)| (claim.expires <= now).then_some(*number);
        let expired: Vec<u64> = inner.claims.iter().filter_map(is_expired).collect();
        let expired = expired
            .iter()
            .filter_map(|number| inner.remove(*number))
            .collect();
        let next = inner.claims.values().map(|claim| claim.expires).min();
        inner.next_expiry = next;
        inner.expiring = next.is_some();
        (expired, next)
    }
}

impl ClaimIndex {
    fn remove(&mut self, number: u64) -> Option<LocalClaim> {
        let claim = self.claims.remove(&number)?;
        let key = (claim.kind, claim.name.clone(), claim.owner.clone());
        if let Some(known) = self.by_owner.get_mut(&key) {
            known.retain(|known| *known != number);
            if known.is_empty() {
                self.by_owner.remove(&key);
            }
        }
        self.leave_queue(&(key.0, key.1), number);
        Some(claim)
    }

    fn leave_queue(&mut self, queue: &QueueKey, number: u64) {
        if let Some(waiters) = self.waiting.get_mut(queue)
            && waiters.claims.remove(&number)
        {
            waiters.changed.notify_one();
            if waiters.claims.is_empty() && !waiters.watched {
                self.waiting.remove(queue);
            }
        }
    }
}

/// Removes the nodes of expired claims, as long as there are claims. The task keeps the table and the
/// claims' sessions alive, so that a lease that outlives its coordinator lasts for its TTL.
async fn expire_claims(table: Arc<ClaimTable>) {
    loop {
        let (expired, next) = table.take_expired();
        for claim in expired {
            tracing::debug!(name = %claim.name, "a claim has expired");
            tokio::spawn(Arc::clone(&table.remover).remove_until_confirmed(claim));
        }
        let Some(next) = next else { return };
        tokio::select! {
            () = tokio::time::sleep_until(next) => {}
            () = table.expires_sooner.notified() => {}
        }
    }
}

impl fmt::Debug for ClaimTable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let inner = self.inner();
        f.debug_struct("ClaimTable")
            .field("claims", &inner.claims.len())
            .field("waited_for", &inner.waiting.len())
            .finish()
    }
}
