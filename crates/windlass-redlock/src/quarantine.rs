//! Whether a node may vote.
//!
//! A node that restarted without durable storage lost what it granted, and its fence counter. If it
//! voted at once, it would grant a lock that is held. So:
//!
//! 1. It has no vote until it has been up for longer than `max_ttl`: every claim from before the
//!    restart has expired by then (**quarantine**).
//! 2. Then it **joins**: its counter is raised to the highest counter of a majority of the *other*
//!    nodes. Each fence that the node took part in came from a majority, and one of these others
//!    was part of that majority. Not earlier: while a claim from before the restart is valid, its
//!    holder may still raise its fence on nodes that have been read already.
//!
//! A server under two names would vote twice, so nodes are also compared by the server's run id.
//!
//! A restarted node is never reached over an old connection. So a check holds for as long as the
//! connection.

use std::ops::ControlFlow;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::calls::NodeCalls;
use super::errors::MAKE_DURABLE;
use super::nodes::{QuorumNode, QuorumNodes};
use windlass_core::error::{Error, ErrorKind, Result};
use windlass_core::rules::quorum::may_vote;
use windlass_core::store::Pending;
use windlass_core::{Fence, Moment};
use windlass_redis::{NodeClient, NodeStatus};

/// `uptime_in_seconds` is the difference of two rounded times.
const ROUNDING: Duration = Duration::from_secs(1);
/// The hint for one server that is reached under two names.
pub(super) const SAME_SERVER: &str = "name each server once, and as many servers as nodes";

/// What is known about one node's right to vote.
#[derive(Default)]
pub(super) struct Quarantine {
    /// Held during a check, so that concurrent requests share one.
    check: tokio::sync::Mutex<Option<NoVoteUntil>>,
    last_status: Mutex<Option<LastStatus>>,
    /// The run id of the server and the connection over which it was read.
    run: Mutex<Option<(String, u64)>>,
}

/// The result of a check: no vote before then.
struct NoVoteUntil {
    connection: u64,
    until: Moment,
}

/// What the node reported about itself.
#[derive(Clone, Copy)]
struct LastStatus {
    durable: bool,
    /// At the time of the report.
    uptime: Duration,
    at: Moment,
}

impl Quarantine {
    /// Whether a check is running.
    pub(super) fn is_checking(&self) -> bool {
        self.check.try_lock().is_err()
    }

    /// Checks whether the node has a vote, and lets it join if it has one now.
    pub(super) async fn verify(&self, node: &QuorumNode, nodes: &QuorumNodes) -> Result<u64> {
        let client = &*node.client;
        let mut known = self.check.lock().await;
        if let Some(connection) = node.verified_connection() {
            return Ok(connection);
        }
        let now = nodes.clock.now();
        if let Some(known) = &*known
            && known.connection == client.connection()
            && now < known.until
        {
            return Err(self.in_quarantine(now, known.until));
        }
        let (status, connection) = current_status(client).await?;
        let uptime = status.up.saturating_sub(ROUNDING);
        // Taken after the reply, so that the node does not seem older than it is.
        let now = nodes.clock.now();
        *self.last_status() = Some(LastStatus {
            durable: status.durable,
            uptime,
            at: now,
        });
        // Written before the others are compared: of two concurrent checks, one at least sees the
        // other.
        *self.run() = Some((status.run.clone(), connection));
        if let Some(other) = same_server(node, nodes) {
            // The server votes under the other name.
            *self.run() = None;
            let twice = format!("it is the same server as {other}, and a server has one vote");
            return Err(no_vote(&twice).with_hint(SAME_SERVER));
        }
        let millis = |d: Duration| u64::try_from(d.as_millis()).unwrap_or(u64::MAX);
        if !may_vote(status.durable, millis(uptime), millis(nodes.max_ttl)) {
            let left = nodes.max_ttl.saturating_sub(uptime) + ROUNDING;
            let until = now + left;
            *known = Some(NoVoteUntil { connection, until });
            return Err(self.in_quarantine(now, until));
        }
        if !status.joined {
            let floor = match (status.durable, status.counter) {
                (true, Some(_)) => 0,
                _ => highest_counter_elsewhere(node, nodes).await?,
            };
            client.join(status.run, Fence::new(floor)).await?;
        }
        *known = None;
        node.set_verified(connection);
        Ok(connection)
    }

    /// How long the quarantine still lasts, by the node's last report. `None` if it is not in
    /// quarantine.
    pub(super) fn remaining(&self, now: Moment, max_ttl: Duration) -> Option<Duration> {
        let (durable, uptime) = self.durable_and_uptime(now)?;
        let left = max_ttl.saturating_sub(uptime) + ROUNDING;
        (!durable).then_some(left)
    }

    /// Whether the node is durable, and how long it has been up at least, by its last report.
    pub(super) fn durable_and_uptime(&self, now: Moment) -> Option<(bool, Duration)> {
        let status = (*self.last_status())?;
        Some((status.durable, status.uptime + now.since(status.at)))
    }

    fn in_quarantine(&self, now: Moment, until: Moment) -> Error {
        let uptime = self.durable_and_uptime(now).map(|(_, uptime)| uptime);
        no_vote(&format!(
            "it started {} s ago without durable storage and may have lost what it granted: it has no vote \
             for another {} s",
            (uptime.unwrap_or_default() + ROUNDING).as_secs(),
            until.since(now).as_secs()
        ))
        .with_hint(MAKE_DURABLE)
    }

    fn last_status(&self) -> MutexGuard<'_, Option<LastStatus>> {
        self.last_status
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    fn run(&self) -> MutexGuard<'_, Option<(String, u64)>> {
        self.run.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The node's status, and the connection over which it was read.
async fn current_status(client: &dyn NodeClient) -> Result<(NodeStatus, u64)> {
    let mut before = client.connection();
    loop {
        let status = client.status().await?;
        let after = client.connection();
        if before == after {
            return Ok((status, after));
        }
        before = after;
    }
}

/// Another node that is the same server under another name.
fn same_server<'a>(node: &QuorumNode, nodes: &'a QuorumNodes) -> Option<&'a str> {
    let (run, _) = node.quarantine.run().clone()?;
    let mut others = nodes.iter().filter(|other| other.name != node.name);
    // What was read over an earlier connection may have been another server.
    let is_same = |other: &&Arc<QuorumNode>| {
        let known = other.quarantine.run().clone();
        known.is_some_and(|(its, over)| its == run && over == other.client.connection())
    };
    others.find(is_same).map(|other| other.name.as_str())
}

/// The highest counter of the other nodes, if a majority replies.
async fn highest_counter_elsewhere(node: &QuorumNode, nodes: &QuorumNodes) -> Result<u64> {
    let others = nodes.iter().filter(|other| other.name != node.name);
    let mut calls = NodeCalls::new(others.map(|other| -> Pending<'static, NodeStatus> {
        let other = Arc::clone(other);
        Box::pin(async move { other.client.status().await })
    }));
    let (mut replies, mut intact, mut highest) = (0, 0, 0);
    let all = calls.receive(|_, reply| {
        if let Ok(status) = reply {
            replies += 1;
            highest = highest.max(status.counter.unwrap_or(0));
            if status.joined || status.durable && status.counter.is_some() {
                intact += 1;
            }
        }
        ControlFlow::<()>::Continue(())
    });
    nodes.clock.within(nodes.node_timeout, all).await;
    if replies < nodes.majority {
        return Err(no_vote(&format!(
            "it lost its fence counter and has to read those of {} other nodes first; {replies} replied",
            nodes.majority
        ))
        .with_hint("start more of the other nodes first"));
    }
    if intact < nodes.majority {
        tracing::info!(
            node = node.name,
            intact,
            "most other nodes lost their fence counters too: fences continue from the servers' clocks"
        );
    }
    Ok(highest)
}

fn no_vote(reason: &str) -> Error {
    Error::new(ErrorKind::Unreachable, "call", reason)
}
