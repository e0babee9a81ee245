//! The same model with fewer steps, so that more clients can be searched.
//!
//! [`QuorumModel`](crate::QuorumModel) has one step for each event, and most of those steps
//! commute. Here each acquisition, its fence, and when it began and was complete are the same, with
//! fewer steps between:
//!
//! - **A reply is received when it is acted upon.** Receiving changes only what the client knows,
//!   and the client acts when it is complete or requests again. So all replies lie ready, and the
//!   client acts upon any subset of them, as if it had received just those. Replies that it never
//!   acts upon are lost or late.
//! - **A message that would be refused is not delivered.** Whatever can happen after a refusal can
//!   also happen if the message is late for ever. A message that would always be refused is
//!   dropped.
//! - **A claim expires when another client requests it.** An expired claim differs from a held one
//!   in two ways only: another client can be granted, and the owner gets no more numbers there. The
//!   second is as if the owner's message were late. So no request is refused because of a holder:
//!   the holder's claim has expired just then, and any number of claims may. Releases, and holders
//!   that never let go, are covered by this as well.
//! - **Writes are not steps.** A write changes only the gate, and may come at any time after its
//!   acquisition was complete. So every order of writes that can happen among other steps can also
//!   happen after all of them. Let `i` be complete before `j` began. A stale write of `i` is one
//!   that is admitted after one of `j` was. If there is one in any order of writes, there is one in
//!   "`j`, then `i`": with fewer writes before it, a gate has seen no higher fence and rejects no
//!   more. So when `j` is complete, the [gate's rule](windlass_core::rules::gate) decides on these
//!   two writes, with the highest fence of those that were complete when `j` began: it is admitted
//!   if any of them is.
//! - **A restart with memory is not a step.** Messages to and from the node are lost, which is as
//!   if they were late. A node has not answered what it did not write to its disk.
//! - **ReducedState that no step reads is dropped**: a claim of a client that requests no more numbers, a
//!   number of an earlier round, a proposal that is not above the node's counter, and what was
//!   complete when an acquisition began that is complete as well.
//!
//! `tests/reduction.rs` checks for two clients that this loses and adds nothing: both models reach
//! exactly the same sets of fences, in the same order of time, for the protocol and for each
//! variant. And the variants break here as there.

mod canonical;
mod state;

use stateright::{Model, Property};
use windlass_core::rules::quorum::{agreed, majority, next_proposal};

use crate::{NODES, Variant};
pub use state::{
    CLIENTS, ROUNDS, ReducedAttempt, ReducedClient, ReducedNode, ReducedState, RequestState,
};

/// The reduced model, with its bounds. Any number of claims may expire.
#[derive(Clone, Debug)]
pub struct ReducedModel {
    /// The protocol to check.
    pub variant: Variant,
    /// The number of clients, each with one acquisition: [`CLIENTS`] at most.
    pub clients: usize,
    /// How often a client requests a number, including the first time: [`ROUNDS`] at most.
    pub rounds: usize,
    /// How often a node may lose its memory.
    pub losses: u8,
}

/// An event.
#[derive(Clone, Debug, PartialEq)]
pub enum ReducedAction {
    /// A client starts, and sends requests to all nodes.
    Begin(usize),
    /// A node grants this client's request of this round, and issues a number.
    Grant(usize, usize, usize),
    /// A client that has replies of a majority requests a higher number.
    Raise(usize, u8),
    /// A client has enough replies: this is its fence.
    Complete(usize, u8),
    /// A node restarts without its memory.
    Lose(usize),
    /// The longest TTL has passed since: no client relies on what the node granted before.
    Quarantined(usize),
    /// The node reads the counter of another one.
    Learn(usize, usize),
    /// The node votes again.
    Join(usize),
}

impl ReducedModel {
    /// What a client can do with any subset of its replies.
    fn acts(
        &self,
        i: usize,
        client: &ReducedClient,
        round: usize,
        actions: &mut Vec<ReducedAction>,
    ) {
        let enough = majority(NODES);
        for part in 0u8..1 << NODES {
            let mut numbers = Vec::with_capacity(NODES);
            for (node, request) in client.requests[round].iter().enumerate() {
                match request {
                    RequestState::Granted(number) if part & (1 << node) != 0 => {
                        numbers.push(u64::from(*number));
                    }
                    _ => {}
                }
            }
            if numbers.len() != part.count_ones() as usize || numbers.len() < enough {
                continue;
            }
            let fence = match self.variant {
                Variant::WithoutRaise => numbers.iter().copied().max(),
                _ => agreed(&numbers, enough),
            };
            let action = match fence {
                Some(fence) => ReducedAction::Complete(i, fence as u8),
                None if round + 1 < self.rounds => {
                    ReducedAction::Raise(i, next_proposal(&numbers, 0) as u8)
                }
                None => continue,
            };
            if !actions.contains(&action) {
                actions.push(action);
            }
        }
    }
}

impl Model for ReducedModel {
    type State = ReducedState;
    type Action = ReducedAction;

    fn init_states(&self) -> Vec<ReducedState> {
        vec![ReducedState::new(self.clients)]
    }

    fn actions(&self, state: &ReducedState, actions: &mut Vec<ReducedAction>) {
        for (i, client) in state.clients.iter().enumerate() {
            match client.attempt {
                ReducedAttempt::NotBegun => actions.push(ReducedAction::Begin(i)),
                ReducedAttempt::Requesting { round } => self.acts(i, client, round, actions),
                ReducedAttempt::Absent | ReducedAttempt::Held { .. } | ReducedAttempt::Over => {}
            }
            for round in 0..self.rounds {
                let granted = (0..NODES).filter(|node| state.would_grant(i, round, *node));
                actions.extend(granted.map(|node| ReducedAction::Grant(i, round, node)));
            }
        }
        for (n, node) in state.nodes.iter().enumerate() {
            match node {
                ReducedNode::Votes { .. } if state.losses < self.losses => {
                    actions.push(ReducedAction::Lose(n))
                }
                ReducedNode::Votes { .. } => {}
                ReducedNode::Quarantine => actions.push(ReducedAction::Quarantined(n)),
                ReducedNode::Joins { learned, .. } => {
                    let others = (0..NODES).filter(|o| *o != n && learned & (1 << o) == 0);
                    let voting =
                        others.filter(|o| matches!(state.nodes[*o], ReducedNode::Votes { .. }));
                    actions.extend(voting.map(|o| ReducedAction::Learn(n, o)));
                    if learned.count_ones() as usize >= majority(NODES)
                        || self.variant == Variant::WithoutCounters
                    {
                        actions.push(ReducedAction::Join(n));
                    }
                }
            }
        }
    }

    fn next_state(&self, before: &ReducedState, action: ReducedAction) -> Option<ReducedState> {
        let mut state = before.clone();
        match action {
            ReducedAction::Begin(i) => state.begin(i),
            ReducedAction::Grant(i, round, node) => state.grant(i, round, node),
            ReducedAction::Raise(i, proposal) => state.raise(i, proposal),
            ReducedAction::Complete(i, fence) => state.complete(i, fence),
            ReducedAction::Lose(n) => {
                state.lose(n);
                if self.variant == Variant::WithoutQuarantine {
                    state.nodes[n] = ReducedNode::Joins {
                        counter: 0,
                        learned: 0,
                    };
                }
            }
            ReducedAction::Quarantined(n) => {
                state.quarantined(n, self.variant == Variant::ValidFromReply);
            }
            ReducedAction::Learn(n, other) => state.learn(n, other),
            ReducedAction::Join(n) => state.join(n),
        }
        state.drop_unread(self.rounds);
        Some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        fn all_hold(state: &ReducedState) -> bool {
            let held = |client: &ReducedClient| {
                matches!(
                    client.attempt,
                    ReducedAttempt::Held { .. } | ReducedAttempt::Absent
                )
            };
            state.clients.iter().all(held)
        }
        vec![
            Property::<Self>::always("unique", |_, state| !state.shared),
            Property::<Self>::always("growing", |_, state| !state.went_back),
            Property::<Self>::always("gated", |_, state| !state.stale_write),
            // Without these, the properties might hold because nothing ever happens.
            Property::<Self>::sometimes("all hold", |_, state| all_hold(state)),
            Property::<Self>::sometimes("all hold after a node forgot", |model, state| {
                let votes = |node: &ReducedNode| matches!(node, ReducedNode::Votes { .. });
                let forgot = state.losses > 0 && state.nodes.iter().all(votes);
                all_hold(state) && (forgot || model.losses == 0)
            }),
        ]
    }
}
