//! Replacing the node of an earlier claim of the same owner.
//!
//! One transaction deletes the old node and creates a new one with the same sequence number, in the
//! session of the new claim. So the position and the fence stay, no other claim is granted in between,
//! and the previous client finds its node gone.

use std::sync::Arc;
use std::time::Duration;

use zookeeper_client::Error as ZkError;

use super::claim_data::ClaimData;
use super::claim_table::{CreatedNode, LocalClaim};
use super::claims::ZooKeeperClaims;
use super::errors::from_client;
use super::queue::QueueView;
use super::session::Session;
use super::transaction::NodeTransaction;
use super::{node_name, paths};
use windlass_core::Fence;
use windlass_core::error::{Error, ErrorKind, Result};

/// The claim that was replaced.
pub(super) struct ReplacedClaim {
    pub(super) ttl: Duration,
    pub(super) fence: Fence,
}

/// Replaces the node at `index` by one of `claim`, whose own node, if it has one, is deleted. `None` if
/// the node at `index` is gone.
pub(super) async fn replace_node(
    claims: &ZooKeeperClaims,
    session: &Arc<Session>,
    claim: &LocalClaim,
    view: &QueueView,
    index: usize,
) -> Result<Option<ReplacedClaim>> {
    let (kind, name) = (claim.kind, &claim.name);
    let node = &view.nodes[index];
    let old_path = paths::claim(kind, name, &node.name);
    let read = session.retry(|client| client.get_data(&old_path)).await?;
    let (bytes, stat) = match read {
        Ok(read) => read,
        Err(ZkError::NoNode) => return Ok(None),
        Err(error) => return Err(from_client(error)),
    };
    let old = ClaimData::read(&bytes).filter(|old| old.owner == claim.owner.as_str());
    let Some(old) = old else {
        let message = "another owner's claim has the same protection id";
        return Err(Error::new(ErrorKind::Store, "acquire", message));
    };
    let ttl = Duration::from_millis(old.ttl);
    // The TTL that the replaced claim was promised must not be cut by a session of a shorter timeout.
    let session = match session.check_ttl(ttl) {
        Ok(()) => Arc::clone(session),
        Err(_) => claims.sessions.for_ttl(ttl).await?,
    };
    let fence = old.fence(&stat);
    let layout = claims.queues.layout;
    let prefix = node_name::prefix(layout, kind, claim.id, node.weight, node.barged);
    let new_path = paths::claim(kind, name, &format!("{prefix}{}", node.sequence.text()));
    let data = ClaimData {
        fence: Some(fence.get()),
        held: old.held,
        since: Some(old.since.unwrap_or(stat.ctime)),
        ..claim.data.clone()
    };
    let own_path = claim.node.as_ref().map(|node| node.path.as_str());
    let transaction = NodeTransaction {
        delete: [old_path.as_str()].into_iter().chain(own_path).collect(),
        create: Some((&new_path, &data)),
        ..NodeTransaction::default()
    };
    claims.table.change(claim.number, |claim| {
        claim.may_have_node = true;
        claim.session = Arc::clone(&session);
    });
    match transaction.commit(&session).await {
        Ok(true) => {}
        Ok(false) => {
            let table = &claims.table;
            table.change(claim.number, |changed| {
                changed.session = Arc::clone(&claim.session)
            });
            return Ok(None);
        }
        Err(error) => {
            // Whichever of its two nodes exists, the next request finds it, and the session that keeps it.
            claims.table.change(claim.number, |claim| claim.node = None);
            return Err(error);
        }
    }
    claims.table.change(claim.number, |claim| {
        claim.weight = node.weight;
        claim.data = data;
        claim.node = Some(CreatedNode {
            path: new_path,
            sequence: node.sequence,
            fence,
            created_zxid: fence.get() as i64,
        });
    });
    claims.table.forget_replaced(claim, node.id);
    Ok(Some(ReplacedClaim { ttl, fence }))
}
