//! Claims over a majority: checks each call, and passes it to the type that does the work.

use std::fmt;
use std::sync::Arc;

use super::acquire::QuorumAcquisition;
use super::acquire_all::acquire_all;
use super::fence::FenceNumbers;
use super::nodes::QuorumNodes;
use super::partial_grants::PartialGrants;
use super::release::Release;
use super::waiters::Waiters;
use super::wake_up::WakeUps;
use super::{KIND, break_lock, inspect, release, renew};
use windlass_core::Owner;
use windlass_core::error::Result;
use windlass_core::name::Name;
use windlass_core::store::unsupported::{unsupported, unsupported_by_majority};
use windlass_core::store::{
    AcquireRequest, Acquired, AcquiredAll, ClaimStore, Holder, Kind, Occupancy, Pending, Released,
    Renewal, Renewed, WakeAddress,
};

/// The claims of one client. Cheap to clone.
#[derive(Clone)]
pub(super) struct QuorumClaims(pub(super) Arc<ClaimState>);

/// What the operations on claims share.
pub(super) struct ClaimState {
    pub(super) nodes: Arc<QuorumNodes>,
    pub(super) fences: FenceNumbers,
    pub(super) partial_grants: PartialGrants,
    pub(super) waiters: Arc<Waiters>,
    pub(super) wake_ups: Arc<WakeUps>,
}

impl ClaimState {
    pub(super) fn new(nodes: Arc<QuorumNodes>, wake_ups: Arc<WakeUps>) -> ClaimState {
        ClaimState {
            fences: FenceNumbers::new(Arc::clone(&nodes)),
            partial_grants: PartialGrants::default(),
            waiters: Arc::clone(&wake_ups.waiters),
            wake_ups,
            nodes,
        }
    }
}

impl QuorumClaims {
    fn check(&self, request: &AcquireRequest) -> Result<()> {
        check_supported(request.kind)?;
        self.0.nodes.check_ttl("acquire", request.ttl)
    }
}

impl ClaimStore for QuorumClaims {
    fn acquire(&self, request: AcquireRequest) -> Pending<'_, Acquired> {
        Box::pin(async move {
            self.check(&request)?;
            QuorumAcquisition::new(&self.0, request).run().await
        })
    }

    fn acquire_all(&self, requests: Vec<AcquireRequest>) -> Pending<'_, AcquiredAll> {
        Box::pin(async move {
            requests
                .iter()
                .try_for_each(|request| self.check(request))?;
            acquire_all(&self.0, requests).await
        })
    }

    fn renew(&self, claims: Vec<Renewal>) -> Pending<'_, Vec<Result<Renewed>>> {
        Box::pin(async move { Ok(renew::renew(&self.0, claims).await) })
    }

    fn release(
        &self,
        kind: Kind,
        name: Name,
        owner: Owner,
        claim: Option<WakeAddress>,
    ) -> Pending<'static, Released> {
        let state = Arc::clone(&self.0);
        Box::pin(async move {
            check_supported(kind)?;
            let release = Release {
                kind,
                name,
                owner,
                claim,
            };
            release.run(state).await
        })
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
            check_supported(kind)?;
            release::shrink(&self.0.nodes, kind, name, owner, claim, weight).await
        })
    }

    fn resize(&self, kind: Kind, _: Name, _: u32) -> Pending<'_, Option<u32>> {
        let refused = check_supported(kind).and(Err(unsupported(
            KIND,
            "resizing",
            "only semaphores can be resized, and a majority cannot count permits",
        )));
        Box::pin(std::future::ready(refused))
    }

    fn inspect(&self, kind: Kind, name: Name, most: usize) -> Pending<'_, Occupancy> {
        Box::pin(async move {
            check_supported(kind)?;
            inspect::inspect(&self.0.nodes, kind, name, most).await
        })
    }

    fn list(
        &self,
        kinds: &'static [Kind],
        pattern: String,
        most: usize,
    ) -> Pending<'_, Vec<Occupancy>> {
        Box::pin(async move {
            if let [kind] = kinds {
                check_supported(*kind)?;
            }
            inspect::list(&self.0.nodes, kinds, pattern, most).await
        })
    }

    fn break_lock(&self, name: Name) -> Pending<'_, Option<Holder>> {
        Box::pin(break_lock::break_lock(&self.0.nodes, name))
    }
}

impl fmt::Debug for QuorumClaims {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("QuorumClaims").field(&self.0.nodes).finish()
    }
}

/// Refuses the kinds that are not sound over a majority.
pub(super) fn check_supported(kind: Kind) -> Result<()> {
    let (what, reason) = match kind {
        Kind::Lock | Kind::ReadWrite | Kind::Election => return Ok(()),
        Kind::Semaphore => (
            "semaphores",
            "each node counts alone, and holders with no common node are never counted together: more \
             permits than the limit could be granted",
        ),
        Kind::Barrier => (
            "barriers",
            "each node counts alone, and no node sees all parties: none can tell when all have arrived",
        ),
        Kind::Once => {
            return Err(unsupported(KIND, "`once`", "a quorum keeps no results"));
        }
    };
    Err(unsupported_by_majority(KIND, what, reason))
}
