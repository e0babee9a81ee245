//! States that differ in nothing that anybody will ever notice are one.

use stateright::Representative;

use super::state::{CLIENTS, Client, List, Look, Node, Phase, Promise, Stage, State, TRIES};
use crate::{NODES, ORDERS};

impl State {
    /// Forgets what nobody looks at any more.
    pub(super) fn forget(&mut self, unpromised: bool) {
        for client in &mut self.clients {
            client.forget(&self.nodes, unpromised);
        }
    }
}

impl Client {
    fn forget(&mut self, nodes: &[Node; NODES], unpromised: bool) {
        if !matches!(self.stage, Stage::Looks) {
            self.looks = [Look::Gone; NODES];
        }
        let collects = match self.stage {
            Stage::Collects { tries } => Some(tries),
            _ => {
                self.forgotten = 0;
                None
            }
        };
        if let Stage::Absent | Stage::NotBegun | Stage::Answered | Stage::Over = self.stage {
            self.after = List::default();
        }
        for tries in 0..TRIES {
            for (n, promise) in self.promises[tries].iter_mut().enumerate() {
                match promise {
                    // The counter only rises; and if it is lost, so is this.
                    Promise::Asked(proposal) if *proposal <= nodes[n].counter => *proposal = 0,
                    Promise::Given { .. } if collects != Some(tries) => *promise = Promise::Gone,
                    _ => {}
                }
            }
            let number = self.writes[tries].0;
            for (n, node) in nodes.iter().enumerate() {
                // A number that was given, or passed over, is never given again.
                let refused = node.promised != number && node.counter >= number;
                if refused && !unpromised {
                    self.written[tries] &= !(1 << n);
                }
            }
            let waits = matches!(self.stage, Stage::Writes { tries: now, .. } if now == tries);
            if self.written[tries] == 0 && !waits {
                self.writes[tries] = Default::default();
            }
        }
    }
}

fn bits(old: u8, names: &[usize; NODES]) -> u8 {
    let set = (0..NODES).filter(|i| old & (1 << i) != 0);
    set.fold(0, |new, i| new | 1 << names[i])
}

fn list(old: List, names: &[usize; CLIENTS]) -> List {
    List(old.0.map(|name| match name {
        0 => 0,
        name => names[usize::from(name) - 1] as u8 + 1,
    }))
}

/// Clients that want the same are alike, and nodes are alike. Of all orders of both, those are tried that sort
/// them by what can be seen without naming anybody; the least of what comes out is therefore the same,
/// whatever the names were.
impl Representative for State {
    fn representative(&self) -> State {
        let nodes = self.nodes.map(|node| {
            let phase = match node.phase {
                Phase::Votes => 0,
                Phase::Quarantine => 1,
                Phase::Joins { heard } => 2 + heard.count_ones(),
            };
            let (number, list) = node.accepted;
            let kept = (number, list.len(), node.knows);
            (phase, node.counter, node.promised, kept)
        });
        let clients = self.clients.map(|client| {
            let stage = match client.stage {
                Stage::Writes { tries, yes } => (4, tries, yes.count_ones()),
                Stage::Collects { tries } => (3, tries, 0),
                Stage::Answered => (6, 0, 0),
                Stage::Over => (5, 0, 0),
                Stage::Looks => (2, 0, 0),
                Stage::NotBegun => (1, 0, 0),
                Stage::Absent => (0, 0, 0),
            };
            let written = client.written.map(u8::count_ones);
            (client.kind, stage, client.after.len(), written)
        });
        let mut least: Option<State> = None;
        for names in ORDERS.iter().filter(|names| sorts(&nodes, names)) {
            let renamed = self.with_nodes(names);
            for names in ORDERS.iter().filter(|names| sorts(&clients, names)) {
                let renamed = renamed.with_clients(names);
                if least.as_ref().is_none_or(|least| renamed < *least) {
                    least = Some(renamed);
                }
            }
        }
        least.expect("one order sorts them")
    }
}

fn sorts<K: Copy + Ord>(keys: &[K; 3], names: &[usize; 3]) -> bool {
    let mut sorted = *keys;
    for (old, new) in names.iter().enumerate() {
        sorted[*new] = keys[old];
    }
    sorted.is_sorted()
}

impl State {
    fn with_nodes(&self, names: &[usize; NODES]) -> State {
        let mut state = self.clone();
        for (old, &new) in names.iter().enumerate() {
            state.nodes[new] = self.nodes[old];
            if let Phase::Joins { heard } = self.nodes[old].phase {
                let heard = bits(heard, names);
                state.nodes[new].phase = Phase::Joins { heard };
            }
            for (renamed, client) in state.clients.iter_mut().zip(&self.clients) {
                renamed.looks[new] = client.looks[old];
                for tries in 0..TRIES {
                    renamed.promises[tries][new] = client.promises[tries][old];
                }
            }
        }
        for client in &mut state.clients {
            client.forgotten = bits(client.forgotten, names);
            client.written = client.written.map(|written| bits(written, names));
            if let Stage::Writes { tries, yes } = client.stage {
                let yes = bits(yes, names);
                client.stage = Stage::Writes { tries, yes };
            }
        }
        state
    }

    fn with_clients(&self, names: &[usize; CLIENTS]) -> State {
        let mut state = self.clone();
        for node in &mut state.nodes {
            node.accepted.1 = list(node.accepted.1, names);
        }
        state.longest = list(state.longest, names);
        for (old, &new) in names.iter().enumerate() {
            let mut client = self.clients[old];
            client.after = list(client.after, names);
            for look in &mut client.looks {
                if let Look::Told(told) = look {
                    told.accepted.1 = list(told.accepted.1, names);
                }
            }
            for promise in client.promises.as_flattened_mut() {
                if let Promise::Given { told, .. } = promise {
                    told.accepted.1 = list(told.accepted.1, names);
                }
            }
            for write in &mut client.writes {
                write.1 = list(write.1, names);
            }
            state.clients[new] = client;
        }
        state
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use stateright::Model;

    use super::super::{Flaw, Synod};
    use super::*;

    /// If two states had one form, the search would not be complete.
    #[test]
    fn names_make_no_difference_and_all_else_does() {
        let model = Synod {
            flaw: Flaw::None,
            changers: 3,
            readers: 0,
            tries: 2,
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
        let (mut chance, mut accepted, mut forgot) = (1u64, 0, 0);
        for _ in 0..30 {
            let mut state = model.init_states().remove(0);
            for step in 0..60 {
                accepted += u32::from(state.nodes.iter().any(|node| node.accepted.0 > 0));
                forgot += u32::from(state.losses > 0);
                let form = state.representative();
                assert_eq!(form.representative(), form);
                for names in &ORDERS {
                    for clients in &ORDERS {
                        let renamed = state.with_nodes(names).with_clients(clients);
                        assert_eq!(renamed.representative(), form);
                    }
                }
                // Whoever they are called, the same can happen next.
                let renamed = state
                    .with_nodes(&ORDERS[step % 6])
                    .with_clients(&ORDERS[step / 6 % 6]);
                assert_eq!(after(&renamed), after(&state));
                let mut other = state.clone();
                other.nodes[step % NODES].counter += 10;
                assert_ne!(other.representative(), form);
                let mut other = state.clone();
                other.clients[step % CLIENTS].forgotten ^= 1;
                assert_ne!(other.representative(), form);
                let mut actions = Vec::new();
                model.actions(&state, &mut actions);
                chance = chance
                    .wrapping_mul(6_364_136_223_846_793_005)
                    .wrapping_add(1);
                let Some(action) = actions.get((chance >> 33) as usize % actions.len().max(1))
                else {
                    break;
                };
                state = model
                    .next_state(&state, action.clone())
                    .expect("it can happen");
            }
        }
        assert!(accepted > 0 && forgot > 0, "the walks led nowhere");
    }
}
