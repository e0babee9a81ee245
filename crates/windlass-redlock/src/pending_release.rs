//! Releases that a node has not acknowledged, repeated in the background until it does.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::nodes::{QuorumNode, QuorumNodes};
use windlass_core::name::Name;
use windlass_core::store::{Kind, Pending, Released, WakeAddress};
use windlass_core::{Moment, Owner};

/// The most releases that are kept for one node; beyond that the oldest claim ends by its ttl.
const MAX_PENDING: usize = 10_000;
/// Between two attempts.
const RETRY_PAUSE: Duration = Duration::from_millis(200);

/// A claim that may still be on a node and has to be released there.
#[derive(Clone)]
pub(super) struct NodeRelease {
    pub(super) kind: Kind,
    pub(super) name: Name,
    pub(super) owner: Owner,
    pub(super) claim: Option<WakeAddress>,
    /// The claim has expired by then.
    pub(super) expires: Moment,
}

impl NodeRelease {
    pub(super) fn send(&self, node: &QuorumNode) -> Pending<'static, Released> {
        let (name, owner) = (self.name.clone(), self.owner.clone());
        node.client.release(self.kind, name, owner, self.claim)
    }

    /// Sends the release. If the node does not acknowledge it, or the caller stops waiting, it is
    /// repeated in the background.
    pub(super) fn send_reliably(
        self,
        node: &Arc<QuorumNode>,
        nodes: &Arc<QuorumNodes>,
    ) -> Pending<'static, Released> {
        let reply = self.send(node);
        let mut guard = RepeatOnDrop {
            node: Arc::clone(node),
            nodes: Arc::clone(nodes),
            release: Some(self),
        };
        Box::pin(async move {
            let reply = reply.await;
            if reply.is_ok() {
                guard.disarm();
            }
            reply
        })
    }
}

struct RepeatOnDrop {
    node: Arc<QuorumNode>,
    nodes: Arc<QuorumNodes>,
    release: Option<NodeRelease>,
}

impl RepeatOnDrop {
    fn disarm(&mut self) {
        self.release = None;
    }
}

impl Drop for RepeatOnDrop {
    fn drop(&mut self) {
        if let Some(release) = self.release.take() {
            PendingReleases::add(&self.node, &self.nodes, release);
        }
    }
}

/// The releases that one node has not acknowledged, oldest first.
#[derive(Default)]
pub(super) struct PendingReleases(Mutex<VecDeque<NodeRelease>>);

impl PendingReleases {
    /// Releases a claim in the background, as soon as the node replies again.
    pub(super) fn add(node: &Arc<QuorumNode>, nodes: &QuorumNodes, release: NodeRelease) {
        let first = {
            let mut queue = node.pending_releases.queue();
            if queue.len() >= MAX_PENDING {
                queue.pop_front();
            }
            queue.push_back(release);
            queue.len() == 1
        };
        if first {
            let (node, clock) = (Arc::clone(node), nodes.clock.clone());
            nodes.runtime.spawn(async move {
                clock.sleep(RETRY_PAUSE).await;
                while let Some(reply) = node.pending_releases.send_next(&node, clock.now()) {
                    match reply.await {
                        Ok(_) => drop(node.pending_releases.queue().pop_front()),
                        Err(_) => clock.sleep(RETRY_PAUSE).await,
                    }
                }
            });
        }
    }

    fn send_next(&self, node: &QuorumNode, now: Moment) -> Option<Pending<'static, Released>> {
        let mut queue = self.queue();
        while queue.front().is_some_and(|release| release.expires <= now) {
            queue.pop_front();
        }
        Some(queue.front()?.send(node))
    }

    fn queue(&self) -> MutexGuard<'_, VecDeque<NodeRelease>> {
        // Each change is a single insertion or removal, so a panic leaves the queue consistent.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
