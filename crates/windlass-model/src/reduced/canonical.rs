//! One representative for all states that no future step can distinguish.

use stateright::Representative;

use super::state::{ReducedAttempt, ReducedClient, ReducedNode, ReducedState, RequestState};
use crate::{NODES, ORDERS};

impl ReducedState {
    /// Drops state that no later step reads.
    pub(super) fn drop_unread(&mut self, rounds: usize) {
        let counters = self.nodes.map(|node| match node {
            ReducedNode::Votes { counter } | ReducedNode::Joins { counter, .. } => counter,
            ReducedNode::Quarantine => 0,
        });
        for client in &mut self.clients {
            client.drop_unread(rounds, counters);
        }
    }
}

impl ReducedClient {
    fn drop_unread(&mut self, rounds: usize, counters: [u8; NODES]) {
        let round = match self.attempt {
            ReducedAttempt::Requesting { round } => Some(round),
            _ => {
                self.after = 0;
                self.forgotten = 0;
                None
            }
        };
        for node in 0..NODES {
            let bit = 1 << node;
            let may_hold =
                self.holds & bit != 0 || matches!(self.requests[0][node], RequestState::Sent(_));
            let mut requests_more = round.is_some_and(|round| round + 1 < rounds);
            for (round, requests) in self.requests.iter_mut().enumerate() {
                if let RequestState::Sent(proposal) = &mut requests[node] {
                    // The counter only rises, and if it is lost, so is this request.
                    if *proposal <= counters[node] {
                        *proposal = 0;
                    }
                    if round > 0 && may_hold {
                        requests_more = true;
                    } else if round > 0 {
                        requests[node] = RequestState::Gone;
                    }
                }
            }
            // What it holds matters only for further requests.
            if !requests_more {
                self.holds &= !bit;
            }
        }
    }

    fn with_nodes(&self, names: &[usize; NODES]) -> ReducedClient {
        let mut client = *self;
        client.forgotten = bits(self.forgotten, names);
        client.holds = bits(self.holds, names);
        for (renamed, requests) in client.requests.iter_mut().zip(&self.requests) {
            for (old, request) in requests.iter().enumerate() {
                renamed[names[old]] = *request;
            }
        }
        client
    }
}

fn bits(old: u8, names: &[usize; NODES]) -> u8 {
    let set = (0..NODES).filter(|i| old & (1 << i) != 0);
    set.fold(0, |new, i| new | 1 << names[i])
}

/// Clients are interchangeable, and so are nodes. All orders of the nodes are tried; clients are
/// sorted, since no other part of the state refers to them. The least of the results is the same
/// for all permutations.
impl Representative for ReducedState {
    fn representative(&self) -> ReducedState {
        let renamed = ORDERS.iter().map(|names| self.with_nodes(names));
        renamed.min().expect("there are orders")
    }
}

impl ReducedState {
    fn with_nodes(&self, names: &[usize; NODES]) -> ReducedState {
        let mut state = self.clone();
        for (old, node) in self.nodes.iter().enumerate() {
            state.nodes[names[old]] = match *node {
                ReducedNode::Joins { counter, learned } => ReducedNode::Joins {
                    counter,
                    learned: bits(learned, names),
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
    use crate::{ReducedModel, Variant};

    /// If equivalent states had different representatives, the search would be longer; if different
    /// states had the same one, it would not be complete.
    #[test]
    fn representatives_ignore_names_and_nothing_else() {
        let model = ReducedModel {
            variant: Variant::Whole,
            clients: 3,
            rounds: 2,
            losses: 1,
        };
        let after = |state: &ReducedState| {
            let mut actions = Vec::new();
            model.actions(state, &mut actions);
            let next = actions
                .into_iter()
                .filter_map(|action| model.next_state(state, action));
            let next: BTreeSet<ReducedState> = next.map(|next| next.representative()).collect();
            next
        };
        // Random walks from a fixed seed.
        let (mut chance, mut raised, mut forgot) = (1u64, 0, 0);
        let mut state = model.init_states().remove(0);
        for step in 0..2000 {
            let raises =
                |client: &ReducedClient| client.attempt == ReducedAttempt::Requesting { round: 1 };
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
            // Renamed, the same steps are possible.
            let mut renamed = state.with_nodes(&ORDERS[step % 6]);
            renamed.clients.rotate_left(step % 3);
            assert_eq!(after(&renamed), after(&state));
            let mut other = state.clone();
            other.losses += 1;
            assert_ne!(other.representative(), form);
            let mut other = state.clone();
            other.clients[step % 3].after += 1;
            assert_ne!(other.representative(), form);
            if let ReducedNode::Votes { counter } = state.nodes[step % NODES] {
                let mut other = state.clone();
                other.nodes[step % NODES] = ReducedNode::Votes {
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
                .expect("the action is possible");
        }
        assert!(
            raised > 0 && forgot > 0,
            "the walks cover raises and losses"
        );
    }
}
