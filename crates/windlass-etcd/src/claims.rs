//! The claim store: passes each call to the lock queues or to the pools.

use std::sync::{Arc, Weak};

use tokio::runtime::Handle;

use super::connection::EtcdConnection;
use super::errors::is_lease_not_found;
use super::keys::{ClaimKeys, EtcdKeys, PoolKeys};
use super::leases::Leases;
use super::lock_queue::{LockQueues, QueueWatcher};
use super::notifier::ClaimNotifier;
use super::pending_deletes::{PendingDeletes, runtime_ended};
use super::pools::Pools;
use super::renew::Renewer;
use super::tracked_claims::TrackedClaims;
use super::watches::Watches;
use windlass_core::error::{Error, Result};
use windlass_core::name::Name;
use windlass_core::store::unsupported::unsupported;
use windlass_core::store::{
    AcquireRequest, Acquired, AcquiredAll, ClaimStore, GrantListener, Holder, Kind, Occupancy,
    Pending, Released, Renewal, Renewed, WakeAddress,
};
use windlass_core::{Clock, Owner};

/// Locks, elections, semaphores, read-write locks and barriers on etcd.
#[derive(Debug)]
pub(super) struct EtcdClaims {
    connection: Arc<EtcdConnection>,
    leases: Arc<Leases>,
    keys: EtcdKeys,
    runtime: Handle,
    pub(super) claims: Arc<TrackedClaims>,
    queues: Arc<LockQueues>,
    pub(super) pools: Arc<Pools>,
    renewer: Renewer,
}

impl EtcdClaims {
    pub(super) fn new(
        connection: Arc<EtcdConnection>,
        leases: Arc<Leases>,
        watches: Arc<Watches>,
        keys: EtcdKeys,
        clock: Clock,
        listener: Weak<dyn GrantListener>,
    ) -> EtcdClaims {
        let runtime = Handle::current();
        let notifier = ClaimNotifier::new(listener);
        let claims = TrackedClaims::new(
            Arc::clone(&connection),
            Arc::clone(&leases),
            keys.clone(),
            clock,
            runtime.clone(),
            notifier.clone(),
        );
        let deletes = PendingDeletes::new(Arc::clone(&connection), runtime.clone());
        let watcher =
            QueueWatcher::new(Arc::clone(&claims), Arc::clone(&watches), notifier.clone());
        let queues = LockQueues::new(Arc::clone(&claims), Arc::clone(&deletes), watcher);
        let queues = Arc::new(queues);
        let pools = Pools::new(Arc::clone(&claims), deletes, watches, notifier);
        let pools = Arc::new(pools);
        EtcdClaims {
            connection,
            leases,
            keys,
            runtime,
            renewer: Renewer::new(Arc::clone(&claims), Arc::clone(&queues), Arc::clone(&pools)),
            claims,
            queues,
            pools,
        }
    }

    /// The claim's lease was gone: the next attempt must not use it.
    fn discard_lease(&self, keys: &ClaimKeys) {
        if let Some(claim) = self.claims.remove(keys.key(), None) {
            self.claims.verify_lease(&claim.lease, keys.key());
        }
    }
}

impl ClaimStore for EtcdClaims {
    fn acquire(&self, request: AcquireRequest) -> Pending<'_, Acquired> {
        Box::pin(async move {
            let (kind, name, owner) = (request.kind, request.name.clone(), request.owner.clone());
            let acquired = match kind {
                Kind::Lock | Kind::Election => self.queues.acquire(request).await,
                Kind::Once => Err(unsupported("etcd", "once", "it does not store results")),
                Kind::Semaphore | Kind::ReadWrite | Kind::Barrier => {
                    self.pools.acquire(request).await
                }
            };
            if acquired.as_ref().is_err_and(is_lease_not_found) {
                // Either the claim's lease or that of the pool's own key is gone.
                self.discard_lease(&ClaimKeys::new(&self.keys, kind, &name, &owner));
                self.leases.discard_retention();
            }
            acquired
        })
    }

    fn acquire_all(&self, requests: Vec<AcquireRequest>) -> Pending<'_, AcquiredAll> {
        Box::pin(self.queues.acquire_all(requests))
    }

    fn renew(&self, renewals: Vec<Renewal>) -> Pending<'_, Vec<Result<Renewed>>> {
        Box::pin(async move { Ok(self.renewer.renew(renewals).await) })
    }

    fn release(
        &self,
        kind: Kind,
        name: Name,
        owner: Owner,
        claim: Option<WakeAddress>,
    ) -> Pending<'static, Released> {
        let keys = ClaimKeys::new(&self.keys, kind, &name, &owner);
        let (queues, pools) = (Arc::clone(&self.queues), Arc::clone(&self.pools));
        // Starts now, and goes on if the caller is dropped: the program may be about to end.
        let task = self.runtime.spawn(async move {
            match &keys {
                ClaimKeys::Queue(keys) => queues.release(keys, claim).await,
                ClaimKeys::Pool(keys) => pools.release(keys, claim).await,
            }
        });
        Box::pin(async move { task.await.unwrap_or_else(|_| Err(runtime_ended("release"))) })
    }

    fn shrink(
        &self,
        kind: Kind,
        name: Name,
        owner: Owner,
        claim: WakeAddress,
        weight: u32,
    ) -> Pending<'_, bool> {
        Box::pin(async move {
            let keys = PoolKeys::new(&self.keys, kind, &name, &owner);
            self.pools.shrink(&keys, claim, weight).await
        })
    }

    fn resize(&self, kind: Kind, name: Name, size: u32) -> Pending<'_, Option<u32>> {
        Box::pin(async move {
            let resized = self.pools.resize(kind, &name, size).await;
            self.leases.after_retained_write(resized)
        })
    }

    fn reply_is_overdue(&self) -> Option<Error> {
        self.connection.switch_member();
        None
    }

    fn inspect(&self, kind: Kind, name: Name, most: usize) -> Pending<'_, Occupancy> {
        Box::pin(async move {
            match kind {
                Kind::Lock | Kind::Election => self.queues.inspect(kind, &name, most).await,
                _ => self.pools.inspect(kind, &name, most).await,
            }
        })
    }

    fn list(
        &self,
        kinds: &'static [Kind],
        pattern: String,
        most: usize,
    ) -> Pending<'_, Vec<Occupancy>> {
        Box::pin(async move {
            let is_queued = |kind: &Kind| matches!(kind, Kind::Lock | Kind::Election);
            let mut listed = Vec::new();
            if kinds.iter().any(is_queued) {
                listed.extend(self.queues.list(kinds, &pattern, most).await?);
            }
            for kind in kinds.iter().filter(|kind| !is_queued(kind)) {
                listed.extend(self.pools.list(*kind, &pattern, most).await?);
            }
            listed.sort_by(|a, b| (&a.name, a.kind).cmp(&(&b.name, b.kind)));
            Ok(listed)
        })
    }

    fn break_lock(&self, name: Name) -> Pending<'_, Option<Holder>> {
        Box::pin(async move { self.queues.break_lock(&name).await })
    }
}
