//! Confirming a claim: every node renews it and, where it is held, gives it a new number.

use std::collections::HashMap;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Duration;

use super::acquire_round::shorter;
use super::calls::{NodeCalls, StopFlag};
use super::errors::NodeFailures;
use super::nodes::{NodeSet, QuorumNode, QuorumNodes};
use windlass_core::Fence;
use windlass_core::error::Result;
use windlass_core::store::Renewal;
use windlass_redis::Confirmed;

/// The nodes' replies to one confirmation.
#[derive(Default)]
pub(super) struct Confirmation {
    replied: NodeSet,
    /// The nodes where the claim is held, and the numbers that they gave.
    pub(super) held: Vec<(usize, u64)>,
    /// The owner that holds each node where the claim waits.
    pub(super) holders_ahead: Vec<String>,
    pub(super) recheck_after: Option<Duration>,
    /// The nodes that do not know the claim.
    pub(super) gone: Vec<usize>,
    pub(super) failures: NodeFailures,
}

/// Has all nodes confirm a claim, with a proposal for the number.
pub(super) async fn confirm(
    nodes: &Arc<QuorumNodes>,
    claim: &Renewal,
    proposal: Fence,
) -> Confirmation {
    let timeout = nodes.timeout(claim.ttl);
    let stop = StopFlag::default();
    let call = |node: &Arc<QuorumNode>| {
        let claim = claim.clone();
        node.call(nodes, &stop, move |client| client.confirm(&claim, proposal))
    };
    let mut calls = NodeCalls::new(nodes.iter().map(call));
    let mut confirmation = Confirmation::default();
    let late_after = nodes.selection.latency.late_after(timeout);
    for wait in [late_after, timeout - late_after] {
        let decided = calls.receive(|node, reply| {
            confirmation.take(node, reply);
            match confirmation.is_decided(nodes) {
                true => ControlFlow::Break(()),
                false => ControlFlow::Continue(()),
            }
        });
        if nodes.clock.within(wait, decided).await.is_some() {
            break;
        }
        // So that the next operation does not wait for them as well.
        let late = calls.unanswered();
        late.for_each(|node| nodes.node(node).mark_suspect());
        if confirmation.is_decided(nodes) {
            break;
        }
    }
    confirmation.failures.add_unanswered(calls.unanswered());
    calls.finish(nodes, &stop, timeout);
    confirmation
}

impl Confirmation {
    pub(super) fn numbers(&self) -> Vec<u64> {
        self.held.iter().map(|(_, number)| *number).collect()
    }

    fn take(&mut self, node: usize, reply: Result<Confirmed>) {
        self.replied.insert(node);
        match reply {
            Ok(Confirmed::Held(number)) => self.held.push((node, number.get())),
            Ok(Confirmed::Waiting {
                recheck_after,
                holder,
            }) => {
                self.holders_ahead.push(holder);
                self.recheck_after = shorter(self.recheck_after, recheck_after);
            }
            Ok(Confirmed::Gone) => self.gone.push(node),
            Err(e) => self.failures.add(node, e),
        }
    }

    /// Whether further replies make no difference.
    fn is_decided(&self, nodes: &QuorumNodes) -> bool {
        let majority = nodes.majority;
        let held = self.held.len() >= majority;
        // Only a holder of a majority decides: a split is certain only after all replies.
        let held_by_other = self.holders_ahead.len() >= majority && !self.is_split(majority);
        // The nodes that do not know the claim were not sent it yet and complete the majority,
        // while the suspect ones may never reply.
        let can_be_completed = self.held.len() + self.gone.len() >= majority;
        let missing = nodes.all().without(self.replied);
        let all_suspect = || missing.iter().all(|node| nodes.node(node).is_suspect());
        held || held_by_other || missing.len() == 0 || can_be_completed && all_suspect()
    }

    /// On how many nodes each other owner is ahead of the claim.
    fn nodes_by_holder(&self) -> HashMap<&str, usize> {
        let mut nodes = HashMap::new();
        for owner in &self.holders_ahead {
            *nodes.entry(owner.as_str()).or_default() += 1;
        }
        nodes
    }

    /// Whether no owner holds a majority.
    pub(super) fn is_split(&self, majority: usize) -> bool {
        self.held.len() < majority && self.nodes_by_holder().values().all(|held| *held < majority)
    }

    /// Whether `owner` should yield the nodes that it holds: another owner has a majority, and
    /// needs the other nodes in case some of its own fail; or no owner has a majority, and another
    /// one precedes `owner` (it holds more nodes, or as many and sorts first).
    pub(super) fn should_yield(&self, owner: &str, majority: usize) -> bool {
        let own = self.held.len();
        let others = self.nodes_by_holder();
        let precedes =
            |(other, held): (&&str, &usize)| *held > own || *held == own && **other < *owner;
        let has_majority = others.values().any(|held| *held >= majority);
        own > 0 && (has_majority || self.is_split(majority) && others.iter().any(precedes))
    }
}
