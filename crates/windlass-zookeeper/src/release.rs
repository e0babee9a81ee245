//! Releasing a claim: its node is deleted.

use std::sync::Arc;

use tokio::sync::oneshot;
use zookeeper_client::Error as ZkError;

use super::claim_data::{ClaimData, holder};
use super::claim_table::{LocalClaim, LocalClaimState};
use super::claims::ZooKeeperClaims;
use super::errors::from_client;
use super::node_name::ProtectionId;
use super::paths;
use windlass_core::Owner;
use windlass_core::error::{Error, ErrorKind, Result};
use windlass_core::name::Name;
use windlass_core::store::{Holder, Kind, Pending, Released, WakeAddress};

/// One release, of one claim or of all claims of an owner to a name.
pub(super) struct ClaimRelease {
    claims: ZooKeeperClaims,
    kind: Kind,
    name: Name,
    owner: Owner,
    claim: Option<WakeAddress>,
}

impl ClaimRelease {
    pub(super) fn new(
        claims: ZooKeeperClaims,
        kind: Kind,
        name: Name,
        owner: Owner,
        claim: Option<WakeAddress>,
    ) -> ClaimRelease {
        ClaimRelease {
            claims,
            kind,
            name,
            owner,
            claim,
        }
    }

    /// Sends the request now, where that is possible, not when the result is awaited: the program may be
    /// about to exit.
    pub(super) fn start(self) -> Pending<'static, Released> {
        let table = &self.claims.table;
        let numbers = match self.claim {
            Some(wake) => vec![wake.claim],
            None => table.of_owner(self.kind, &self.name, &self.owner),
        };
        let known: Vec<_> = numbers.iter().filter_map(|n| table.remove(*n)).collect();
        if known.is_empty() {
            return Box::pin(self.release_unknown());
        }
        let deletion = match known.as_slice() {
            [claim] => start_deletion(claim),
            _ => None,
        };
        // The claims are in no table from here on, and their session may outlive their TTL by far: whether
        // or not the caller waits for the reply, their nodes are removed until the server confirms it.
        let (reply, released) = oneshot::channel();
        let remover = Arc::clone(&self.claims.remover);
        self.claims.remover.runtime.clone().spawn(async move {
            let outcome = match deletion {
                Some(deletion) => self.finish_deletion(&known[0], deletion).await,
                None => self.release_known(&known).await,
            };
            let failed = outcome.is_err();
            let _ = reply.send(outcome);
            if failed {
                for claim in known {
                    Arc::clone(&remover).remove_until_confirmed(claim).await;
                }
            }
        });
        Box::pin(async move {
            released.await.unwrap_or_else(|_| {
                let message = "the program is shutting down";
                Err(Error::new(ErrorKind::OutcomeUnknown, "release", message))
            })
        })
    }

    /// Awaits the reply to the deletion of a claim's node.
    async fn finish_deletion(
        &self,
        claim: &LocalClaim,
        deletion: impl Future<Output = Result<(), ZkError>>,
    ) -> Result<Released> {
        match deletion.await {
            Ok(()) => Ok(released(claim)),
            // It has another name if the reply to a replacement was lost.
            Err(ZkError::NoNode) => Ok(match self.claims.remover.remove(claim).await? {
                true => released(claim),
                false => Released::WasGone,
            }),
            Err(ZkError::SessionExpired) => Ok(Released::WasGone),
            Err(error) => Err(from_client(error)),
        }
    }

    /// Removes the nodes of claims in this client's table. The result is that of the last one.
    async fn release_known(&self, known: &[LocalClaim]) -> Result<Released> {
        let mut result = Released::WasGone;
        for claim in known {
            let was_held = self.is_held(claim).await?;
            result = match self.claims.remover.remove(claim).await? {
                true if was_held => Released::WasHeld,
                true => released(claim),
                false => Released::WasGone,
            };
        }
        Ok(result)
    }

    /// Whether a claim holds already though its caller has not learned of it.
    async fn is_held(&self, claim: &LocalClaim) -> Result<bool> {
        let is_undecided = claim.state == LocalClaimState::Requested && claim.may_have_node;
        if !is_undecided || claim.session.has_ended() {
            return Ok(false);
        }
        let queues = &self.claims.queues;
        let view = queues.read(&claim.session, self.kind, &self.name).await?;
        let index = view.index_of(claim.id);
        Ok(index.is_some_and(|index| view.held[index]))
    }

    /// Deletes the nodes that another client, or this one in an earlier session, created for this owner.
    async fn release_unknown(self) -> Result<Released> {
        let (kind, name) = (self.kind, &self.name);
        let session = self.claims.sessions.default_session().await?;
        // Another session created them, at another server.
        session.catch_up().await?;
        let view = self.claims.queues.read(&session, kind, name).await?;
        let any = WakeAddress {
            client: 0,
            claim: 0,
        };
        let id = ProtectionId::new(&self.owner, self.claim.unwrap_or(any));
        let is_ours = |known: ProtectionId| match self.claim {
            Some(_) => known.same_claim(id),
            None => known.same_owner(id),
        };
        let mut result = Released::WasGone;
        for (node, held) in view.nodes.iter().zip(&view.held) {
            if !node.id.is_some_and(is_ours) {
                continue;
            }
            let path = paths::claim(kind, name, &node.name);
            let data = session.retry(|client| client.get_data(&path)).await?;
            let data = data.ok().and_then(|(bytes, _)| ClaimData::read(&bytes));
            if data.is_some_and(|data| data.owner == self.owner.as_str())
                && session.delete(&path).await?
            {
                result = match held {
                    true => Released::WasHeld,
                    false => Released::WasWaiting,
                };
            }
        }
        Ok(result)
    }
}

/// Sends the request to delete a claim's node, if the node is known and the session is connected.
fn start_deletion(
    claim: &LocalClaim,
) -> Option<impl Future<Output = Result<(), ZkError>> + Send + use<>> {
    let node = claim.node.as_ref()?;
    let is_decided = claim.state != LocalClaimState::Requested;
    (is_decided && claim.session.is_connected())
        .then(|| claim.session.client().delete(&node.path, None))
}

/// The result of releasing a claim in this state.
fn released(claim: &LocalClaim) -> Released {
    match claim.state {
        LocalClaimState::Held => Released::WasHeld,
        _ => Released::WasWaiting,
    }
}

/// Deletes the node of a lock's holder, and returns the holder.
pub(super) async fn break_lock(claims: &ZooKeeperClaims, name: &Name) -> Result<Option<Holder>> {
    let session = claims.sessions.default_session().await?;
    loop {
        let view = claims.queues.read(&session, Kind::Lock, name).await?;
        let Some(node) = view.nodes.first() else {
            return Ok(None);
        };
        let path = paths::claim(Kind::Lock, name, &node.name);
        let read = session.retry(|client| client.get_data(&path)).await?;
        let (data, stat) = match read {
            Ok(read) => read,
            Err(ZkError::NoNode) => continue,
            Err(error) => return Err(from_client(error)),
        };
        if session.delete(&path).await? {
            let now = claims.clock.now();
            return Ok(Some(holder(&data, &node.name, 1, &stat, now)));
        }
    }
}
