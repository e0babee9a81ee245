//! Breaking a lock: taking it from its holder on every node.

use std::sync::Arc;

use super::inspect::merge_holder;
use super::nodes::{QuorumNode, QuorumNodes};
use windlass_core::error::Result;
use windlass_core::name::Name;
use windlass_core::store::Holder;

/// The holder of a majority that lost the lock, if there was one.
pub(super) async fn break_lock(nodes: &QuorumNodes, name: Name) -> Result<Option<Holder>> {
    let call = |node: &Arc<QuorumNode>| node.client.break_lock(name.clone());
    let broken: Vec<Holder> = nodes.query(call).await?.into_iter().flatten().collect();
    let held_by = |owner: &str| broken.iter().filter(|h| h.owner == owner).count();
    let holder = broken.iter().find(|h| held_by(&h.owner) >= nodes.majority);
    Ok(holder.map(|holder| {
        let views = broken.iter().filter(|h| h.owner == holder.owner).cloned();
        merge_holder(views.collect(), nodes.majority)
    }))
}
