//! Granting a claim that the queue shows as holding.
//!
//! `queue.rs` decides that a claim holds; this file is what follows from it, whether the claim holds at
//! once, after waiting, or when a renewal finds it. For locks, read-write locks and elections the grant
//! is recorded in this client only. In a semaphore or barrier two more things may be needed:
//!
//! - Whatever admitted this claim may also admit the next one, whose client does not know it yet. It
//!   watches this claim's node (see `wait.rs`), so the grant writes to the node.
//! - If another client barged in after this claim's node was created, its fence is higher than the zxid
//!   that created the node. The claim takes the zxid of its own write as its fence.

use std::fmt;
use std::sync::{Arc, Weak};

use zookeeper_client::Error as ZkError;

use super::claim_data::ClaimData;
use super::claim_table::{ClaimTable, LocalClaim, LocalClaimState};
use super::errors::from_client;
use super::pool::has_pool;
use super::queue::QueueView;
use windlass_core::Fence;
use windlass_core::error::Result;
use windlass_core::store::GrantListener;

/// Grants claims, and wakes their waiters.
pub(super) struct Grants {
    table: Arc<ClaimTable>,
    listener: Weak<dyn GrantListener>,
}

impl Grants {
    pub(super) fn new(table: Arc<ClaimTable>, listener: Weak<dyn GrantListener>) -> Grants {
        Grants { table, listener }
    }

    /// Grants the claim, which holds at `index`. `None` if the claim was released or its node is gone.
    pub(super) async fn grant(
        &self,
        claim: &LocalClaim,
        view: &QueueView,
        index: usize,
    ) -> Result<Option<Fence>> {
        let Some(node) = &claim.node else {
            return Ok(None);
        };
        let mut fence = node.fence;
        let overtaken = view.was_overtaken(claim.kind, node.created_zxid);
        if has_pool(claim.kind) && (overtaken || self.may_be_watched(claim, view, index)) {
            let mut data = ClaimData {
                held: true,
                ..claim.data.clone()
            };
            let client = claim.session.client();
            let mut written = client.set_data(&node.path, &data.bytes(), None).await;
            if overtaken && let Ok(stat) = &written {
                fence = Fence::new(stat.mzxid as u64);
                data.fence = Some(fence.get());
                written = client.set_data(&node.path, &data.bytes(), None).await;
            }
            match written {
                Ok(_) => {}
                Err(ZkError::NoNode) => return Ok(None),
                Err(error) => return Err(from_client(error)),
            }
            self.table.change(claim.number, |claim| claim.data = data);
        }
        Ok(self.table.set_held(claim, fence))
    }

    /// Whether another client may watch the claim's node. Among waiters of this client the task that
    /// grants them reads the whole queue, so they do not watch each other.
    fn may_be_watched(&self, claim: &LocalClaim, view: &QueueView, index: usize) -> bool {
        let waited = claim.state == LocalClaimState::Waiting;
        let is_local = |id| waited && self.table.has_waiting(claim.kind, &claim.name, id);
        view.nodes
            .get(index + 1)
            .is_some_and(|next| !next.id.is_some_and(is_local))
    }

    /// Wakes the caller that waits for this claim: with its fence if it is granted; otherwise the caller
    /// renews the claim to learn its state.
    pub(super) fn wake(&self, claim: &LocalClaim, fence: Option<Fence>) {
        if let Some(listener) = self.listener.upgrade() {
            listener.granted(claim.number, fence);
        }
    }
}

impl fmt::Debug for Grants {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Grants")
    }
}
