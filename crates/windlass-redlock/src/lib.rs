//! `redlock://`: locks that a majority of independent Redis servers grants.
//!
//! A claim is held while a majority of the servers (nodes) grants it. Two majorities share a node,
//! and there two claims exclude each other.
//!
//! | question | module |
//! |---|---|
//! | how is a claim acquired? | `acquire`, `acquire_round` |
//! | which nodes are called first? | `node_selection`, `partial_grants` |
//! | how does a majority agree on a fencing token? | `fence`, `confirm` |
//! | when may a node vote? | `quarantine`, `rejoin` |
//! | how is a claim kept? | `renew`, `read_repair` |
//! | how do claims wait? | `waiters`, `wake_up`, `waiter_heartbeat` |
//! | how is a claim released, or undone? | `release`, `pending_release` |

mod acquire;
mod acquire_all;
mod acquire_round;
mod address;
mod break_lock;
mod calls;
mod claims;
mod confirm;
mod diagnose;
mod errors;
mod fence;
mod gate;
mod inspect;
mod node_selection;
mod nodes;
mod notifications;
mod partial_grants;
mod pending_release;
mod quarantine;
mod read_repair;
mod rejoin;
mod release;
mod renew;
#[cfg(test)]
mod tests;
mod waiter_heartbeat;
mod waiters;
mod wake_up;

use std::fmt;
use std::sync::{Arc, Weak};
use std::time::Duration;

pub use self::address::RedlockAddress;
use self::claims::{ClaimState, QuorumClaims};
use self::gate::QuorumGates;
use self::nodes::{QuorumNode, QuorumNodes};
use self::notifications::QuorumNotifications;
use self::wake_up::{NodeListener, WakeUps};
use windlass_core::error::{Error, Result};
use windlass_core::store::unsupported::UnsupportedStore;
use windlass_core::store::{
    Backend, Capabilities, ClaimStore, Finding, GateStore, GrantListener, LatchStore,
    NotificationStore, Pending,
};
use windlass_core::{Clock, Drift, FenceStrength};
use windlass_redis::RedisNodeClient;

/// The name of this store in outputs and errors.
const KIND: &str = "redlock";

const CAPABILITIES: Capabilities = Capabilities::new(
    KIND,
    FenceStrength::Quorum,
    "all that reach a majority of the nodes",
    "survives the loss of a minority of the nodes; a node that lost its data has no vote until every \
     claim that it may have granted has expired",
);

/// The `redlock://` backend of one coordinator.
pub struct Quorum {
    address: Arc<str>,
    nodes: Arc<QuorumNodes>,
    claims: QuorumClaims,
}

impl Quorum {
    /// Connects to the nodes of `address`, a majority at least. `shown` is the URL without
    /// credentials, `client` the number under which nodes report grants to `listener`.
    pub async fn open(
        address: RedlockAddress,
        shown: String,
        clock: Clock,
        call_timeout: Duration,
        client: u64,
        listener: Weak<dyn GrantListener>,
    ) -> Result<Arc<dyn Backend>> {
        let quorum = Quorum::connect(address, shown, clock, call_timeout, client, listener);
        Ok(Arc::new(quorum.await?))
    }

    async fn connect(
        mut address: RedlockAddress,
        shown: String,
        clock: Clock,
        call_timeout: Duration,
        client: u64,
        listener: Weak<dyn GrantListener>,
    ) -> Result<Quorum> {
        let with_address = |e: Error| e.with_backend(shown.clone());
        address.node_timeout = address.node_timeout.min(call_timeout);
        let (mut members, mut listeners) = (Vec::new(), Vec::new());
        for (node, url) in address.members.iter().enumerate() {
            let listener = Arc::new(NodeListener::new(node));
            let weak: Weak<NodeListener> = Arc::downgrade(&listener);
            let node_client = RedisNodeClient::new(url, address.node_timeout, client, weak);
            let node_client = Arc::new(node_client.map_err(with_address)?);
            members.push(QuorumNode::new(host_of(url), node_client));
            listeners.push(listener);
        }
        let nodes = QuorumNodes::new(&address, members, clock);
        let wake_ups = WakeUps::new(Arc::clone(&nodes), listeners, listener);
        nodes.connect().await.map_err(with_address)?;
        let claims = ClaimState::new(Arc::clone(&nodes), wake_ups);
        Ok(Quorum {
            address: shown.into(),
            claims: QuorumClaims(Arc::new(claims)),
            nodes,
        })
    }
}

impl Backend for Quorum {
    fn address(&self) -> &str {
        &self.address
    }

    fn capabilities(&self) -> Capabilities {
        CAPABILITIES
    }

    fn claims(&self) -> Arc<dyn ClaimStore> {
        Arc::new(self.claims.clone())
    }

    fn gates(&self) -> Arc<dyn GateStore> {
        Arc::new(QuorumGates(Arc::clone(&self.nodes)))
    }

    fn inventory(&self) -> Arc<dyn windlass_core::store::InventoryStore> {
        Arc::new(QuorumGates(Arc::clone(&self.nodes)))
    }

    fn latches(&self) -> Arc<dyn LatchStore> {
        Arc::new(UnsupportedStore(KIND))
    }

    fn notifications(&self) -> Arc<dyn NotificationStore> {
        Arc::new(QuorumNotifications(Arc::clone(&self.nodes)))
    }

    fn max_ttl(&self) -> Option<Duration> {
        Some(self.nodes.max_ttl)
    }

    fn drift(&self) -> Option<Drift> {
        self.nodes.drift
    }

    fn diagnose(&self) -> Pending<'_, Vec<Finding>> {
        Box::pin(diagnose::diagnose(&self.nodes))
    }
}

/// Host and port of a URL.
fn host_of(url: &str) -> String {
    let rest = url.split_once("://").map_or(url, |(_, rest)| rest);
    let rest = rest.rsplit_once('@').map_or(rest, |(_, rest)| rest);
    rest.split(['/', '?']).next().unwrap_or(rest).to_owned()
}

impl fmt::Debug for Quorum {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Quorum")
            .field("nodes", &self.nodes)
            .finish_non_exhaustive()
    }
}
