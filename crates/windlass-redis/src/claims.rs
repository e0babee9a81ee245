//! Claims in Redis: locks, in the form that other libraries share, and pools for all else.

mod acquire_all;
mod inspect;
pub(super) mod list;

use std::sync::Arc;

use self::inspect::MAX_CHECKED_WAITERS;
use super::claim_command::{ClaimBatchers, ClaimCommand, ReleasedClaim};
use super::errors::wrong_fence_counter;
use super::master_epoch::FenceUse;
use super::router::Router;
use super::{record, replica_ack};
use windlass_core::Owner;
use windlass_core::error::{Error, ErrorKind, Result};
use windlass_core::name::Name;
use windlass_core::store::{
    Acknowledged, AcquireRequest, Acquired, AcquiredAll, ClaimStore, Holder, Kind, Occupancy,
    Pending, Released, Renewal, Renewed, Replicas, WakeAddress,
};

/// The claims of one client.
#[derive(Clone, Debug)]
pub(super) struct RedisClaims {
    router: Arc<Router>,
    batchers: ClaimBatchers,
}

impl RedisClaims {
    pub(super) fn new(router: Arc<Router>) -> RedisClaims {
        RedisClaims {
            batchers: ClaimBatchers::start(&router),
            router,
        }
    }

    fn release_claim(
        &self,
        kind: Kind,
        name: Name,
        owner: Owner,
        claim: ReleasedClaim,
    ) -> Pending<'static, Released> {
        let command = ClaimCommand::release(kind, name, owner, claim);
        let reply = self.batchers.decide(command);
        Box::pin(async move { reply.await?.released() })
    }

    /// A script does not say which of its keys has the wrong type: the claim's or the fence counter.
    async fn name_wrong_key(&self, name: &Name, error: Error) -> Error {
        if error.kind() != ErrorKind::WrongType {
            return error;
        }
        let counter = self.router.fence_counter(name);
        let mut command = redis::cmd("TYPE");
        command.arg(&counter);
        // The user may have no permission to ask.
        match self.router.query::<String>(&command).await {
            Ok(kind) if kind != "string" && kind != "none" => wrong_fence_counter(&counter),
            _ => error,
        }
    }
}

impl ClaimStore for RedisClaims {
    fn acquire(&self, request: AcquireRequest) -> Pending<'_, Acquired> {
        let name = request.name.clone();
        let acquired = self
            .batchers
            .acquire(request, self.router.wake_channel(), None);
        Box::pin(async move {
            match acquired.await {
                Ok(acquired) => Ok(acquired),
                Err(error) => Err(self.name_wrong_key(&name, error).await),
            }
        })
    }

    fn acquire_all(&self, requests: Vec<AcquireRequest>) -> Pending<'_, AcquiredAll> {
        Box::pin(self.acquire_all_locks(requests, FenceUse::Certain))
    }

    fn renew(&self, claims: Vec<Renewal>) -> Pending<'_, Vec<Result<Renewed>>> {
        let renew = |claim: Renewal| {
            let fence = claim.fence;
            let command = ClaimCommand::renew(claim, self.router.wake_channel());
            (fence, self.batchers.collect(command))
        };
        // All join a batch before the first reply is awaited, so that they share one call.
        let replies: Vec<_> = claims.into_iter().map(renew).collect();
        Box::pin(async move {
            let mut outcomes = Vec::with_capacity(replies.len());
            for (fence, reply) in replies {
                outcomes.push(reply.await.and_then(|reply| reply.renewed(fence)));
            }
            Ok(outcomes)
        })
    }

    fn release(
        &self,
        kind: Kind,
        name: Name,
        owner: Owner,
        claim: Option<WakeAddress>,
    ) -> Pending<'static, Released> {
        let claim = ReleasedClaim::new(claim, self.router.wake_channel());
        self.release_claim(kind, name, owner, claim)
    }

    fn release_unrecorded(
        &self,
        kind: Kind,
        name: Name,
        owner: Owner,
    ) -> Pending<'static, Released> {
        self.release_claim(kind, name, owner, ReleasedClaim::Unrecorded)
    }

    fn shrink(
        &self,
        kind: Kind,
        name: Name,
        owner: Owner,
        claim: WakeAddress,
        weight: u32,
    ) -> Pending<'_, bool> {
        let address = record::address(self.router.wake_channel(), claim);
        let command = ClaimCommand::shrink(kind, name, owner, address, weight);
        let reply = self.batchers.decide(command);
        Box::pin(async move { reply.await?.done() })
    }

    fn resize(&self, kind: Kind, name: Name, size: u32) -> Pending<'_, Option<u32>> {
        let reply = self.batchers.decide(ClaimCommand::resize(kind, name, size));
        Box::pin(async move { reply.await?.former_size() })
    }

    fn acknowledged(
        &self,
        kind: Kind,
        name: Name,
        owner: Owner,
        wanted: Replicas,
    ) -> Pending<'_, Acknowledged> {
        Box::pin(async move {
            replica_ack::wait_for_replicas(&self.router, kind, &name, &owner, wanted).await
        })
    }

    fn reply_is_overdue(&self) -> Option<Error> {
        self.router.drop_overdue_connections();
        None
    }

    fn inspect(&self, kind: Kind, name: Name, most: usize) -> Pending<'_, Occupancy> {
        Box::pin(async move {
            self.inspect_one(kind, &name, most, MAX_CHECKED_WAITERS)
                .await
        })
    }

    fn holders(&self, kind: Kind, name: Name, most: usize) -> Pending<'_, Vec<Holder>> {
        Box::pin(async move { Ok(self.inspect_one(kind, &name, most, 0).await?.holders) })
    }

    fn list(
        &self,
        kinds: &'static [Kind],
        pattern: String,
        most: usize,
    ) -> Pending<'_, Vec<Occupancy>> {
        Box::pin(async move { self.list_claims(kinds, &pattern, most).await })
    }

    fn break_lock(&self, name: Name) -> Pending<'_, Option<Holder>> {
        let reply = self.batchers.decide(ClaimCommand::break_lock(name));
        Box::pin(async move { reply.await?.former_holder() })
    }
}
