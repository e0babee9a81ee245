//! The same model, folded: what makes no difference is left out, so that more clients can be searched.
//!
//! [`Quorum`](crate::Quorum) has a step for each thing that can happen. Most of those steps may be put in
//! any order without anybody noticing. Here each acquisition, its fence, and when it began and was
//! complete are the same, with fewer steps between:
//!
//! - **A reply is heard when it is acted upon.** Hearing changes nothing but what the client knows, and it
//!   acts when it is complete or draws again. So all that nodes gave lies there, and the client acts upon any part of it, as
//!   if it had heard that part by then. What it never acts upon is lost, or late.
//! - **A message that would be refused is not delivered.** Whatever can happen after a node refused can also happen if the message
//!   is late for ever. A message that would be refused for ever is dropped.
//! - **A claim expires when somebody else asks.** A claim that has expired at a node differs from one that has not in
//!   two ways only: another is granted, and the owner draws no more there. The second is as if the owner's
//!   message were late. So nobody is ever turned away for a claim that is held: the claim has expired just then, and any number of
//!   them may. A release does no more than that, and neither does a holder that lives on: so those
//!   are in here, too.
//! - **Writes are not steps.** A write changes only the gate, and may come at any time after its acquisition
//!   was complete: so every order of writes that can happen among other steps can also happen after all of
//!   them. Let `i` be complete before `j` began. A stale write of `i` is one that is admitted after one of `j` was. If there is one in any
//!   order of writes, then also in "`j`, then `i`": with fewer writes before it, a gate has seen no higher fence, and
//!   refuses no more. So when `j` is complete, the [gate's rule](windlass_core::rules::gate) is asked for
//!   these two writes, with the highest fence of those who were complete when `j` began: it is admitted if any of them is.
//! - **A node that is started anew with its memory is not a step.** What was on its way to it or from it is
//!   lost, which is as if it were late. Whatever it did not write to its disk it has not answered.
//! - **What nobody looks at any more is forgotten**: a claim of somebody who draws no more, a number of an earlier
//!   round, a proposal that is not above the node's counter, what was complete when an acquisition began that is complete as well.
//!
//! That nothing is lost or added by this, `tests/folding.rs` checks for two clients: both models reach exactly the same
//! sets of fences, in the same order of time, whole or broken. And the broken variants break here as there.

mod canonical;
mod state;

use stateright::{Model, Property};
use windlass_core::rules::quorum::{agreed, majority, next_proposal};

use crate::{NODES, Variant};
pub use state::{Attempt, CLIENTS, Client, Node, ROUNDS, State, Ticket};

/// The folded model, with its bounds. Any number of claims may expire.
#[derive(Clone, Debug)]
pub struct Folded {
    /// What is left out.
    pub variant: Variant,
    /// How many clients, each with one acquisition: [`CLIENTS`] at most.
    pub clients: usize,
    /// How often a client asks for a number, the first time included: [`ROUNDS`] at most.
    pub rounds: usize,
    /// How often a node may lose its memory.
    pub losses: u8,
}

/// What can happen next.
#[derive(Clone, Debug, PartialEq)]
pub enum Action {
    /// A client begins, and asks all nodes.
    Begin(usize),
    /// A node grants what this client asked it for in this round, and gives a number.
    Grant(usize, usize, usize),
    /// A client that has heard a majority asks for a higher number.
    Raise(usize, u8),
    /// A client has heard enough: this is its fence.
    Complete(usize, u8),
    /// A node is started anew without its memory.
    Lose(usize),
    /// So much time has passed since, that nobody counts any more on what the node granted before.
    Quarantined(usize),
    /// A node that was started anew hears another's counter.
    Learn(usize, usize),
    /// Then it votes again.
    Join(usize),
}

impl Folded {
    /// What a client can do with any part of what it was given.
    fn acts(&self, i: usize, client: &Client, round: usize, actions: &mut Vec<Action>) {
        let enough = majority(NODES);
        for part in 0u8..1 << NODES {
            let mut numbers = Vec::with_capacity(NODES);
            for (node, ticket) in client.tickets[round].iter().enumerate() {
                match ticket {
                    Ticket::Given(number) if part & (1 << node) != 0 => {
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
                Some(fence) => Action::Complete(i, fence as u8),
                None if round + 1 < self.rounds => {
                    Action::Raise(i, next_proposal(&numbers, 0) as u8)
                }
                None => continue,
            };
            if !actions.contains(&action) {
                actions.push(action);
            }
        }
    }
}

impl Model for Folded {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        vec![State::new(self.clients)]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        for (i, client) in state.clients.iter().enumerate() {
            match client.attempt {
                Attempt::NotBegun => actions.push(Action::Begin(i)),
                Attempt::Asking { round } => self.acts(i, client, round, actions),
                Attempt::Absent | Attempt::Held { .. } | Attempt::Over => {}
            }
            for round in 0..self.rounds {
                let granted = (0..NODES).filter(|node| state.would_grant(i, round, *node));
                actions.extend(granted.map(|node| Action::Grant(i, round, node)));
            }
        }
        for (n, node) in state.nodes.iter().enumerate() {
            match node {
                Node::Votes { .. } if state.losses < self.losses => actions.push(Action::Lose(n)),
                Node::Votes { .. } => {}
                Node::Quarantine => actions.push(Action::Quarantined(n)),
                Node::Joins { heard, .. } => {
                    let others = (0..NODES).filter(|o| *o != n && heard & (1 << o) == 0);
                    let told = others.filter(|o| matches!(state.nodes[*o], Node::Votes { .. }));
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
            Action::Begin(i) => state.begin(i),
            Action::Grant(i, round, node) => state.grant(i, round, node),
            Action::Raise(i, proposal) => state.raise(i, proposal),
            Action::Complete(i, fence) => state.complete(i, fence),
            Action::Lose(n) => {
                state.lose(n);
                if self.variant == Variant::WithoutQuarantine {
                    state.nodes[n] = Node::Joins {
                        counter: 0,
                        heard: 0,
                    };
                }
            }
            Action::Quarantined(n) => {
                state.quarantined(n, self.variant == Variant::ValidFromReply);
            }
            Action::Learn(n, other) => state.learn(n, other),
            Action::Join(n) => state.join(n),
        }
        state.forget(self.rounds);
        Some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        fn all_hold(state: &State) -> bool {
            let held =
                |client: &Client| matches!(client.attempt, Attempt::Held { .. } | Attempt::Absent);
            state.clients.iter().all(held)
        }
        vec![
            Property::<Self>::always("unique", |_, state| !state.shared),
            Property::<Self>::always("growing", |_, state| !state.went_back),
            Property::<Self>::always("gated", |_, state| !state.stale_write),
            // Without these, the search might prove that nothing bad happens because nothing does.
            Property::<Self>::sometimes("all hold", |_, state| all_hold(state)),
            Property::<Self>::sometimes("all hold after a node forgot", |model, state| {
                let votes = |node: &Node| matches!(node, Node::Votes { .. });
                let forgot = state.losses > 0 && state.nodes.iter().all(votes);
                all_hold(state) && (forgot || model.losses == 0)
            }),
        ]
    }
}
