//! The claims for which this client has written keys, and the lease that each key is on.
//!
//! A claim is tracked before its key is written, and until its deletion was sent. So every key on a shared
//! lease that is not tracked is an orphan ([`orphans`]).

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::runtime::Handle;

use super::connection::EtcdConnection;
use super::keys::EtcdKeys;
use super::leases::{EtcdLease, Leases};
use super::notifier::ClaimNotifier;
use super::orphans;
use super::watches::WatchHandle;
use windlass_core::error::Result;
use windlass_core::name::Name;
use windlass_core::store::{AcquireRequest, Kind, Released, Renewal, WakeAddress};
use windlass_core::{Clock, Fence, Moment, Owner};

/// A claim of this client.
#[derive(Debug)]
pub(super) struct TrackedClaim {
    pub(super) kind: Kind,
    pub(super) name: Name,
    pub(super) owner: Owner,
    pub(super) wake: WakeAddress,
    pub(super) ttl: Duration,
    pub(super) lease: Arc<EtcdLease>,
    /// The create revision of its key; 0 while unknown.
    pub(super) created: i64,
    /// Known once the claim holds.
    pub(super) fence: Option<Fence>,
    /// When it was last requested or renewed.
    pub(super) last_used: Moment,
    /// In a lock queue: the key right ahead of it, and the watch for its deletion.
    pub(super) predecessor: Option<(Vec<u8>, WatchHandle)>,
}

impl TrackedClaim {
    pub(super) fn is_waiting(&self) -> bool {
        self.fence.is_none()
    }
}

/// All claims of this client, by key.
pub(super) struct TrackedClaims {
    pub(super) connection: Arc<EtcdConnection>,
    pub(super) leases: Arc<Leases>,
    pub(super) keys: EtcdKeys,
    pub(super) clock: Clock,
    pub(super) runtime: Handle,
    notifier: ClaimNotifier,
    by_key: Mutex<HashMap<String, TrackedClaim>>,
}

impl TrackedClaims {
    pub(super) fn new(
        connection: Arc<EtcdConnection>,
        leases: Arc<Leases>,
        keys: EtcdKeys,
        clock: Clock,
        runtime: Handle,
        notifier: ClaimNotifier,
    ) -> Arc<TrackedClaims> {
        let claims = Arc::new(TrackedClaims {
            connection,
            leases: Arc::clone(&leases),
            keys,
            clock,
            runtime,
            notifier,
            by_key: Mutex::default(),
        });
        let weak = Arc::downgrade(&claims);
        leases.on_expiry(move |lease| {
            if let Some(claims) = weak.upgrade() {
                claims.lease_expired(lease);
            }
        });
        claims
    }

    pub(super) fn by_key(&self) -> MutexGuard<'_, HashMap<String, TrackedClaim>> {
        // Each change is a single insertion or removal: a panic leaves the map consistent.
        self.by_key.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Chooses the lease for a claim and tracks the claim, before anything is written. Also returns what was
    /// tracked for another claim of the same owner, to be [restored](TrackedClaims::restore) if nothing is
    /// written after all.
    pub(super) async fn begin(
        self: &Arc<TrackedClaims>,
        key: &str,
        request: &AcquireRequest,
    ) -> Result<(Arc<EtcdLease>, Option<TrackedClaim>)> {
        let lease = self.lease_for(key, request.ttl, request.renewed).await?;
        let previous = self.track(key, request, &lease);
        Ok((lease, previous))
    }

    /// The same for a claim that takes over the key of another claim of its owner. The lease lives at least
    /// as long as the one that the key is on.
    pub(super) async fn begin_takeover(
        self: &Arc<TrackedClaims>,
        key: &str,
        request: &AcquireRequest,
        current_lease: i64,
    ) -> Result<Arc<EtcdLease>> {
        let left = self.leases.time_to_live(current_lease).await?;
        // etcd rounds down to whole seconds.
        let left = left + Duration::from_secs(1);
        let lease = match left > request.ttl + Duration::from_secs(1) {
            true => self.leases.dedicated(left).await?,
            false => self.lease_for(key, request.ttl, request.renewed).await?,
        };
        drop(self.track(key, request, &lease));
        Ok(lease)
    }

    /// The same for a key that a renewal writes again, and that may be another client's. Also returns the
    /// lease that the key was on, if it was tracked.
    pub(super) async fn begin_rewrite(
        self: &Arc<TrackedClaims>,
        key: &str,
        renewal: &Renewal,
        created: i64,
    ) -> Result<(Arc<EtcdLease>, Option<Arc<EtcdLease>>)> {
        let lease = self.lease_for_renewal(key, renewal).await?;
        let mut claims = self.by_key();
        let (fence, predecessor, previous) = match claims.remove(key) {
            Some(claim) => {
                // A key that was created again is at the end of the queue.
                let same_key = claim.created == created;
                let same_claim = claim.wake == renewal.wake;
                let predecessor = claim.predecessor.filter(|_| same_key && same_claim);
                let fence = claim.fence.filter(|_| same_key);
                (fence, predecessor, Some(claim.lease))
            }
            None => (None, None, None),
        };
        let claim = TrackedClaim {
            kind: renewal.kind,
            name: renewal.name.clone(),
            owner: renewal.owner.clone(),
            wake: renewal.wake,
            ttl: renewal.ttl,
            lease: Arc::clone(&lease),
            created,
            fence,
            last_used: self.clock.now(),
            predecessor,
        };
        claims.insert(key.to_owned(), claim);
        drop(claims);
        Ok((lease, previous))
    }

    async fn lease_for(
        self: &Arc<TrackedClaims>,
        key: &str,
        ttl: Duration,
        renewed: bool,
    ) -> Result<Arc<EtcdLease>> {
        if !renewed {
            return self.leases.dedicated(ttl).await;
        }
        let lease = self.leases.shared(ttl, key).await?;
        // Claims that never live long enough to be renewed still keep the lease alive.
        if lease.is_sweep_due(self.clock.now()) {
            orphans::sweep(self, &lease);
        }
        Ok(lease)
    }

    /// The lease that the key is on, if it suits the renewal and can be renewed.
    async fn lease_for_renewal(
        self: &Arc<TrackedClaims>,
        key: &str,
        renewal: &Renewal,
    ) -> Result<Arc<EtcdLease>> {
        let current = self.by_key().get(key).map(|claim| Arc::clone(&claim.lease));
        if let Some(lease) = current.filter(|lease| lease.shared == renewal.renewed)
            && self.leases.cover(&lease, renewal.ttl, key).await?
        {
            return Ok(lease);
        }
        self.lease_for(key, renewal.ttl, renewal.renewed).await
    }

    fn track(
        &self,
        key: &str,
        request: &AcquireRequest,
        lease: &Arc<EtcdLease>,
    ) -> Option<TrackedClaim> {
        let claim = TrackedClaim {
            kind: request.kind,
            name: request.name.clone(),
            owner: request.owner.clone(),
            wake: request.wake,
            ttl: request.ttl,
            lease: Arc::clone(lease),
            created: 0,
            fence: None,
            last_used: self.clock.now(),
            predecessor: None,
        };
        self.by_key().insert(key.to_owned(), claim)
    }

    /// Nothing was written for a claim: tracks what was tracked before it.
    pub(super) fn restore(&self, key: &str, wake: WakeAddress, before: Option<TrackedClaim>) {
        let before = before.filter(|before| before.wake != wake);
        let waiting = before.as_ref().filter(|before| before.is_waiting());
        let waiting = waiting.map(|before| before.wake.claim);
        let dropped = {
            let mut claims = self.by_key();
            match (claims.get(key), before) {
                // A third claim of the same owner has replaced it.
                (Some(claim), before) if claim.wake != wake => before,
                (_, Some(before)) => claims.insert(key.to_owned(), before),
                (_, None) => claims.remove(key),
            }
        };
        drop(dropped); // its watch ends outside the lock
        // While it was not tracked, it could not be notified.
        if let Some(claim) = waiting {
            self.notifier.recheck(claim);
        }
    }

    /// Records the create revision of a claim's key, and the fence if the claim holds.
    pub(super) fn set_position(
        &self,
        key: &str,
        wake: WakeAddress,
        created: i64,
        fence: Option<Fence>,
    ) {
        let ended_watch = {
            let mut claims = self.by_key();
            let Some(claim) = claims.get_mut(key).filter(|claim| claim.wake == wake) else {
                return;
            };
            claim.created = created;
            claim.fence = fence;
            fence.and_then(|_| claim.predecessor.take())
        };
        drop(ended_watch);
    }

    /// Stops tracking a key: with a `wake`, only if it is still that claim's.
    pub(super) fn remove(&self, key: &str, wake: Option<WakeAddress>) -> Option<TrackedClaim> {
        let mut claims = self.by_key();
        let matches = |claim: &TrackedClaim| wake.is_none_or(|wake| claim.wake == wake);
        match claims.get(key).is_some_and(matches) {
            true => claims.remove(key),
            false => None,
        }
    }

    /// The key of a removed claim is deleted.
    pub(super) fn key_deleted(&self, claim: &TrackedClaim) {
        match claim.lease.shared {
            // The request that would create it has no reply yet, and may arrive later.
            true if claim.created == 0 => claim.lease.expect_late_keys(self.clock.now()),
            true => {}
            false => self.leases.revoke(&claim.lease),
        }
    }

    /// The key of a removed claim may still exist, or be created later.
    fn key_may_remain(&self, claim: &TrackedClaim) {
        if claim.lease.shared {
            claim.lease.expect_late_keys(self.clock.now());
        }
    }

    /// The deletion of a removed claim's key was requested, with that result.
    pub(super) fn after_release(&self, claim: Option<TrackedClaim>, released: &Result<Released>) {
        let Some(claim) = claim else { return };
        match released {
            Ok(Released::WasHeld | Released::WasWaiting) => self.key_deleted(&claim),
            Ok(Released::WasGone) | Err(_) => self.key_may_remain(&claim),
        }
    }

    /// A key was moved to another lease: revokes the previous one if it was the key's own.
    pub(super) fn lease_replaced(&self, previous: Option<Arc<EtcdLease>>, current: &EtcdLease) {
        if let Some(previous) = previous.filter(|lease| !lease.shared && lease.id != current.id) {
            self.leases.revoke(&previous);
        }
    }

    /// A key is gone, or could not be put on its lease: finds out, in the background, whether the lease is gone.
    /// If so, all claims on it are notified.
    pub(super) fn verify_lease(&self, lease: &Arc<EtcdLease>, key: &str) {
        if lease.shared && !lease.has_expired() {
            let (leases, lease) = (Arc::clone(&self.leases), Arc::clone(lease));
            let key = key.to_owned();
            self.runtime.spawn(async move {
                // After a failure, the next caller that needs the lease renews it.
                let _ = leases.renew(&lease, &key).await;
            });
        }
    }

    fn lease_expired(&self, lease: i64) {
        let affected: Vec<u64> = self
            .by_key()
            .values()
            .filter(|claim| claim.lease.id == lease)
            .map(|claim| claim.wake.claim)
            .collect();
        for claim in affected {
            self.notifier.maybe_lost(claim);
        }
    }

    /// The claims of this client that wait for that name, with their keys.
    pub(super) fn waiting_for(&self, kind: Kind, name: &Name) -> Vec<(String, WakeAddress)> {
        let claims = self.by_key();
        let waiting = claims
            .iter()
            .filter(|(_, claim)| claim.kind == kind && claim.name == *name && claim.is_waiting());
        waiting
            .map(|(key, claim)| (key.clone(), claim.wake))
            .collect()
    }

    /// The fence of the claim at that key, if it is known to hold.
    pub(super) fn fence(&self, key: &str) -> Option<Fence> {
        self.by_key().get(key).and_then(|claim| claim.fence)
    }
}

impl fmt::Debug for TrackedClaims {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TrackedClaims")
            .field("claims", &self.by_key().len())
            .finish_non_exhaustive()
    }
}
