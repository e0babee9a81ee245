//! One node: calls to it, and whether it can be relied on.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use super::calls::StopFlag;
use super::nodes::QuorumNodes;
use super::pending_release::PendingReleases;
use super::quarantine::Quarantine;
use super::rejoin::Rejoin;
use windlass_core::error::{Error, ErrorKind, Result};
use windlass_core::store::Pending;
use windlass_redis::NodeClient;

pub(super) struct QuorumNode {
    /// Host and port.
    pub(super) name: String,
    pub(super) client: Arc<dyn NodeClient>,
    /// The connection over which the node was found to have a vote; 0 if none.
    verified: AtomicU64,
    pub(super) quarantine: Quarantine,
    pub(super) rejoin: Rejoin,
    pub(super) pending_releases: PendingReleases,
    /// The node failed or was late, and has not replied in time since.
    suspect: AtomicBool,
}

impl QuorumNode {
    pub(super) fn new(name: String, client: Arc<dyn NodeClient>) -> QuorumNode {
        QuorumNode {
            name,
            client,
            verified: AtomicU64::new(0),
            quarantine: Quarantine::default(),
            rejoin: Rejoin::default(),
            pending_releases: PendingReleases::default(),
            suspect: AtomicBool::new(false),
        }
    }

    /// Sends a request whose reply counts as a vote. It is an error if the node has no vote, or may
    /// have restarted before it replied.
    pub(super) fn call<T: Send + 'static>(
        self: &Arc<QuorumNode>,
        nodes: &Arc<QuorumNodes>,
        stop: &StopFlag,
        request: impl FnOnce(&dyn NodeClient) -> Pending<'static, T> + Send + 'static,
    ) -> Pending<'static, T> {
        let Some(connection) = self.verified_connection() else {
            return self.verify_and_call(nodes, stop, request);
        };
        // Sent now and not when first polled, so that requests leave in the order of calls.
        let reply = request(&*self.client);
        let node = Arc::clone(self);
        // The latency matters only while the node is suspect.
        let suspect = self.suspect.load(Ordering::Relaxed);
        let timed = suspect.then(|| (Arc::clone(nodes), nodes.clock.now()));
        Box::pin(async move {
            let reply = reply.await;
            let reply = reply.and_then(|reply| node.same_connection(connection, reply));
            match (&reply, timed) {
                (Err(_), _) => node.mark_suspect(),
                (Ok(_), Some((nodes, sent))) => {
                    let took = nodes.clock.now().since(sent);
                    if took <= nodes.selection.latency.late_after(nodes.node_timeout) {
                        node.suspect.store(false, Ordering::Relaxed);
                    }
                }
                (Ok(_), None) => {}
            }
            reply
        })
    }

    fn verify_and_call<T: Send + 'static>(
        self: &Arc<QuorumNode>,
        nodes: &Arc<QuorumNodes>,
        stop: &StopFlag,
        request: impl FnOnce(&dyn NodeClient) -> Pending<'static, T> + Send + 'static,
    ) -> Pending<'static, T> {
        let (node, nodes, stop) = (Arc::clone(self), Arc::clone(nodes), stop.clone());
        Box::pin(async move {
            let connection = match node.quarantine.is_checking() {
                true => node.verify(&nodes).await?,
                // In a task of its own: a check takes several round trips, and the timeout of a
                // short-lived claim may end before. The next request then finds the check done.
                false => {
                    let (node, runtime) = (Arc::clone(&node), nodes.runtime.clone());
                    let check = runtime.spawn(async move { node.verify(&nodes).await });
                    let shutting_down = |_| unsent("the runtime is shutting down");
                    check.await.map_err(shutting_down)??
                }
            };
            if stop.is_stopped() {
                return Err(unsent("the request was not sent: its operation has ended"));
            }
            let reply = request(&*node.client).await?;
            node.same_connection(connection, reply)
        })
    }

    /// The current connection, if the node is known to have a vote for as long as that lasts.
    pub(super) fn verified_connection(&self) -> Option<u64> {
        let connection = self.client.connection();
        let verified = self.verified.load(Ordering::Acquire) == connection && connection != 0;
        verified.then_some(connection)
    }

    /// The node has a vote for as long as this connection lasts.
    pub(super) fn set_verified(&self, connection: u64) {
        self.verified.store(connection, Ordering::Release);
    }

    /// Checks whether the node has a vote, and returns the connection for as long as which it has.
    pub(super) async fn verify(&self, nodes: &QuorumNodes) -> Result<u64> {
        self.quarantine.verify(self, nodes).await
    }

    /// Passes a reply on, unless the node may have restarted since it was verified.
    pub(super) fn same_connection<T>(&self, verified: u64, reply: T) -> Result<T> {
        match self.client.connection() == verified {
            true => Ok(reply),
            false => Err(Error::new(
                ErrorKind::OutcomeUnknown,
                "call",
                "the connection broke during the call: the node may have restarted and lost its data",
            )),
        }
    }

    /// Whether the node is connected and has a vote.
    pub(super) fn is_ready(&self) -> bool {
        self.verified_connection().is_some() && self.client.is_connected()
    }

    pub(super) fn mark_suspect(&self) {
        self.suspect.store(true, Ordering::Relaxed);
    }

    /// Whether a request should not rely on this node's reply alone.
    pub(super) fn is_suspect(&self) -> bool {
        self.suspect.load(Ordering::Relaxed) || self.verified_connection().is_none()
    }
}

fn unsent(reason: &str) -> Error {
    Error::new(ErrorKind::Unreachable, "call", reason)
}

impl fmt::Debug for QuorumNode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)
    }
}
