//! Changing the size of a semaphore while claims come and go.
//!
//! Who holds follows from the names of the claims and the size. So when the size becomes smaller, the
//! parent records up to which claim they keep holding. No claim may be granted between the read that
//! finds this claim and the write of the size: one that is granted by the old size would count as a
//! waiter. So a *blocker*, a claim whose weight no pool can have, is first put at the end of the queue:
//! every later claim waits. Then one transaction writes the size and deletes the blocker, if all claims
//! still exist whose removal could have admitted a waiter before it.

use std::sync::Arc;

use zookeeper_client::{CreateMode, Error as ZkError};

use super::claims::ZooKeeperClaims;
use super::errors::{from_client, is_connection_loss};
use super::node_name::{self, ProtectionId};
use super::paths;
use super::pool::PoolData;
use super::queue::QueueView;
use super::session::Session;
use super::transaction::NodeTransaction;
use windlass_core::error::{Error, ErrorKind, Result};
use windlass_core::name::Name;
use windlass_core::store::Kind;

/// More than any pool can have.
const BLOCKER_WEIGHT: u32 = u32::MAX;

/// One change of a size.
pub(super) struct Resize {
    claims: ZooKeeperClaims,
    session: Arc<Session>,
    kind: Kind,
    name: Name,
    size: u32,
}

impl Resize {
    /// Sets the size, and returns the previous one, if there was one. Holders keep holding.
    pub(super) async fn run(
        claims: ZooKeeperClaims,
        kind: Kind,
        name: Name,
        size: u32,
    ) -> Result<Option<u32>> {
        // In a task, so that it ends even if the caller is cancelled: the queue must not stay blocked.
        let resized = tokio::spawn(async move {
            let resize = Resize::new(claims, kind, name, size).await?;
            resize.repeat_until_written().await
        });
        resized.await.unwrap_or_else(|_| {
            let message = "the change of the size was interrupted";
            Err(Error::new(ErrorKind::OutcomeUnknown, "resize", message))
        })
    }

    pub(super) async fn new(
        claims: ZooKeeperClaims,
        kind: Kind,
        name: Name,
        size: u32,
    ) -> Result<Resize> {
        let session = claims.sessions.default_session().await?;
        Ok(Resize {
            claims,
            session,
            kind,
            name,
            size,
        })
    }

    async fn read_queue(&self) -> Result<Arc<QueueView>> {
        let queues = &self.claims.queues;
        queues.read(&self.session, self.kind, &self.name).await
    }

    async fn repeat_until_written(self) -> Result<Option<u32>> {
        loop {
            if !self.read_queue().await?.parent.exists() {
                let pool = PoolData::with_size(self.size).bytes();
                let parent = paths::queue(self.kind, &self.name);
                self.session.create_containers(&parent, &pool).await?;
                if self.read_queue().await?.parent.pool.size == self.size {
                    return Ok(None);
                }
                continue;
            }
            let blocker = ProtectionId(rand::random());
            let resized = self.attempt(blocker).await;
            if !matches!(resized, Ok(Some(_))) {
                let remover = Arc::clone(&self.claims.remover);
                let (session, name) = (Arc::clone(&self.session), self.name.clone());
                let kind = self.kind;
                tokio::spawn(remover.remove_by_id_until_confirmed(session, kind, name, blocker));
            }
            if let Some(before) = resized? {
                return Ok((before != 0).then_some(before));
            }
        }
    }

    /// The previous size; `None` if the queue changed in the meantime.
    async fn attempt(&self, blocker: ProtectionId) -> Result<Option<u32>> {
        self.block_queue(blocker).await?;
        let view = self.read_queue().await?;
        let written = self.write_size(&view, blocker).await?;
        Ok(written.then_some(view.parent.pool.size))
    }

    /// Puts the blocker at the end of the queue.
    pub(super) async fn block_queue(&self, blocker: ProtectionId) -> Result<()> {
        self.session.wait_connected().await?;
        let layout = self.claims.queues.layout;
        let prefix = node_name::prefix(layout, self.kind, blocker, BLOCKER_WEIGHT, false);
        let path = paths::claim(self.kind, &self.name, &prefix);
        let options = CreateMode::EphemeralSequential.with_acls(self.session.acls());
        match self.session.client().create(&path, b"", &options).await {
            Ok(_) | Err(ZkError::NoNode) => Ok(()),
            // If the node was created, the next read finds it by its id.
            Err(error) if is_connection_loss(&error) => Ok(()),
            Err(error) => Err(from_client(error)),
        }
    }

    /// Writes the size and deletes the blocker, if this view still shows who holds.
    pub(super) async fn write_size(&self, view: &QueueView, blocker: ProtectionId) -> Result<bool> {
        let Some(end) = view.index_of(blocker) else {
            return Ok(false);
        };
        let path = |index: usize| paths::claim(self.kind, &self.name, &view.nodes[index].name);
        let holds = |index: &usize| view.held[*index];
        // If no claim waits before the blocker, none can be granted.
        let require = match (0..end).find(|index| !view.held[*index]) {
            Some(first_waiter) => (0..view.nodes.len())
                .filter(holds)
                .chain([first_waiter])
                .map(path)
                .collect(),
            None => Vec::new(),
        };
        let last_holder = (0..end)
            .rev()
            .find(|i| view.held[*i] && !view.nodes[*i].barged);
        let pool = PoolData {
            size: self.size,
            held_to: last_holder.map(|index| view.nodes[index].sequence.0),
            ..view.parent.pool.clone()
        };
        let (parent, blocker) = (paths::queue(self.kind, &self.name), path(end));
        let transaction = NodeTransaction {
            delete: vec![&blocker],
            create: None,
            require,
            write_parent: Some((&parent, pool.bytes(), view.parent.version)),
        };
        transaction.commit(&self.session).await
    }
}
