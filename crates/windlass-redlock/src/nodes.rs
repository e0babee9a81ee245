//! The nodes of a quorum: all of them ([`QuorumNodes`]), one of them ([`QuorumNode`]: calls to it, and
//! whether it can be relied on), and sets of them ([`NodeSet`]).

use std::fmt;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use tokio::runtime::Handle;

use super::address::RedlockAddress;
use super::calls::{NodeCalls, StopFlag};
use super::errors::NodeFailures;
use super::node_selection::NodeSelection;
use super::pending_release::PendingReleases;
use super::quarantine::{Quarantine, SAME_SERVER};
use super::rejoin::Rejoin;
use windlass_core::error::{Error, ErrorKind, Result};
use windlass_core::rules::quorum::majority;
use windlass_core::store::Pending;
use windlass_core::{Clock, Drift};
use windlass_redis::NodeClient;

/// No timeout of an operation is shorter, unless that of a node is.
const MIN_TIMEOUT: Duration = Duration::from_millis(20);
/// No timeout of a node is shorter.
const SHORTEST_TIMEOUT: Duration = Duration::from_millis(5);

/// A share of the TTL, at most the timeout of a node.
fn timeout(ttl: Duration, percent: u32, node_timeout: Duration) -> Duration {
    let longest = node_timeout.max(SHORTEST_TIMEOUT);
    (ttl * percent / 100).clamp(MIN_TIMEOUT.min(longest), longest)
}

/// All nodes, and what every operation on them needs.
pub(super) struct QuorumNodes {
    members: Vec<Arc<QuorumNode>>,
    pub(super) majority: usize,
    pub(super) max_ttl: Duration,
    pub(super) node_timeout: Duration,
    timeout_percent: u32,
    pub(super) drift: Option<Drift>,
    pub(super) clock: Clock,
    pub(super) runtime: Handle,
    pub(super) selection: NodeSelection,
}

impl QuorumNodes {
    pub(super) fn new(
        address: &RedlockAddress,
        members: Vec<QuorumNode>,
        clock: Clock,
    ) -> Arc<QuorumNodes> {
        let majority = majority(members.len());
        let names = members.iter().map(|node| node.name.as_str());
        Arc::new(QuorumNodes {
            majority,
            selection: NodeSelection::new(names, majority),
            members: members.into_iter().map(Arc::new).collect(),
            max_ttl: address.max_ttl,
            node_timeout: address.node_timeout,
            timeout_percent: address.timeout_percent,
            drift: address.drift,
            clock,
            runtime: Handle::current(),
        })
    }

    /// Connects to all nodes. Fails if fewer than a majority can be reached; a node that is reached
    /// need not have a vote yet.
    pub(super) async fn connect(self: &Arc<QuorumNodes>) -> Result<()> {
        let connect = |node: &Arc<QuorumNode>| -> Pending<'static, ()> {
            let (node, nodes) = (Arc::clone(node), Arc::clone(self));
            Box::pin(async move {
                node.client.status().await?;
                // A node without a vote is reported when it is needed, unless it can never have
                // one.
                match node.verify(&nodes).await {
                    Err(e) if e.hint() == Some(SAME_SERVER) => Err(e),
                    _ => Ok(()),
                }
            })
        };
        let mut calls = NodeCalls::new(self.members.iter().map(connect));
        let (mut connected, mut failures) = (0, NodeFailures::default());
        // Twice the timeout of a call: it takes a connection and several round trips.
        let replies = calls.receive(|node, reply| {
            match reply {
                Ok(()) => connected += 1,
                Err(e) => failures.add(node, e),
            }
            match connected + failures.len() == self.len() {
                true => ControlFlow::Break(()),
                false => ControlFlow::Continue(()),
            }
        });
        self.clock.within(2 * self.node_timeout, replies).await;
        failures.add_unanswered(calls.unanswered());
        if let Some((node, reason)) = failures.find_hint(SAME_SERVER) {
            let message = format!("{}: {reason}", self.node(node).name);
            return Err(Error::invalid("connect", message).with_hint(SAME_SERVER));
        }
        match connected >= self.majority {
            true => Ok(()),
            false => Err(failures.error(self, 0).with_operation("connect")),
        }
    }

    pub(super) fn len(&self) -> usize {
        self.members.len()
    }

    pub(super) fn node(&self, index: usize) -> &Arc<QuorumNode> {
        &self.members[index]
    }

    pub(super) fn iter(&self) -> impl ExactSizeIterator<Item = &Arc<QuorumNode>> {
        self.members.iter()
    }

    pub(super) fn all(&self) -> NodeSet {
        NodeSet::all(self.members.len())
    }

    /// How long an operation on a claim of `ttl` waits for the nodes.
    pub(super) fn timeout(&self, ttl: Duration) -> Duration {
        timeout(ttl, self.timeout_percent, self.node_timeout)
    }

    /// Refuses a ttl that would outlive a quarantine.
    pub(super) fn check_ttl(&self, operation: &'static str, ttl: Duration) -> Result<()> {
        if ttl <= self.max_ttl {
            return Ok(());
        }
        let max_ttl = self.max_ttl;
        let message = format!("a ttl of {ttl:?} exceeds the max_ttl of {max_ttl:?} of this quorum");
        Err(Error::invalid(operation, message).with_hint(
            "use a shorter ttl, or connect with ?max_ttl=…, the same for all clients: a node that restarts \
             without durable storage has no vote for that long",
        ))
    }

    /// Calls all nodes, and returns the replies that arrive in time, from a majority at least.
    pub(super) async fn query<T: Send + 'static>(
        &self,
        call: impl Fn(&Arc<QuorumNode>) -> Pending<'static, T>,
    ) -> Result<Vec<T>> {
        let mut calls = NodeCalls::new(self.members.iter().map(call));
        let (mut replies, mut failures) = (Vec::new(), NodeFailures::default());
        let all = calls.receive(|node, reply| {
            match reply {
                Ok(reply) => replies.push(reply),
                Err(e) => failures.add(node, e),
            }
            ControlFlow::<()>::Continue(())
        });
        self.clock.within(self.node_timeout, all).await;
        failures.add_unanswered(calls.unanswered());
        match replies.len() >= self.majority {
            true => Ok(replies),
            false => Err(failures.error(self, replies.len())),
        }
    }
}

impl fmt::Debug for QuorumNodes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(&self.members).finish()
    }
}

/// One node.
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
        // The caller polls it before it makes another call, so requests leave in the order of calls.
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

/// A set of nodes, by their index in the list of members: one bit each.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct NodeSet(u64);

impl NodeSet {
    /// All nodes of a quorum of `count`.
    pub(super) fn all(count: usize) -> NodeSet {
        (0..count).collect()
    }

    pub(super) fn contains(self, node: usize) -> bool {
        self.0 & (1 << node) != 0
    }

    /// Adds a node; whether it was not in the set before.
    pub(super) fn insert(&mut self, node: usize) -> bool {
        let new = !self.contains(node);
        self.0 |= 1 << node;
        new
    }

    pub(super) fn len(self) -> usize {
        self.0.count_ones() as usize
    }

    /// The nodes of this set that are not in `others`.
    pub(super) fn without(self, others: NodeSet) -> NodeSet {
        NodeSet(self.0 & !others.0)
    }

    /// The nodes that are in both sets.
    pub(super) fn intersection(self, others: NodeSet) -> NodeSet {
        NodeSet(self.0 & others.0)
    }

    pub(super) fn iter(self) -> impl Iterator<Item = usize> {
        (0..u64::BITS as usize).filter(move |node| self.contains(*node))
    }
}

impl FromIterator<usize> for NodeSet {
    fn from_iter<I: IntoIterator<Item = usize>>(nodes: I) -> NodeSet {
        let mut set = NodeSet::default();
        for node in nodes {
            set.insert(node);
        }
        set
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timeout_is_a_share_of_the_ttl_within_bounds() {
        let ms = Duration::from_millis;
        for (ttl, node_timeout, expected) in [
            (1_000, 500, 200),
            (30_000, 500, 500),
            (50, 500, 20),
            (30_000, 5, 5),
            (50, 12, 12),
            (30_000, 1, 5),
            (10, 1, 5),
        ] {
            assert_eq!(timeout(ms(ttl), 20, ms(node_timeout)), ms(expected));
        }
    }
}
