//! Model checking of quorum locks and their fences, with [stateright](https://docs.rs/stateright).
//!
//! Three nodes, and clients that each acquire one lock. Every event may happen at any time: a
//! message may be delayed indefinitely, overtake another or be lost; a node may let any claim
//! expire (so no clock is trusted); a node may restart with or without its memory; a holder may
//! write long after it lost the lock. A client that gives up or crashes is one that does nothing
//! more, and a release is a claim that expires.
//!
//! Nodes and clients decide with the functions of [`windlass_core::rules::quorum`], which the
//! library uses and with which the equivalence tests compare its scripts.
//!
//! In every reachable state:
//!
//! - **unique**: no two acquisitions have the same fence;
//! - **growing**: an acquisition that began after another was complete has the higher fence;
//! - **gated**: a gate never admits a write of an acquisition that was complete before another one
//!   began that has written already.
//!
//! [`QuorumModel`] has one step for each event; [`ReducedModel`] has fewer steps for the same
//! outcomes, and is searched further. Each search is complete within its bounds, which are in
//! `tests/quorum.rs` and `docs/redlock.md`. Clients are interchangeable and so are nodes, so of all
//! states that differ only by such a permutation, one is searched.
//!
//! Each [`Variant`] leaves out a part of the protocol, and the search must find what breaks without
//! it.

pub mod reduced;
pub mod search;
mod state;

use stateright::{Model, Property};
use windlass_core::rules::quorum::{agreed, majority, next_proposal};

pub use reduced::ReducedModel;
pub(crate) use state::ORDERS;
pub use state::{
    ModelAttempt, ModelClient, ModelNode, ModelPhase, ModelReply, ModelRequest, ModelState,
};

/// The number of nodes.
pub const NODES: usize = 3;

/// The protocol, or the protocol without one of its parts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Variant {
    /// The whole protocol.
    Whole,
    /// A client that holds a majority takes the highest number as its fence, and does not raise the
    /// other nodes to it.
    WithoutRaise,
    /// A node that lost its memory votes again at once.
    WithoutQuarantine,
    /// A node that lost its memory votes again after the quarantine, without the counters of the
    /// others.
    WithoutCounters,
    /// Validity runs from the last reply, and not from before the first request: an acquisition
    /// continues that began before a quarantine was over.
    ValidFromReply,
}

/// The model, with its bounds.
#[derive(Clone, Debug)]
pub struct QuorumModel {
    /// The protocol to check.
    pub variant: Variant,
    /// The number of clients, each with one acquisition.
    pub clients: usize,
    /// How often a client requests a number, including the first time.
    pub rounds: u8,
    /// How often a node may lose its memory.
    pub losses: u8,
    /// How often a node may restart with its memory.
    pub restarts: u8,
    /// How many claims may expire, each at any time; any number if `None`.
    pub expiries: Option<u8>,
    /// Whether holders write. The decisions of a gate follow from the order of fences, so a search
    /// without writes can go further.
    pub writes: bool,
}

/// An event.
#[derive(Clone, Debug, PartialEq)]
pub enum ModelAction {
    /// A client starts, and proposes this number to all nodes.
    Begin(usize, u8),
    /// A request arrives.
    Deliver(ModelRequest),
    /// A reply arrives.
    Receive(ModelReply),
    /// A client that has replies of a majority requests a higher number.
    Raise(usize),
    /// A node lets its holder's claim expire.
    Expire(usize),
    /// A node restarts with its memory: messages to and from it are lost.
    Restart(usize),
    /// A node restarts without its memory.
    Lose(usize),
    /// The longest TTL has passed since: no client relies on what the node granted before.
    Quarantined(usize),
    /// The node reads the counter of another one.
    Learn(usize, usize),
    /// The node votes again.
    Join(usize),
    /// A holder, past or present, writes.
    Write(usize),
}

impl QuorumModel {
    fn fence_of(&self, numbers: &[u64]) -> Option<u64> {
        let enough = majority(NODES);
        match self.variant {
            Variant::WithoutRaise if numbers.len() >= enough => numbers.iter().copied().max(),
            _ => agreed(numbers, enough),
        }
    }
}

impl Model for QuorumModel {
    type State = ModelState;
    type Action = ModelAction;

    fn init_states(&self) -> Vec<ModelState> {
        vec![ModelState::new(self.clients)]
    }

    fn actions(&self, state: &ModelState, actions: &mut Vec<ModelAction>) {
        for (i, client) in state.clients.iter().enumerate() {
            match &client.attempt {
                ModelAttempt::NotBegun => {
                    actions.push(ModelAction::Begin(i, 1));
                }
                ModelAttempt::Requesting { numbers, round } => {
                    let enough = numbers.len() >= majority(NODES);
                    if enough && *round + 1 < self.rounds {
                        actions.push(ModelAction::Raise(i));
                    }
                }
                ModelAttempt::Held { wrote: false, .. } if self.writes => {
                    actions.push(ModelAction::Write(i));
                }
                ModelAttempt::Held { .. } | ModelAttempt::Over => {}
            }
        }
        actions.extend(state.requests.iter().cloned().map(ModelAction::Deliver));
        actions.extend(state.replies.iter().cloned().map(ModelAction::Receive));
        for (n, node) in state.nodes.iter().enumerate() {
            let may_expire = self.expiries.is_none_or(|most| state.expiries < most);
            if node.holder.is_some() && may_expire {
                actions.push(ModelAction::Expire(n));
            }
            if state.restarts < self.restarts {
                actions.push(ModelAction::Restart(n));
            }
            match node.phase {
                ModelPhase::Votes if state.losses < self.losses => {
                    actions.push(ModelAction::Lose(n))
                }
                ModelPhase::Votes => {}
                ModelPhase::Quarantine => actions.push(ModelAction::Quarantined(n)),
                ModelPhase::Joins { learned } => {
                    let others = (0..NODES).filter(|o| *o != n && learned & (1 << o) == 0);
                    let voting = others.filter(|o| state.nodes[*o].phase == ModelPhase::Votes);
                    actions.extend(voting.map(|o| ModelAction::Learn(n, o)));
                    if learned.count_ones() as usize >= majority(NODES)
                        || self.variant == Variant::WithoutCounters
                    {
                        actions.push(ModelAction::Join(n));
                    }
                }
            }
        }
    }

    fn next_state(&self, before: &ModelState, action: ModelAction) -> Option<ModelState> {
        let mut state = before.clone();
        match action {
            ModelAction::Begin(i, proposal) => state.begin(i, proposal),
            ModelAction::Deliver(request) => state.deliver(&request),
            ModelAction::Receive(reply) => {
                state.receive(&reply);
                state.complete(reply.client, |numbers| self.fence_of(numbers));
            }
            ModelAction::Raise(i) => {
                let ModelAttempt::Requesting { numbers, round } = &state.clients[i].attempt else {
                    return None;
                };
                let numbers: Vec<u64> = numbers.iter().map(|(_, n)| u64::from(*n)).collect();
                let (proposal, round) = (next_proposal(&numbers, 0) as u8, *round + 1);
                state.request(i, round, proposal);
            }
            ModelAction::Expire(n) => {
                state.nodes[n].holder = None;
                // Counted only if there is a bound: otherwise it would distinguish equivalent
                // states.
                state.expiries += u8::from(self.expiries.is_some());
            }
            ModelAction::Restart(n) => state.restart(n),
            ModelAction::Lose(n) => {
                state.losses += 1;
                state.lose(n);
                if self.variant == Variant::WithoutQuarantine {
                    state.nodes[n].phase = ModelPhase::Joins { learned: 0 };
                }
            }
            ModelAction::Quarantined(n) => {
                state.quarantined(n, self.variant == Variant::ValidFromReply);
            }
            ModelAction::Learn(n, other) => state.learn(n, other),
            ModelAction::Join(n) => state.nodes[n].phase = ModelPhase::Votes,
            ModelAction::Write(i) => state.write(i),
        }
        Some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::<Self>::always("unique", |_, state| state.fences_are_unique()),
            Property::<Self>::always("growing", |_, state| state.fences_grow()),
            Property::<Self>::always("gated", |_, state| !state.stale_write),
            // Without these, the properties might hold because nothing ever happens.
            Property::<Self>::sometimes("all hold", |_, state| {
                let held =
                    |client: &ModelClient| matches!(client.attempt, ModelAttempt::Held { .. });
                state.clients.iter().all(held)
            }),
            Property::<Self>::sometimes("two hold", |_, state| {
                let held =
                    |client: &&ModelClient| matches!(client.attempt, ModelAttempt::Held { .. });
                state.clients.iter().filter(held).count() >= 2
            }),
            Property::<Self>::sometimes("a gate refuses", |model, state| {
                state.refused || !model.writes
            }),
        ]
    }
}
