//! Releasing claims on every node that may have them, whether or not the node replies.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Duration;

use super::calls::{NodeCalls, StopFlag};
use super::claims::ClaimState;
use super::errors::NodeFailures;
use super::nodes::{NodeSet, QuorumNode, QuorumNodes};
use super::partial_grants::PartialGrant;
use super::pending_release::NodeRelease;
use windlass_core::error::Result;
use windlass_core::name::Name;
use windlass_core::store::{AcquireRequest, Kind, Pending, Released, WakeAddress};
use windlass_core::{Moment, Owner};

/// A release of one claim, or of whatever the owner has if there is no `claim`.
pub(super) struct Release {
    pub(super) kind: Kind,
    pub(super) name: Name,
    pub(super) owner: Owner,
    pub(super) claim: Option<WakeAddress>,
}

impl Release {
    pub(super) async fn run(self, state: Arc<ClaimState>) -> Result<Released> {
        let nodes = &state.nodes;
        let claim = self.claim.map(|claim| claim.claim);
        let was_waiting = (state.waiters).release(self.kind, &self.name, &self.owner, claim);
        let partial = match self.kind {
            Kind::Lock => state.partial_grants.take(&self.name, &self.owner, claim),
            _ => None,
        };
        let send_to = partial.map_or(nodes.all(), |partial| partial.sent_to);
        let expires = nodes.clock.now() + nodes.max_ttl;
        let mut calls = NodeCalls::none(nodes.len());
        for node in send_to.iter() {
            // Sent whether or not the node has a vote: it may have the claim.
            let release = self.on_node(expires);
            calls.add(node, release.send_reliably(nodes.node(node), nodes));
        }
        let mut tally = ReleaseTally {
            called: send_to.len(),
            majority: nodes.majority,
            ..ReleaseTally::default()
        };
        let only_some = send_to != nodes.all();
        let late_after = nodes.selection.latency.late_after(nodes.node_timeout);
        for wait in [late_after, nodes.node_timeout - late_after] {
            let decided = calls.receive(|node, reply| tally.add(node, reply));
            if nodes.clock.within(wait, decided).await.is_some() {
                break;
            }
            // All of a partial grant's nodes are awaited, unless what remains on them is no
            // majority.
            if only_some && tally.unknown() < nodes.majority {
                // So that the next operation does not wait for them as well.
                let late = calls.unanswered();
                late.for_each(|node| nodes.node(node).mark_suspect());
                break;
            }
        }
        tally.failures.add_unanswered(calls.unanswered());
        // A node that never replies gets the release repeated.
        calls.finish(nodes, &StopFlag::default(), 2 * nodes.node_timeout);
        if tally.unknown() >= nodes.majority {
            let failures = &tally.failures;
            return Err(failures.error_of(nodes, tally.called, tally.answered()));
        }
        // No node says that it was not held, and by the clock it was.
        let is_valid = |partial: PartialGrant| nodes.clock.now() < partial.valid_until;
        let may_be_held = tally.held > 0 && tally.held + tally.unknown() >= nodes.majority;
        if only_some && may_be_held && partial.is_some_and(is_valid) {
            return Ok(Released::WasHeld);
        }
        Ok(match (tally.held, tally.waiting) {
            (held, _) if held >= nodes.majority => Released::WasHeld,
            (0, 0) => Released::WasGone,
            // It was held once: a minority is left of it, or it was requested again on some nodes.
            _ if self.claim.is_some() && !was_waiting => Released::WasGone,
            _ => Released::WasWaiting,
        })
    }

    fn on_node(&self, expires: Moment) -> NodeRelease {
        NodeRelease {
            kind: self.kind,
            name: self.name.clone(),
            owner: self.owner.clone(),
            claim: self.claim,
            expires,
        }
    }
}

/// The replies to a release.
#[derive(Default)]
struct ReleaseTally {
    called: usize,
    majority: usize,
    held: usize,
    waiting: usize,
    gone: usize,
    failures: NodeFailures,
}

impl ReleaseTally {
    fn add(&mut self, node: usize, reply: Result<Released>) -> ControlFlow<()> {
        match reply {
            Ok(Released::WasHeld) => self.held += 1,
            Ok(Released::WasWaiting) => self.waiting += 1,
            Ok(Released::WasGone) => self.gone += 1,
            Err(e) => self.failures.add(node, e),
        }
        let missing = self.called - self.answered() - self.failures.len();
        // A claim held on a minority cannot be distinguished from one that was waiting or is gone.
        let not_held = self.held + missing < self.majority;
        match self.held >= self.majority || not_held && self.answered() >= self.majority {
            true => ControlFlow::Break(()),
            false => ControlFlow::Continue(()),
        }
    }

    fn answered(&self) -> usize {
        self.held + self.waiting + self.gone
    }

    /// The nodes that may still have the claim.
    fn unknown(&self) -> usize {
        self.called - self.answered()
    }
}

/// Releases, in the background, what an unsuccessful acquire may have been granted `on` these
/// nodes.
pub(super) fn undo(
    nodes: &Arc<QuorumNodes>,
    on: NodeSet,
    request: &AcquireRequest,
    timeout: Duration,
) {
    let release = NodeRelease {
        kind: request.kind,
        name: request.name.clone(),
        owner: request.owner.clone(),
        // Only this claim: the same owner may have acquired again since.
        claim: request.record_now.then_some(request.wake),
        expires: nodes.clock.now() + request.ttl,
    };
    for node in on.iter() {
        let reply = release.clone().send_reliably(nodes.node(node), nodes);
        let clock = nodes.clock.clone();
        nodes.runtime.spawn(async move {
            clock.within(timeout, reply).await;
        });
    }
}

/// Reduces the weight of a claim. Whether a majority held it.
pub(super) async fn shrink(
    nodes: &Arc<QuorumNodes>,
    kind: Kind,
    name: Name,
    owner: Owner,
    claim: WakeAddress,
    weight: u32,
) -> Result<bool> {
    let call = |node: &Arc<QuorumNode>| -> Pending<'static, bool> {
        let (name, owner) = (name.clone(), owner.clone());
        node.call(nodes, &StopFlag::default(), move |client| {
            let store = client.store().claims();
            Box::pin(async move { store.shrink(kind, name, owner, claim, weight).await })
        })
    };
    let shrunk = nodes.query(call).await?;
    Ok(shrunk.into_iter().filter(|done| *done).count() >= nodes.majority)
}
