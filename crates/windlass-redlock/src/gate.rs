//! Gates over a majority: once a majority has admitted a fence, no majority admits a lower one.

use std::sync::Arc;
use std::time::Duration;

use super::nodes::{QuorumNode, QuorumNodes};
use windlass_core::error::{Error, ErrorKind, Result};
use windlass_core::name::Name;
use windlass_core::store::{Admission, GateStore, Pending};
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
