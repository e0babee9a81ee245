//! Gates over a majority: once a majority has admitted a fence, no majority admits a lower one.

use std::sync::Arc;
use std::time::Duration;

use super::nodes::{QuorumNode, QuorumNodes};
use windlass_core::error::{Error, ErrorKind, Result};
use windlass_core::name::Name;
use windlass_core::store::{
    Admission, DataKind, GateState, GateStore, InventoryStore, NamePage, Pending,
};
use windlass_core::{Fence, Moment};

#[derive(Debug)]
pub(super) struct QuorumGates(pub(super) Arc<QuorumNodes>);

impl GateStore for QuorumGates {
    fn admit(&self, name: Name, fence: Fence, retention: Duration) -> Pending<'_, Admission> {
        Box::pin(async move {
            let call = |node: &Arc<QuorumNode>| -> Pending<'static, Admission> {
                let (node, nodes, name) = (Arc::clone(node), Arc::clone(&self.0), name.clone());
                Box::pin(async move {
                    let connection = node.verify(&nodes).await?;
                    check_retention(&node, retention, nodes.clock.now())?;
                    let gates = node.client.store().gates();
                    let reply = gates.admit(name, fence, retention).await?;
                    node.same_connection(connection, reply)
                })
            };
            let replies = self.0.query(call).await?;
            let stale = replies.into_iter().filter_map(|reply| match reply {
                Admission::Stale { highest } => Some(highest),
                Admission::Admitted => None,
            });
            Ok(match stale.max() {
                Some(highest) => Admission::Stale { highest },
                None => Admission::Admitted,
            })
        })
    }

    fn inspect(&self, name: Name) -> Pending<'_, Option<GateState>> {
        Box::pin(async move {
            let replies = self.query_gates(move |gates| gates.inspect(name.clone()));
            let states = replies.await?.into_iter().flatten();
            Ok(states.max_by_key(|state| (state.highest, state.remaining)))
        })
    }

    /// On all nodes: one that still has the fence would go on rejecting lower ones.
    fn reset(&self, name: Name) -> Pending<'_, Option<Fence>> {
        Box::pin(async move {
            let replies = self
                .query_gates(move |gates| gates.reset(name.clone()))
                .await?;
            if replies.len() < self.0.len() {
                let message = format!(
                    "only {} of {} nodes have forgotten the fence",
                    replies.len(),
                    self.0.len()
                );
                let error = Error::new(ErrorKind::Unreachable, "reset", message);
                return Err(error
                    .with_part_done(true)
                    .with_hint("repeat it when all nodes can be reached: windlass doctor"));
            }
            Ok(replies.into_iter().flatten().max())
        })
    }

    /// Of a majority, one of which knows every fence that was issued.
    fn highest_issued(&self, name: Name) -> Pending<'_, Option<Fence>> {
        Box::pin(async move {
            let replies = self.query_gates(move |gates| gates.highest_issued(name.clone()));
            Ok(replies.await?.into_iter().flatten().max())
        })
    }
}

impl QuorumGates {
    /// Calls the gates of all nodes, and returns the replies that arrive in time, from a majority at
    /// least.
    async fn query_gates<T: Send + 'static>(
        &self,
        request: impl Fn(&dyn GateStore) -> Pending<'_, T> + Clone + Send + Sync + 'static,
    ) -> Result<Vec<T>> {
        let call = |node: &Arc<QuorumNode>| -> Pending<'static, T> {
            let (node, nodes) = (Arc::clone(node), Arc::clone(&self.0));
            let request = request.clone();
            Box::pin(async move {
                let connection = node.verify(&nodes).await?;
                let gates = node.client.store().gates();
                let reply = request(&*gates).await?;
                node.same_connection(connection, reply)
            })
        };
        self.0.query(call).await
    }
}

/// Fails if the node may have lost what it admitted within the retention.
fn check_retention(node: &QuorumNode, retention: Duration, now: Moment) -> Result<()> {
    let Some((durable, uptime)) = node.quarantine.durable_and_uptime(now) else {
        return Ok(());
    };
    if durable || uptime > retention {
        return Ok(());
    }
    Err(Error::new(
        ErrorKind::Unreachable,
        "admit",
        format!(
            "it started {} s ago without durable storage and may have lost what it admitted within the gate's \
             retention of {} s",
            uptime.as_secs(),
            retention.as_secs()
        ),
    )
    .with_hint(
        "run the nodes with appendonly yes and appendfsync always, or shorten the gate's retention",
    ))
}

/// The gates of a majority: each has those that a majority has admitted a fence at.
impl InventoryStore for QuorumGates {
    fn names(&self, kind: DataKind, pattern: String, most: usize) -> Pending<'_, NamePage> {
        Box::pin(async move {
            if kind != DataKind::Gate {
                return Err(kind.unsupported(super::KIND));
            }
            let call = |node: &Arc<QuorumNode>| -> Pending<'static, NamePage> {
                let (node, nodes) = (Arc::clone(node), Arc::clone(&self.0));
                let pattern = pattern.clone();
                Box::pin(async move {
                    let connection = node.verify(&nodes).await?;
                    let inventory = node.client.store().inventory();
                    let reply = inventory.names(kind, pattern, most).await?;
                    node.same_connection(connection, reply)
                })
            };
            let pages = self.0.query(call).await?;
            let has_more = pages.iter().any(|page| page.more);
            let names = pages.into_iter().flat_map(|page| page.names).collect();
            let mut page = NamePage::new(names, most);
            page.more |= has_more;
            Ok(page)
        })
    }
}
