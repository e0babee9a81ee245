//! Going ahead of those who wait for more room.

use std::sync::Arc;

use zookeeper_client::Error as ZkError;

use super::claim_data::ClaimData;
use super::claim_table::Placed;
use super::errors::translate;
use super::node_name as node;
use super::queue::View;
use super::replace::Exchange;
use super::session::Session;
use super::{Store, paths};
use windlass_core::Fence;
use windlass_core::error::Result;
use windlass_core::store::AcquireRequest;

impl Store {
    /// Takes what is free, though others wait. `false` if something has changed: look again.
    ///
    /// The claim's name says from then on that it holds. That is safe, since the transaction fails
    /// unless every holder is still there, and the first of those who wait: as long as they are, none
    /// of those who wait has been let in, and whoever looks later counts this one. It writes to the
    /// parent, so that of two who barge in at once one has to look again.
    pub(super) async fn barge(
        &self,
        session: &Arc<Session>,
        ask: &AcquireRequest,
        view: &View,
        index: usize,
    ) -> Result<bool> {
        let own = &view.nodes[index];
        let (Some(mark), Some(entry)) = (own.mark, self.table.get(ask.wake.claim)) else {
            return Ok(false);
        };
        let path = |name: &str| paths::child(ask.kind, &ask.name, name);
        let front = node::prefix(self.address.layout, ask.kind, mark, own.weight, true);
        let place = own.sequence.text();
        let (old, new) = (path(&own.name), path(&format!("{front}{place}")));
        let parent = paths::of_claims(ask.kind, &ask.name);
        let standing = || view.nodes.iter().zip(&view.held);
        let holders = standing().filter(|(_, held)| **held);
        let waits = standing().find(|(node, held)| !**held && node.name != own.name);
        let data = ClaimData {
            held: true,
            ..entry.data.clone()
        };
        let exchange = Exchange {
            old: vec![&old],
            new: Some((&new, &data)),
            beside: holders
                .chain(waits)
                .map(|(node, _)| path(&node.name))
                .collect(),
            parent: Some((&parent, view.room.bytes(), view.version)),
        };
        if !self.exchange(session, exchange).await? {
            return Ok(false);
        }
        let stat = match session.ask(|client| client.check_stat(&new)).await? {
            Ok(Some(stat)) => stat,
            Ok(None) | Err(ZkError::NoNode) => return Ok(false),
            Err(error) => return Err(translate(error)),
        };
        self.table.change(ask.wake.claim, |entry| entry.data = data);
        let placed = Placed {
            path: new,
            sequence: own.sequence,
            // Higher than that of anybody who was let in before.
            fence: Fence::new(stat.czxid as u64),
            created: stat.czxid,
        };
        self.placed(ask, placed);
        Ok(true)
    }
}
