//! Removing claim nodes.
//!
//! A node whose create or replace request got no reply may exist under a name that this client does not
//! know; it is found by its protection id. The session may have moved to another server meanwhile, which
//! does not show the lost request until it is committed: so a transaction that changes nothing comes
//! before the read.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use tokio::runtime::Handle;

use super::claim_table::LocalClaim;
use super::node_name::ProtectionId;
use super::paths;
use super::queue_reader::QueueReader;
use super::session::Session;
use windlass_core::error::Result;
use windlass_core::name::Name;
use windlass_core::store::Kind;

/// The first pause between two attempts; it doubles up to the longest.
const FIRST_PAUSE: Duration = Duration::from_millis(20);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// Removes nodes of claims.
pub(super) struct NodeRemover {
    queues: Arc<QueueReader>,
    /// For removals in the background, which may start outside of a task.
    pub(super) runtime: Handle,
}

impl NodeRemover {
    /// Must be called on a runtime.
    pub(super) fn new(queues: Arc<QueueReader>) -> NodeRemover {
        let runtime = Handle::current();
        NodeRemover { queues, runtime }
    }

    /// Removes a claim's node, under whatever name it has. Returns whether it existed.
    pub(super) async fn remove(&self, claim: &LocalClaim) -> Result<bool> {
        if claim.session.has_ended() {
            return Ok(false);
        }
        if let Some(node) = &claim.node
            && claim.session.delete(&node.path).await?
        {
            return Ok(true);
        }
        if !claim.may_have_node {
            return Ok(false);
        }
        self.remove_by_id(&claim.session, claim.kind, &claim.name, claim.id)
            .await
    }

    /// Removes all nodes with this protection id. Returns whether there were any.
    async fn remove_by_id(
        &self,
        session: &Session,
        kind: Kind,
        name: &Name,
        id: ProtectionId,
    ) -> Result<bool> {
        session.catch_up().await?;
        let view = self.queues.read(session, kind, name).await?;
        let mut any = false;
        for node in view.nodes.iter().filter(|node| node.id == Some(id)) {
            any |= session
                .delete(&paths::claim(kind, name, &node.name))
                .await?;
        }
        Ok(any)
    }

    /// [`remove`](Self::remove), until the server confirms it or the session has ended.
    pub(super) async fn remove_until_confirmed(self: Arc<Self>, claim: LocalClaim) {
        until_confirmed(&claim.session, || self.remove(&claim)).await;
    }

    /// Deletes this node, until the server confirms it or the session has ended.
    pub(super) async fn remove_path_until_confirmed(
        self: Arc<Self>,
        session: Arc<Session>,
        path: String,
    ) {
        until_confirmed(&session, || session.delete(&path)).await;
    }

    /// Removes all nodes with this protection id, until the server confirms it or the session has ended.
    pub(super) async fn remove_by_id_until_confirmed(
        self: Arc<Self>,
        session: Arc<Session>,
        kind: Kind,
        name: Name,
        id: ProtectionId,
    ) {
        let remove = || self.remove_by_id(&session, kind, &name, id);
        until_confirmed(&session, remove).await;
    }
}

async fn until_confirmed<F>(session: &Session, mut remove: impl FnMut() -> F)
where
    F: Future<Output = Result<bool>>,
{
    let mut pause = FIRST_PAUSE;
    while !session.has_ended() && remove().await.is_err() {
        tokio::time::sleep(pause).await;
        pause = (2 * pause).min(LONGEST_PAUSE);
    }
}

impl fmt::Debug for NodeRemover {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("NodeRemover")
    }
}
