//! Claims over a quorum: the decisions, each in a file of its own.

use std::sync::Arc;

use super::acquire::supported;
use super::{KIND, Quorum};
use windlass_core::Owner;
use windlass_core::error::Result;
use windlass_core::name::Name;
use windlass_core::store::unsupported::unsupported;
use windlass_core::store::{
    AcquireRequest, Acquired, AcquiredAll, ClaimStore, Holder, Kind, Occupancy, Pending, Released,
    Renewal, Renewed, WakeAddress,
};

impl ClaimStore for Quorum {
    fn acquire(&self, ask: AcquireRequest) -> Pending<'_, Acquired> {
        Box::pin(Quorum::ask_for(Arc::clone(&self.shared), ask))
    }

    fn acquire_all(&self, asks: Vec<AcquireRequest>) -> Pending<'_, AcquiredAll> {
        Box::pin(Quorum::ask_for_all(Arc::clone(&self.shared), asks))
    }

    fn renew(&self, claims: Vec<Renewal>) -> Pending<'_, Vec<Result<Renewed>>> {
        Box::pin(Quorum::keep_alive(Arc::clone(&self.shared), claims))
    }

    fn release(
        &self,
        kind: Kind,
        name: Name,
        owner: Owner,
        claim: Option<WakeAddress>,
    ) -> Pending<'static, Released> {
        let shared = Arc::clone(&self.shared);
        Box::pin(async move {
            supported(kind)?;
            Quorum::give_up(shared, kind, name, owner, claim).await
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
            supported(kind)?;
            self.shared.shrink(kind, name, owner, claim, weight).await
        })
    }

    fn resize(&self, kind: Kind, _: Name, _: u32) -> Pending<'_, Option<u32>> {
        let refused = supported(kind).and(Err(unsupported(
            KIND,
            "resizing",
            "only semaphores can be resized, and a majority cannot count permits",
        )));
        Box::pin(std::future::ready(refused))
    }

    fn inspect(&self, kind: Kind, name: Name, most: usize) -> Pending<'_, Occupancy> {
        Box::pin(async move {
            supported(kind)?;
            self.shared.inspect(kind, name, most).await
        })
    }

    fn list(
        &self,
        kinds: &'static [Kind],
        pattern: String,
        most: usize,
    ) -> Pending<'_, Vec<Occupancy>> {
        Box::pin(self.shared.list(kinds, pattern, most))
    }

    fn break_lock(&self, name: Name) -> Pending<'_, Option<Holder>> {
        Box::pin(self.shared.break_lock(name))
    }
}
