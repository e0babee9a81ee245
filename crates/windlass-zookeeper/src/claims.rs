//! Claims on ZooKeeper: locks, semaphores, read-write locks, elections and barriers.
//!
//! A claim is an ephemeral sequential node below its name's path. The order of the nodes is the wait
//! queue, and decides who holds (see `queue.rs`).

use std::sync::{Arc, Weak};

use super::acquire::ClaimAcquisition;
use super::acquire_all::JointAcquisition;
use super::claim_table::ClaimTable;
use super::grant::Grants;
use super::inspect::inspect;
use super::list::list;
use super::queue_reader::QueueReader;
use super::release::{ClaimRelease, break_lock};
use super::removal::NodeRemover;
use super::renew::Renewals;
use super::resize::Resize;
use super::server_clock::ServerClock;
use super::sessions::Sessions;
use super::shrink::shrink;
use super::wait::QueueWatches;
use windlass_core::Owner;
use windlass_core::error::Result;
use windlass_core::name::Name;
use windlass_core::store::{
    AcquireRequest, Acquired, AcquiredAll, ClaimStore, GrantListener, Holder, Kind, Occupancy,
    Pending, Released, Renewal, Renewed, WakeAddress,
};

/// The parts that the operations on claims share.
#[derive(Clone, Debug)]
pub(super) struct ZooKeeperClaims {
    pub(super) sessions: Arc<Sessions>,
    pub(super) queues: Arc<QueueReader>,
    pub(super) remover: Arc<NodeRemover>,
    pub(super) table: Arc<ClaimTable>,
    pub(super) grants: Arc<Grants>,
    pub(super) watches: QueueWatches,
    pub(super) clock: Arc<ServerClock>,
}

impl ZooKeeperClaims {
    pub(super) fn new(
        sessions: Arc<Sessions>,
        queues: Arc<QueueReader>,
        clock: Arc<ServerClock>,
        listener: Weak<dyn GrantListener>,
    ) -> ZooKeeperClaims {
        let remover = Arc::new(NodeRemover::new(Arc::clone(&queues)));
        let table = Arc::new(ClaimTable::new(Arc::clone(&remover)));
        let grants = Arc::new(Grants::new(Arc::clone(&table), listener));
        let watches =
            QueueWatches::new(Arc::clone(&queues), Arc::clone(&table), Arc::clone(&grants));
        ZooKeeperClaims {
            sessions,
            queues,
            remover,
            table,
            grants,
            watches,
            clock,
        }
    }
}

impl ClaimStore for ZooKeeperClaims {
    fn acquire(&self, request: AcquireRequest) -> Pending<'_, Acquired> {
        Box::pin(ClaimAcquisition::run(self, request))
    }

    fn acquire_all(&self, requests: Vec<AcquireRequest>) -> Pending<'_, AcquiredAll> {
        Box::pin(JointAcquisition::run(self, requests))
    }

    fn renew(&self, renewals: Vec<Renewal>) -> Pending<'_, Vec<Result<Renewed>>> {
        Box::pin(async move { Ok(Renewals::new(self).renew(renewals).await) })
    }

    fn release(
        &self,
        kind: Kind,
        name: Name,
        owner: Owner,
        claim: Option<WakeAddress>,
    ) -> Pending<'static, Released> {
        ClaimRelease::new(self.clone(), kind, name, owner, claim).start()
    }

    fn shrink(
        &self,
        _kind: Kind,
        _name: Name,
        _owner: Owner,
        claim: WakeAddress,
        weight: u32,
    ) -> Pending<'_, bool> {
        Box::pin(shrink(self, claim.claim, weight))
    }

    fn resize(&self, kind: Kind, name: Name, size: u32) -> Pending<'_, Option<u32>> {
        Box::pin(Resize::run(self.clone(), kind, name, size))
    }

    fn inspect(&self, kind: Kind, name: Name, most: usize) -> Pending<'_, Occupancy> {
        Box::pin(async move { inspect(self, kind, &name, most).await })
    }

    fn list(
        &self,
        kinds: &'static [Kind],
        pattern: String,
        most: usize,
    ) -> Pending<'_, Vec<Occupancy>> {
        Box::pin(async move { list(self, kinds, &pattern, most).await })
    }

    fn break_lock(&self, name: Name) -> Pending<'_, Option<Holder>> {
        Box::pin(async move { break_lock(self, &name).await })
    }
}
