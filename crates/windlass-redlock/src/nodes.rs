//! All nodes of a quorum, and what every operation on them needs.

use std::fmt;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Duration;

use tokio::runtime::Handle;

use super::address::RedlockAddress;
use super::calls::NodeCalls;
use super::errors::NodeFailures;
use super::node::QuorumNode;
use super::node_selection::NodeSelection;
use super::node_set::NodeSet;
use super::quarantine::SAME_SERVER;
use windlass_core::error::{Error, Result};
use windlass_core::rules::quorum::majority;
use windlass_core::store::Pending;
use windlass_core::{Clock, Drift};

/// No timeout of an operation is shorter.
const MIN_TIMEOUT: Duration = Duration::from_millis(20);

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
        let longest = self.node_timeout.max(MIN_TIMEOUT);
        (ttl * self.timeout_percent / 100).clamp(MIN_TIMEOUT, longest)
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
