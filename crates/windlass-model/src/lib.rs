//! A model of the quorum lock with fencing, for [stateright](https://docs.rs/stateright).
//!
//! Three nodes, and clients that each acquire one lock. Anything that can happen may happen at any moment:
//! a message may be delayed for as long as it likes, overtake another or never arrive; a
//! node may let a claim expire whenever it likes (so no clock is trusted); a node may be started
//! anew, with or without its memory; a holder may write long after it lost the lock. A client that gives up or dies is one
//! that does nothing more, and a release is a claim that expires.
//!
//! What the nodes and clients decide is decided by the functions of [`windlass_core::rules::quorum`], which the
//! library itself uses, and which its scripts are proven to agree with.
//!
//! What must hold in every state that can be reached:
//!
//! - **unique**: no two acquisitions have the same fence;
//! - **growing**: an acquisition that began after another was complete has the higher fence;
//! - **gated**: a gate never admits a write from an acquisition that was over before another one began
//!   that has written already.
//!
//! [`Quorum`] has a step for each thing that can happen; [`Folded`] has the same in fewer steps, and comes further.
//! Each search is complete within their bounds; which those are, is in `tests/quorum.rs` and in
//! `docs/redlock.md`. Clients are alike and nodes are alike, so of all states that differ only in who is
//! who, one is searched.
//!
//! The [`Variant`]s leave something out, and the search must find what goes wrong then.

pub mod folded;
pub mod search;
mod state;

use stateright::{Model, Property};
use windlass_core::rules::quorum::{agreed, majority, next_proposal};

pub use folded::Folded;
pub(crate) use state::ORDERS;
pub use state::{Attempt, Client, Node, Phase, Reply, Request, State};

/// So many nodes.
pub const NODES: usize = 3;

/// What is checked: all of it, or all but one part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Variant {
    /// As it is.
    Whole,
    /// Whoever is granted by a majority takes the highest number for its fence, and does not raise the
    /// others to it.
    WithoutRaise,
    /// A node without memory votes again at once.
    WithoutQuarantine,
    /// A node without memory votes again when nobody counts on it any more, but does not hear the
    /// others' counters.
    WithoutCounters,
    /// Clients count their time from what they heard last, and not from before they first asked: an
    /// acquisition goes on that began before a quarantine was over.
    ValidFromReply,
}

/// The model, with its bounds.
#[derive(Clone, Debug)]
pub struct Quorum {
    /// What is left out.
    pub variant: Variant,
    /// How many clients, each with one acquisition.
    pub clients: usize,
    /// How often a client asks for a number, the first time included.
    pub rounds: u8,
    /// How often a node may lose its memory.
    pub losses: u8,
    /// How often a node may be started anew with its memory.
    pub restarts: u8,
    /// How many claims may expire, at any moment each; any number if it says nothing.
    pub expiries: Option<u8>,
    /// Whether holders write. What a gate does follows from the order of fences: a search without it comes
    /// further.
    pub writes: bool,
}

/// What can happen next.
#[derive(Clone, Debug, PartialEq)]
pub enum Action {
    /// A client begins, and proposes this number to all nodes.
    Begin(usize, u8),
    /// A request arrives.
    Deliver(Request),
    /// A reply arrives.
    Hear(Reply),
    /// A client that has heard a majority asks for a higher number.
    Raise(usize),
    /// A node lets its holder's claim expire.
    Expire(usize),
    /// A node is started anew with its memory: what was on its way to it or from it is lost.
    Restart(usize),
    /// A node is started anew without its memory.
    Lose(usize),
    /// So much time has passed since, that nobody counts any more on what the node granted before.
    Quarantined(usize),
    /// A node that was started anew hears another's counter.
    Learn(usize, usize),
    /// Then it votes again.
    Join(usize),
    /// A holder, past or present, writes.
    Write(usize),
}

impl Quorum {
    fn fence_of(&self, numbers: &[u64]) -> Option<u64> {
        let enough = majority(NODES);
        match self.variant {
            Variant::WithoutRaise if numbers.len() >= enough => numbers.iter().copied().max(),
            _ => agreed(numbers, enough),
        }
    }
}

impl Model for Quorum {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        vec![State::new(self.clients)]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        for (i, client) in state.clients.iter().enumerate() {
            match &client.attempt {
                Attempt::NotBegun => {
                    actions.push(Action::Begin(i, 1));
                }
                Attempt::Asking { numbers, round } => {
                    let enough = numbers.len() >= majority(NODES);
                    if enough && *round + 1 < self.rounds {
                        actions.push(Action::Raise(i));
                    }
                }
                Attempt::Held { wrote: false, .. } if self.writes => {
                    actions.push(Action::Write(i));
                }
                Attempt::Held { .. } | Attempt::Over => {}
            }
        }
        actions.extend(state.requests.iter().cloned().map(Action::Deliver));
        actions.extend(state.replies.iter().cloned().map(Action::Hear));
        for (n, node) in state.nodes.iter().enumerate() {
            let may_expire = self.expiries.is_none_or(|most| state.expiries < most);
            if node.holder.is_some() && may_expire {
                actions.push(Action::Expire(n));
            }
            if state.restarts < self.restarts {
                actions.push(Action::Restart(n));
            }
            match node.phase {
                Phase::Votes if state.losses < self.losses => actions.push(Action::Lose(n)),
                Phase::Votes => {}
                Phase::Quarantine => actions.push(Action::Quarantined(n)),
                Phase::Joins { heard } => {
                    let others = (0..NODES).filter(|o| *o != n && heard & (1 << o) == 0);
                    let told = others.filter(|o| state.nodes[*o].phase == Phase::Votes);
                    actions.extend(told.map(|o| Action::Learn(n, o)));
                    if heard.count_ones() as usize >= majority(NODES)
                        || self.variant == Variant::WithoutCounters
                    {
                        actions.push(Action::Join(n));
                    }
                }
            }
        }
    }

    fn next_state(&self, before: &State, action: Action) -> Option<State> {
        let mut state = before.clone();
        match action {
            Action::Begin(i, proposal) => state.begin(i, proposal),
            Action::Deliver(request) => state.deliver(&request),
            Action::Hear(reply) => {
                state.hear(&reply);
                state.complete(reply.client, |numbers| self.fence_of(numbers));
            }
            Action::Raise(i) => {
                let Attempt::Asking { numbers, round } = &state.clients[i].attempt else {
                    return None;
                };
                let numbers: Vec<u64> = numbers.iter().map(|(_, n)| u64::from(*n)).collect();
                let (proposal, round) = (next_proposal(&numbers, 0) as u8, *round + 1);
                state.ask(i, round, proposal);
            }
            Action::Expire(n) => {
                state.nodes[n].holder = None;
                // Counted only where there is a bound: otherwise it would tell states apart that are alike.
                state.expiries += u8::from(self.expiries.is_some());
            }
            Action::Restart(n) => state.restart(n),
            Action::Lose(n) => {
                state.losses += 1;
                state.lose(n);
                if self.variant == Variant::WithoutQuarantine {
                    state.nodes[n].phase = Phase::Joins { heard: 0 };
                }
            }
            Action::Quarantined(n) => {
                state.quarantined(n, self.variant == Variant::ValidFromReply);
            }
            Action::Learn(n, other) => state.learn(n, other),
            Action::Join(n) => state.nodes[n].phase = Phase::Votes,
            Action::Write(i) => state.write(i),
        }
        Some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::<Self>::always("unique", |_, state| state.fences_are_unique()),
            Property::<Self>::always("growing", |_, state| state.fences_grow()),
            Property::<Self>::always("gated", |_, state| !state.stale_write),
            // Without these, the search might prove that nothing bad happens because nothing does.
            Property::<Self>::sometimes("all hold", |_, state| {
                let held = |client: &Client| matches!(client.attempt, Attempt::Held { .. });
                state.clients.iter().all(held)
            }),
            Property::<Self>::sometimes("two hold", |_, state| {
                let held = |client: &&Client| matches!(client.attempt, Attempt::Held { .. });
                state.clients.iter().filter(held).count() >= 2
            }),
            Property::<Self>::sometimes("a gate refuses", |model, state| {
                state.refused || !model.writes
            }),
        ]
    }
}
