//! Barging: a claim that fits takes what is free, though others wait for more.
//!
//! The claim's node is replaced by one whose name says that it holds. The transaction fails unless every
//! holder and the first other waiter still exist: as long as they do, no waiter has been granted, and
//! every later read of the queue counts this claim. The transaction also writes the parent, so that of
//! two clients that barge in at once one must read the queue again.

use zookeeper_client::Error as ZkError;

use super::claim_data::ClaimData;
use super::claim_table::{CreatedNode, LocalClaim};
use super::errors::from_client;
use super::node_name::{self, NodeLayout};
use super::paths;
use super::queue::QueueView;
use super::session::Session;
use super::transaction::NodeTransaction;
use windlass_core::error::Result;

/// Grants the claim at `index` ahead of the waiters. Returns its new node and data; `None` if the queue
/// has changed.
pub(super) async fn barge(
    session: &Session,
    layout: NodeLayout,
    claim: &LocalClaim,
    view: &QueueView,
    index: usize,
) -> Result<Option<(CreatedNode, ClaimData)>> {
    let own = &view.nodes[index];
    let Some(id) = own.id else {
        return Ok(None);
    };
    let path = |node: &str| paths::claim(claim.kind, &claim.name, node);
    let prefix = node_name::prefix(layout, claim.kind, id, own.weight, true);
    let (old, new) = (
        path(&own.name),
        path(&format!("{prefix}{}", own.sequence.text())),
    );
    let parent = paths::queue(claim.kind, &claim.name);
    let queue = || view.nodes.iter().zip(&view.held);
    let holders = queue().filter(|(_, held)| **held);
    let first_waiter = queue().find(|(node, held)| !**held && node.name != own.name);
    let data = ClaimData {
        held: true,
        ..claim.data.clone()
    };
    let transaction = NodeTransaction {
        delete: vec![&old],
        create: Some((&new, &data)),
        require: holders
            .chain(first_waiter)
            .map(|(node, _)| path(&node.name))
            .collect(),
        write_parent: Some((&parent, view.parent.pool.bytes(), view.parent.version)),
    };
    if !transaction.commit(session).await? {
        return Ok(None);
    }
    let stat = match session.retry(|client| client.check_stat(&new)).await? {
        Ok(Some(stat)) => stat,
        Ok(None) | Err(ZkError::NoNode) => return Ok(None),
        Err(error) => return Err(from_client(error)),
    };
    // The new node's zxid is higher than the fence of every earlier grant.
    Ok(Some((
        CreatedNode::new(new, own.sequence, stat.czxid),
        data,
    )))
}
