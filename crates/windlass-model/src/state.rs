//! The state of the model, and its changes.

use stateright::Representative;
use windlass_core::rules::quorum::next_number;

use crate::NODES;

/// The state of all nodes, clients and messages.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ModelState {
    /// The nodes.
    pub nodes: [ModelNode; NODES],
    /// The clients.
    pub clients: Vec<ModelClient>,
    /// Messages to nodes, sorted. One that is never delivered is lost.
    pub requests: Vec<ModelRequest>,
    /// Messages to clients, sorted.
    pub replies: Vec<ModelReply>,
    /// The highest fence that the gate has admitted.
    pub gate: u8,
    /// The gate has rejected a write.
    pub refused: bool,
    /// The gate has admitted a stale write.
    pub stale_write: bool,
    /// The number of claims that have expired.
    pub expiries: u8,
    /// How often a node restarted with its memory.
    pub restarts: u8,
    /// How often a node lost its memory.
    pub losses: u8,
}

/// One node.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ModelNode {
    /// The highest number that it has issued.
    pub counter: u8,
    /// The holder of the lock on this node.
    pub holder: Option<u8>,
    /// Whether it votes.
    pub phase: ModelPhase,
}

/// Whether a node votes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum ModelPhase {
    /// It votes.
    Votes,
    /// It has lost its memory, and a client may rely on what it has forgotten.
    Quarantine,
    /// No client does any more; it reads the counters of the others.
    Joins {
        /// The nodes whose counters it has, one bit each.
        learned: u8,
    },
}

/// One client, with one acquisition.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ModelClient {
    /// Its acquisition.
    pub attempt: ModelAttempt,
    /// The highest fence of all acquisitions that were complete when it began.
    pub after: u8,
    /// The nodes that have lost their memory since it began, one bit each: it may rely on what they
    /// have forgotten.
    pub forgotten: u8,
}

/// An acquisition.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum ModelAttempt {
    /// Not begun.
    NotBegun,
    /// Waiting for replies.
    Requesting {
        /// The numbers received in this round, by node.
        numbers: Vec<(u8, u8)>,
        /// The round.
        round: u8,
    },
    /// The client holds the lock, or believes so.
    Held {
        /// Its fence.
        fence: u8,
        /// Whether it has tried to write.
        wrote: bool,
    },
    /// Its validity ended before it was complete.
    Over,
}

/// A client requests a node's vote (round 0), or another number.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ModelRequest {
    /// The client.
    pub client: usize,
    /// The round.
    pub round: u8,
    /// The node.
    pub node: usize,
    /// The number proposed.
    pub proposal: u8,
}

/// A node grants.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ModelReply {
    /// The client.
    pub client: usize,
    /// The round.
    pub round: u8,
    /// The node.
    pub node: usize,
    /// The number issued.
    pub number: u8,
}

impl ModelState {
    pub(crate) fn new(clients: usize) -> ModelState {
        let node = ModelNode {
            counter: 0,
            holder: None,
            phase: ModelPhase::Votes,
        };
        let client = ModelClient {
            attempt: ModelAttempt::NotBegun,
            after: 0,
            forgotten: 0,
        };
        ModelState {
            nodes: std::array::from_fn(|_| node.clone()),
            clients: vec![client; clients],
            requests: Vec::new(),
            replies: Vec::new(),
            gate: 0,
            refused: false,
            stale_write: false,
            expiries: 0,
            restarts: 0,
            losses: 0,
        }
    }

    /// The fences of acquisitions that are complete.
    fn fences(&self) -> impl Iterator<Item = (usize, u8)> {
        let held = |(i, client): (usize, &ModelClient)| match client.attempt {
            ModelAttempt::Held { fence, .. } => Some((i, fence)),
            _ => None,
        };
        self.clients.iter().enumerate().filter_map(held)
    }

    pub(crate) fn begin(&mut self, i: usize, proposal: u8) {
        self.clients[i].after = self.fences().map(|(_, fence)| fence).max().unwrap_or(0);
        self.request(i, 0, proposal);
    }

    pub(crate) fn request(&mut self, i: usize, round: u8, proposal: u8) {
        self.clients[i].attempt = ModelAttempt::Requesting {
            numbers: Vec::new(),
            round,
        };
        for node in 0..NODES {
            self.requests.push(ModelRequest {
                client: i,
                round,
                node,
                proposal,
            });
        }
        self.requests.sort();
    }

    pub(crate) fn deliver(&mut self, request: &ModelRequest) {
        self.requests.retain(|other| other != request);
        let node = &mut self.nodes[request.node];
        let owner = request.client as u8;
        let grants = match request.round {
            0 => node.holder.is_none() || node.holder == Some(owner),
            // Only the holder gets another number.
            _ => node.holder == Some(owner),
        };
        // Clients send nothing to a node without a vote, and earlier requests are lost with its
        // connections.
        if !grants || node.phase != ModelPhase::Votes {
            return;
        }
        node.holder = Some(owner);
        let mut counter = u64::from(node.counter);
        let number = next_number(&mut counter, request.proposal.into()) as u8;
        node.counter = counter as u8;
        // A client in a later round ignores the reply.
        let ModelAttempt::Requesting { round, .. } = self.clients[request.client].attempt else {
            return;
        };
        if round == request.round {
            self.replies.push(ModelReply {
                client: request.client,
                round,
                node: request.node,
                number,
            });
            self.replies.sort();
        }
    }

    pub(crate) fn receive(&mut self, reply: &ModelReply) {
        self.replies.retain(|other| other != reply);
        if let ModelAttempt::Requesting { numbers, round } = &mut self.clients[reply.client].attempt
            && *round == reply.round
        {
            numbers.push((reply.node as u8, reply.number));
            numbers.sort_unstable();
        }
    }

    /// The client holds the lock, if its replies make a fence.
    pub(crate) fn complete(&mut self, i: usize, fence_of: impl Fn(&[u64]) -> Option<u64>) {
        let ModelAttempt::Requesting { numbers, .. } = &self.clients[i].attempt else {
            return;
        };
        let numbers: Vec<u64> = numbers.iter().map(|(_, n)| u64::from(*n)).collect();
        if let Some(fence) = fence_of(&numbers) {
            let fence = fence as u8;
            self.clients[i].attempt = ModelAttempt::Held {
                fence,
                wrote: false,
            };
            self.replies.retain(|reply| reply.client != i);
        }
    }

    pub(crate) fn restart(&mut self, n: usize) {
        self.restarts += 1;
        self.requests.retain(|request| request.node != n);
        self.replies.retain(|reply| reply.node != n);
    }

    pub(crate) fn lose(&mut self, n: usize) {
        self.nodes[n] = ModelNode {
            counter: 0,
            holder: None,
            phase: ModelPhase::Quarantine,
        };
        for client in &mut self.clients {
            if let ModelAttempt::Requesting { .. } = client.attempt {
                client.forgotten |= 1 << n;
            }
        }
        // Requests are lost with the connections.
        self.requests.retain(|request| request.node != n);
    }

    /// The longest TTL has passed since the node restarted: acquisitions that began before are
    /// over, unless `they_go_on` because clients measure validity from later on.
    pub(crate) fn quarantined(&mut self, n: usize, they_go_on: bool) {
        self.nodes[n].phase = ModelPhase::Joins { learned: 0 };
        for (i, client) in self.clients.iter_mut().enumerate() {
            let requesting = matches!(client.attempt, ModelAttempt::Requesting { .. });
            if requesting && client.forgotten & (1 << n) != 0 && !they_go_on {
                client.attempt = ModelAttempt::Over;
                self.replies.retain(|reply| reply.client != i);
            }
        }
    }

    pub(crate) fn learn(&mut self, n: usize, other: usize) {
        let counter = self.nodes[other].counter;
        let node = &mut self.nodes[n];
        node.counter = node.counter.max(counter);
        if let ModelPhase::Joins { learned } = &mut node.phase {
            *learned |= 1 << other;
        }
    }

    pub(crate) fn write(&mut self, i: usize) {
        let ModelAttempt::Held { fence, .. } = self.clients[i].attempt else {
            return;
        };
        self.clients[i].attempt = ModelAttempt::Held { fence, wrote: true };
        if fence < self.gate {
            self.refused = true;
            return;
        }
        // Has an acquisition written that began after this one was complete?
        let successor_wrote = self.clients.iter().enumerate().any(|(other, client)| {
            let wrote = matches!(client.attempt, ModelAttempt::Held { wrote: true, .. });
            other != i && wrote && client.after >= fence
        });
        self.stale_write |= successor_wrote;
        self.gate = fence;
    }

    pub(crate) fn fences_are_unique(&self) -> bool {
        let mut fences: Vec<u8> = self.fences().map(|(_, fence)| fence).collect();
        let count = fences.len();
        fences.sort_unstable();
        fences.dedup();
        fences.len() == count
    }

    pub(crate) fn fences_grow(&self) -> bool {
        self.fences()
            .all(|(i, fence)| fence > self.clients[i].after)
    }
}

/// Clients are interchangeable, and so are nodes.
impl Representative for ModelState {
    fn representative(&self) -> ModelState {
        let keys: [_; NODES] = std::array::from_fn(|node| self.node_key(node));
        // Only the orders that sort the nodes by their keys; nodes with equal keys may come in any
        // order.
        let sorts = |names: &&[usize; NODES]| {
            let mut sorted = keys;
            for (old, new) in names.iter().enumerate() {
                sorted[*new] = keys[old];
            }
            sorted.is_sorted()
        };
        let orders = ORDERS.iter().filter(sorts);
        let renamed = orders.map(|names| self.with_nodes(names).with_clients_in_order());
        renamed.min().expect("one order sorts them")
    }
}

/// Every order of the nodes.
pub(crate) const ORDERS: [[usize; NODES]; 6] = [
    [0, 1, 2],
    [0, 2, 1],
    [1, 0, 2],
    [1, 2, 0],
    [2, 0, 1],
    [2, 1, 0],
];

impl ModelState {
    /// The same state with node `i` renamed to `names[i]`.
    fn with_nodes(&self, names: &[usize; NODES]) -> ModelState {
        let bits = |old: u8| {
            let set = (0..NODES).filter(|i| old & (1 << i) != 0);
            set.fold(0, |new, i| new | 1 << names[i])
        };
        let mut state = self.clone();
        for (old, node) in self.nodes.iter().enumerate() {
            let phase = match node.phase {
                ModelPhase::Joins { learned } => ModelPhase::Joins {
                    learned: bits(learned),
                },
                phase => phase,
            };
            state.nodes[names[old]] = ModelNode {
                phase,
                ..node.clone()
            };
        }
        for client in &mut state.clients {
            client.forgotten = bits(client.forgotten);
            if let ModelAttempt::Requesting { numbers, .. } = &mut client.attempt {
                for (node, _) in numbers.iter_mut() {
                    *node = names[usize::from(*node)] as u8;
                }
                numbers.sort_unstable();
            }
        }
        for request in &mut state.requests {
            request.node = names[request.node];
        }
        for reply in &mut state.replies {
            reply.node = names[reply.node];
        }
        state.requests.sort();
        state.replies.sort();
        state
    }

    /// What describes a node without naming nodes or clients.
    fn node_key(&self, node: usize) -> (u8, bool, Option<u32>, usize, usize) {
        let ModelNode {
            counter,
            holder,
            phase,
        } = &self.nodes[node];
        let joins = match phase {
            ModelPhase::Votes => None,
            ModelPhase::Quarantine => Some(u32::MAX),
            ModelPhase::Joins { learned } => Some(learned.count_ones()),
        };
        let sent = self.requests.iter().filter(|r| r.node == node).count();
        let replied = self.replies.iter().filter(|r| r.node == node).count();
        (*counter, holder.is_some(), joins, sent, replied)
    }

    fn with_clients_in_order(&self) -> ModelState {
        let keys: Vec<_> = self
            .clients
            .iter()
            .enumerate()
            .map(|(i, client)| {
                let holds: Vec<bool> = self
                    .nodes
                    .iter()
                    .map(|n| n.holder == Some(i as u8))
                    .collect();
                let sent: Vec<_> = self
                    .requests
                    .iter()
                    .filter(|r| r.client == i)
                    .map(|r| (r.round, r.node, r.proposal))
                    .collect();
                let replied: Vec<_> = self
                    .replies
                    .iter()
                    .filter(|r| r.client == i)
                    .map(|r| (r.round, r.node, r.number))
                    .collect();
                (client.clone(), holds, sent, replied)
            })
            .collect();
        let mut order: Vec<usize> = (0..keys.len()).collect();
        order.sort_by(|a, b| keys[*a].cmp(&keys[*b]));
        let mut position = vec![0; order.len()];
        for (new, old) in order.iter().enumerate() {
            position[*old] = new;
        }
        let mut state = self.clone();
        state.clients = order.iter().map(|old| self.clients[*old].clone()).collect();
        for node in &mut state.nodes {
            node.holder = node.holder.map(|old| position[usize::from(old)] as u8);
        }
        for request in &mut state.requests {
            request.client = position[request.client];
        }
        for reply in &mut state.replies {
            reply.client = position[reply.client];
        }
        state.requests.sort();
        state.replies.sort();
        state
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// If two different states had the same representative, part of the model would not be
    /// searched.
    #[test]
    fn representatives_ignore_names_and_nothing_else() {
        let mut state = ModelState::new(3);
        state.begin(1, 1);
        let first = state.requests[0].clone();
        state.deliver(&first);
        state.begin(0, 1);
        for names in &ORDERS {
            let renamed = state.with_nodes(names);
            assert_eq!(renamed.representative(), state.representative());
        }
        let mut other = state.clone();
        other.nodes[2].counter += 1;
        assert_ne!(other.representative(), state.representative());
        let mut other = state.clone();
        other.receive(&state.replies[0]);
        assert_ne!(other.representative(), state.representative());
        let again = state.representative();
        assert_eq!(again.representative(), again);
    }
}
