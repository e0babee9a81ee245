//! The heartbeat of a waiting claim: keeps it queued, and finds out whether it holds.
//!
//! A claim waits in the queues of several nodes, and may be granted on some of them first. Once a
//! majority has granted it, it holds, and the other claims go on waiting. But several claims may
//! each be granted on a minority: none holds, and none would let go. So a claim that finds the
//! nodes split **yields** the nodes that it has, unless it precedes all other owners there (see
//! [`Confirmation::should_yield`]): it goes to the end of the queue on these nodes. All claims see
//! the same owners ahead, so all but one yield.

use std::ops::ControlFlow;
use std::sync::Arc;

use super::calls::{NodeCalls, StopFlag};
use super::claims::ClaimState;
use super::confirm::{Confirmation, confirm};
use super::nodes::NodeSet;
use windlass_core::Fence;
use windlass_core::error::Result;
use windlass_core::rules::quorum::{agreed, next_proposal};
use windlass_core::store::{AcquireRequest, Renewal, Renewed};

/// How often one heartbeat raises the fence; the next one goes on.
const MAX_RAISES: u32 = 4;

pub(super) struct WaiterHeartbeat {
    pub(super) state: Arc<ClaimState>,
    pub(super) request: AcquireRequest,
    /// Of the [waiter](super::waiters).
    pub(super) generation: u64,
    pub(super) claim: Renewal,
}

impl WaiterHeartbeat {
    pub(super) async fn run(self) -> Result<Renewed> {
        let WaiterHeartbeat { state, claim, .. } = &self;
        let (majority, id) = (state.nodes.majority, claim.wake.claim);
        let (confirmation, fence) = self.confirm_and_agree().await;
        if let Some(fence) = fence {
            return Ok(self.comes_to_hold(fence));
        }
        if confirmation.held.len() >= majority {
            state.wake_ups.recheck_soon(id);
        }
        let known = confirmation.held.len() + confirmation.holders_ahead.len();
        if known + confirmation.gone.len() < majority {
            return Err(confirmation.failures.error(&state.nodes, known));
        }
        if known < majority && confirmation.gone.len() >= majority {
            state.waiters.remove_generation(id, self.generation);
            return Ok(Renewed::Gone);
        }
        let is_split = confirmation.is_split(majority);
        // While another owner holds a majority, nodes that were never called are left to that
        // owner.
        let everywhere = is_split || confirmation.held.len() >= majority;
        let gone = confirmation.gone.iter().copied().collect();
        self.enqueue_again(gone, everywhere);
        let held_on = confirmation.held.iter().map(|(node, _)| *node).collect();
        state.waiters.set_held_on(id, held_on);
        if confirmation.should_yield(claim.owner.as_str(), majority) {
            self.yield_nodes(&confirmation).await;
        }
        // Until an owner has a majority, every claim with a grant rechecks.
        if is_split && !confirmation.held.is_empty() {
            state.wake_ups.recheck_soon(id);
        }
        Ok(Renewed::Waiting {
            recheck_after: confirmation.recheck_after.or(Some(claim.ttl / 3)),
        })
    }

    /// Confirms the claim; if a majority holds it, also agrees on a fence.
    async fn confirm_and_agree(&self) -> (Confirmation, Option<Fence>) {
        let (nodes, fences) = (&self.state.nodes, &self.state.fences);
        let mut confirmation = confirm(nodes, &self.claim, fences.propose(0)).await;
        for raises in 0..=MAX_RAISES {
            let numbers = confirmation.numbers();
            numbers.iter().for_each(|number| fences.observe(*number));
            if numbers.len() < nodes.majority {
                break;
            }
            if let Some(fence) = agreed(&numbers, nodes.majority) {
                return (confirmation, Some(Fence::new(fence)));
            }
            if raises < MAX_RAISES {
                let proposal = fences.propose(next_proposal(&numbers, raises));
                confirmation = confirm(nodes, &self.claim, proposal).await;
            }
        }
        (confirmation, None)
    }

    /// The claim holds: it is requested from the remaining nodes too, so that the loss of some does
    /// not end it.
    fn comes_to_hold(&self, fence: Fence) -> Renewed {
        let (waiters, claim) = (&self.state.waiters, self.claim.wake.claim);
        // The runtime may have given up on this heartbeat; the next one then has to know.
        waiters.add_fence(claim, self.generation, fence);
        waiters.send_while_waiting(claim, |sent_to| {
            self.send_request(self.state.nodes.all().without(*sent_to), sent_to);
        });
        Renewed::Held { fence }
    }

    /// Requests the claim again from nodes that do not know it, unless it was released meanwhile;
    /// from those that were never called only if it is to be `everywhere`.
    fn enqueue_again(&self, gone: NodeSet, everywhere: bool) {
        let claim = self.claim.wake.claim;
        self.state.waiters.send_while_waiting(claim, |sent_to| {
            let nodes = gone.iter();
            let nodes = nodes.filter(|node| everywhere || sent_to.contains(*node));
            self.send_request(nodes.collect(), sent_to);
        });
    }

    /// Sends the request to some nodes without waiting for their replies.
    fn send_request(&self, to: NodeSet, sent_to: &mut NodeSet) {
        let nodes = &self.state.nodes;
        let timeout = nodes.timeout(self.request.ttl);
        for index in to.iter() {
            let node = nodes.node(index);
            // A node without a vote is left to the next heartbeat.
            if node.verified_connection().is_some() {
                sent_to.insert(index);
                let proposal = self.state.fences.propose(0);
                let reply = node.client.acquire(&self.request, proposal);
                NodeCalls::new([reply]).finish(nodes, &StopFlag::default(), timeout);
            }
        }
    }

    /// Goes to the end of the queue on every node that granted the claim.
    async fn yield_nodes(&self, confirmation: &Confirmation) {
        let nodes = &self.state.nodes;
        let proposal = self.state.fences.propose(0);
        let call = |&(node, number): &(usize, u64)| {
            let client = &nodes.node(node).client;
            client.requeue(&self.claim, Fence::new(number), proposal)
        };
        let mut calls = NodeCalls::new(confirmation.held.iter().map(call));
        let all = calls.receive(|_, _| ControlFlow::<()>::Continue(()));
        let timeout = nodes.timeout(self.claim.ttl);
        nodes.clock.within(timeout, all).await;
    }
}
