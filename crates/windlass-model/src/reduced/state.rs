//! The state of the reduced model, and its changes.

use std::time::Duration;

use windlass_core::rules::gate::{self, HighestFence};
use windlass_core::rules::quorum::next_number;
use windlass_core::{Clock, Fence};

use crate::NODES;

/// The most clients.
pub const CLIENTS: usize = 3;
/// The most rounds of one client.
pub const ROUNDS: usize = 3;

/// The state of all nodes and clients, and of their messages.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ReducedState {
    /// The nodes.
    pub nodes: [ReducedNode; NODES],
    /// The clients, with their requests and replies.
    pub clients: [ReducedClient; CLIENTS],
    /// Two acquisitions have the same fence.
    pub shared: bool,
    /// An acquisition that began after another was complete has no higher fence.
    pub went_back: bool,
    /// A gate would have admitted a stale write.
    pub stale_write: bool,
    /// How often a node lost its memory.
    pub losses: u8,
}

/// One node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum ReducedNode {
    /// It votes.
    Votes {
        /// The highest number that it has issued.
        counter: u8,
    },
    /// It has lost its memory, and a client may rely on what it has forgotten.
    Quarantine,
    /// No client does any more; it reads the counters of the others.
    Joins {
        /// The highest of them.
        counter: u8,
        /// The nodes whose counters it has, one bit each.
        learned: u8,
    },
}

/// One client, with one acquisition.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ReducedClient {
    /// Its acquisition.
    pub attempt: ReducedAttempt,
    /// The highest fence of all acquisitions that were complete when it began; 0 if there were
    /// none, or if it has not begun.
    pub after: u8,
    /// The nodes that have lost their memory since it began, one bit each: it may rely on what they
    /// have forgotten.
    pub forgotten: u8,
    /// The nodes that it holds, one bit each.
    pub holds: u8,
    /// Its requests, by round and node.
    pub requests: [[RequestState; NODES]; ROUNDS],
}

/// An acquisition.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum ReducedAttempt {
    /// There is no such client.
    Absent,
    /// Not begun.
    NotBegun,
    /// Waiting for replies.
    Requesting {
        /// The round.
        round: usize,
    },
    /// The client holds the lock, or has held it.
    Held {
        /// Its fence.
        fence: u8,
    },
    /// Its validity ended before it was complete.
    Over,
}

/// The state of one request of a client to a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum RequestState {
    /// Not sent, or of no consequence any more.
    Gone,
    /// Sent, with this proposal.
    Sent(u8),
    /// Granted with this number, which the client has received or may receive.
    Granted(u8),
}

impl ReducedState {
    pub(super) fn new(clients: usize) -> ReducedState {
        assert!(clients <= CLIENTS, "{CLIENTS} clients at most");
        let client = |i| ReducedClient {
            attempt: match i < clients {
                true => ReducedAttempt::NotBegun,
                false => ReducedAttempt::Absent,
            },
            after: 0,
            forgotten: 0,
            holds: 0,
            requests: [[RequestState::Gone; NODES]; ROUNDS],
        };
        ReducedState {
            nodes: [ReducedNode::Votes { counter: 0 }; NODES],
            clients: std::array::from_fn(client),
            shared: false,
            went_back: false,
            stale_write: false,
            losses: 0,
        }
    }

    /// The fences of acquisitions that are complete.
    pub fn fences(&self) -> impl Iterator<Item = u8> {
        let fence = |client: &ReducedClient| match client.attempt {
            ReducedAttempt::Held { fence } => Some(fence),
            _ => None,
        };
        self.clients.iter().filter_map(fence)
    }

    pub(super) fn begin(&mut self, i: usize) {
        self.clients[i].after = self.fences().max().unwrap_or(0);
        self.request(i, 0, 1);
    }

    fn request(&mut self, i: usize, round: usize, proposal: u8) {
        let client = &mut self.clients[i];
        client.attempt = ReducedAttempt::Requesting { round };
        client.requests[round] = [RequestState::Sent(proposal); NODES];
    }

    /// Whether the node grants this client's request. The claim of another holder has expired just
    /// then.
    pub(super) fn would_grant(&self, i: usize, round: usize, node: usize) -> bool {
        let client = &self.clients[i];
        // Only the holder gets another number.
        let may = round == 0 || client.holds & (1 << node) != 0;
        let is_sent = matches!(client.requests[round][node], RequestState::Sent(_));
        may && is_sent && matches!(self.nodes[node], ReducedNode::Votes { .. })
    }

    pub(super) fn grant(&mut self, i: usize, round: usize, node: usize) {
        let ReducedNode::Votes { counter } = &mut self.nodes[node] else {
            return;
        };
        let RequestState::Sent(proposal) = self.clients[i].requests[round][node] else {
            return;
        };
        let mut count = u64::from(*counter);
        let number = next_number(&mut count, proposal.into()) as u8;
        *counter = count as u8;
        for client in &mut self.clients {
            client.holds &= !(1 << node);
        }
        let client = &mut self.clients[i];
        client.holds |= 1 << node;
        client.requests[round][node] =
            match client.attempt == (ReducedAttempt::Requesting { round }) {
                true => RequestState::Granted(number),
                // A client in a later round ignores the reply.
                false => RequestState::Gone,
            };
    }

    pub(super) fn raise(&mut self, i: usize, proposal: u8) {
        if let ReducedAttempt::Requesting { round } = self.clients[i].attempt {
            self.drop_replies(i);
            self.request(i, round + 1, proposal);
        }
    }

    pub(super) fn complete(&mut self, i: usize, fence: u8) {
        let shared = self.fences().any(|other| other == fence);
        self.shared |= shared;
        let after = self.clients[i].after;
        if after > 0 {
            self.went_back |= fence <= after;
            self.stale_write |= admits_in_turn([fence, after]);
        }
        self.end(i, ReducedAttempt::Held { fence });
    }

    fn end(&mut self, i: usize, attempt: ReducedAttempt) {
        self.clients[i].attempt = attempt;
        self.drop_replies(i);
    }

    fn drop_replies(&mut self, i: usize) {
        for request in self.clients[i].requests.as_flattened_mut() {
            if let RequestState::Granted(_) = request {
                *request = RequestState::Gone;
            }
        }
    }

    pub(super) fn lose(&mut self, n: usize) {
        self.losses += 1;
        self.nodes[n] = ReducedNode::Quarantine;
        for client in &mut self.clients {
            client.holds &= !(1 << n);
            if let ReducedAttempt::Requesting { .. } = client.attempt {
                client.forgotten |= 1 << n;
            }
            // Requests are lost with the connections.
            for round in &mut client.requests {
                if let RequestState::Sent(_) = round[n] {
                    round[n] = RequestState::Gone;
                }
            }
        }
    }

    /// The longest TTL has passed since the node restarted: acquisitions that began before are
    /// over, unless `they_go_on` because clients measure validity from later on.
    pub(super) fn quarantined(&mut self, n: usize, they_go_on: bool) {
        self.nodes[n] = ReducedNode::Joins {
            counter: 0,
            learned: 0,
        };
        for i in 0..CLIENTS {
            let client = &self.clients[i];
            let requesting = matches!(client.attempt, ReducedAttempt::Requesting { .. });
            if requesting && client.forgotten & (1 << n) != 0 && !they_go_on {
                self.end(i, ReducedAttempt::Over);
            }
        }
    }

    pub(super) fn learn(&mut self, n: usize, other: usize) {
        let ReducedNode::Votes {
            counter: other_counter,
        } = self.nodes[other]
        else {
            return;
        };
        if let ReducedNode::Joins { counter, learned } = &mut self.nodes[n] {
            *counter = other_counter.max(*counter);
            *learned |= 1 << other;
        }
    }

    pub(super) fn join(&mut self, n: usize) {
        if let ReducedNode::Joins { counter, .. } = self.nodes[n] {
            self.nodes[n] = ReducedNode::Votes { counter };
        }
    }
}

/// Whether a gate admits these writes, one after the other.
fn admits_in_turn(fences: [u8; 2]) -> bool {
    // The clock does not move, so nothing expires.
    let now = Clock::manual().now();
    let until = now + Duration::from_secs(1);
    let mut seen: Option<HighestFence> = None;
    fences.into_iter().all(|fence| {
        let (admission, after) = gate::admit(seen, now, Fence::new(fence.into()), until);
        seen = Some(after);
        admission.is_admitted()
    })
}
