//! States that differ in nothing that anybody will ever notice are one.

use stateright::Representative;

use super::state::{Attempt, Client, Node, State, Ticket};
use crate::{NODES, ORDERS};

impl State {
    /// Forgets what nobody looks at any more.
    pub(super) fn forget(&mut self, rounds: usize) {
        let counters = self.nodes.map(|node| match node {
            Node::Votes { counter } | Node::Joins { counter, .. } => counter,
            Node::Quarantine => 0,
        });
        for client in &mut self.clients {
            client.forget(rounds, counters);
        }
    }
}

impl Client {
    fn forget(&mut self, rounds: usize, counters: [u8; NODES]) {
        let round = match self.attempt {
            Attempt::Asking { round } => Some(round),
            _ => {
                self.after = 0;
                self.forgotten = 0;
                None
            }
        };
        for node in 0..NODES {
            let bit = 1 << node;
            let may_hold =
                self.holds & bit != 0 || matches!(self.tickets[0][node], Ticket::Asked(_));
            let mut draws = round.is_some_and(|round| round + 1 < rounds);
            for (round, tickets) in self.tickets.iter_mut().enumerate() {
                if let Ticket::Asked(proposal) = &mut tickets[node] {
                    // The counter only rises; and if it is lost, so is this.
                    if *proposal <= counters[node] {
                        *proposal = 0;
                    }
                    if round > 0 && may_hold {
                        draws = true;
                    } else if round > 0 {
                        tickets[node] = Ticket::Gone;
                    }
                }
            }
            // What it holds only matters for drawing again.
            if !draws {
                self.holds &= !bit;
            }
        }
    }

    fn with_nodes(&self, names: &[usize; NODES]) -> Client {
        let mut client = *self;
        client.forgotten = bits(self.forgotten, names);
        client.holds = bits(self.holds, names);
        for (renamed, tickets) in client.tickets.iter_mut().zip(&self.tickets) {
            for (old, ticket) in tickets.iter().enumerate() {
                renamed[names[old]] = *ticket;
            }
        }
        client
    }
}

fn bits(old: u8, names: &[usize; NODES]) -> u8 {
    let set = (0..NODES).filter(|i| old & (1 << i) != 0);
    set.fold(0, |new, i| new | 1 << names[i])
}

/// Clients are alike, and nodes are alike: which of them does something makes no difference. All orders of
/// the nodes are tried; nothing but a client itself names a client, so sorting puts those into one order. The least of all
/// is therefore the same, whatever the names were.
impl Representative for State {
    fn representative(&self) -> State {
        let renamed = ORDERS.iter().map(|names| self.with_nodes(names));
        renamed.min().expect("there are orders")
    }
}

impl State {
    fn with_nodes(&self, names: &[usize; NODES]) -> State {
        let mut state = self.clone();
        for (old, node) in self.nodes.iter().enumerate() {
            state.nodes[names[old]] = match *node {
                Node::Joins { counter, heard } => Node::Joins {
                    counter,
                    heard: bits(heard, names),
                },
                node => node,
            };
        }
        state.clients = self.clients.map(|client| client.with_nodes(names));
        state.clients.sort_unstable();
        state
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use stateright::Model;

    use super::*;
    use crate::{Folded, Variant};

    /// If a state had two forms, the search would only be longer; if two states had one, it would not be
    /// complete.
    #[test]
    fn names_make_no_difference_and_all_else_does() {
        let model = Folded {
            variant: Variant::Whole,
            clients: 3,
            rounds: 2,
            losses: 1,
        };
        let after = |state: &State| {
            let mut actions = Vec::new();
            model.actions(state, &mut actions);
            let next = actions
                .into_iter()
                .filter_map(|action| model.next_state(state, action));
            let next: BTreeSet<State> = next.map(|next| next.representative()).collect();
            next
        };
        // Walks at random, each the same every time.
        let (mut chance, mut raised, mut forgot) = (1u64, 0, 0);
        let mut state = model.init_states().remove(0);
        for step in 0..2000 {
            let raises = |client: &Client| client.attempt == Attempt::Asking { round: 1 };
            raised += u32::from(state.clients.iter().any(raises));
            forgot += u32::from(state.losses > 0);
            let form = state.representative();
            assert_eq!(form.representative(), form);
            for names in &ORDERS {
                for clients in &ORDERS {
                    let mut renamed = state.with_nodes(names);
                    let old = renamed.clients;
                    for (i, client) in old.into_iter().enumerate() {
                        renamed.clients[clients[i]] = client;
                    }
                    assert_eq!(renamed.representative(), form);
                }
            }
            // Whoever they are called, the same can happen next.
            let mut renamed = state.with_nodes(&ORDERS[step % 6]);
            renamed.clients.rotate_left(step % 3);
            assert_eq!(after(&renamed), after(&state));
            let mut other = state.clone();
            other.losses += 1;
            assert_ne!(other.representative(), form);
            let mut other = state.clone();
            other.clients[step % 3].after += 1;
            assert_ne!(other.representative(), form);
            if let Node::Votes { counter } = state.nodes[step % NODES] {
                let mut other = state.clone();
                other.nodes[step % NODES] = Node::Votes {
                    counter: counter + 10,
                };
                assert_ne!(other.representative(), form);
            }
            let mut actions = Vec::new();
            model.actions(&state, &mut actions);
            chance = chance
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            let Some(action) = actions.get((chance >> 33) as usize % actions.len().max(1)) else {
                state = model.init_states().remove(0);
                continue;
            };
            state = model
                .next_state(&state, action.clone())
                .expect("it can happen");
        }
        assert!(raised > 0 && forgot > 0, "the walks led nowhere");
    }
}
