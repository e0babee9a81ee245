//! Reducing the weight of a held claim: a writer becomes a reader, a semaphore gets permits back.
//!
//! The weight is part of the node's name, so one transaction replaces the node by one with the same
//! sequence number.

use super::claim_data::ClaimData;
use super::claim_table::LocalClaimState;
use super::claims::ZooKeeperClaims;
use super::node_name::{self, ChildNode};
use super::paths;
use super::transaction::NodeTransaction;
use windlass_core::error::Result;

/// Reduces the weight of the claim with this number. False if it is not held, or lighter than that.
pub(super) async fn shrink(claims: &ZooKeeperClaims, number: u64, weight: u32) -> Result<bool> {
    let Some(claim) = claims.table.get(number) else {
        return Ok(false);
    };
    let (Some(node), LocalClaimState::Held) = (&claim.node, claim.state) else {
        return Ok(false);
    };
    if claim.weight < weight {
        return Ok(false);
    }
    if claim.weight == weight {
        return claim.session.confirm(&node.path).await;
    }
    let layout = claims.queues.layout;
    let name = node.path.rsplit('/').next().unwrap_or_default();
    // A barging claim holds because its name says so.
    let parsed = node_name::parse(layout, claim.kind, name);
    let barged = matches!(parsed, ChildNode::Claim(known) if known.barged);
    let prefix = node_name::prefix(layout, claim.kind, claim.id, weight, barged);
    let new_name = format!("{prefix}{}", node.sequence.text());
    let new_path = paths::claim(claim.kind, &claim.name, &new_name);
    let data = ClaimData {
        fence: Some(node.fence.get()),
        ..claim.data.clone()
    };
    let transaction = NodeTransaction {
        delete: vec![&node.path],
        create: Some((&new_path, &data)),
        ..NodeTransaction::default()
    };
    if !transaction.commit(&claim.session).await? {
        claims.table.remove(number);
        return Ok(false);
    }
    claims.table.change(number, |claim| {
        claim.weight = weight;
        claim.data = data;
        if let Some(node) = &mut claim.node {
            node.path = new_path;
        }
    });
    Ok(true)
}
