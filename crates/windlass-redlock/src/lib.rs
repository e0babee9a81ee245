//! `redlock://` — several independent servers, of which a majority decides.
//!
//! A claim is held while a majority of the nodes grants it; two majorities have a node in common, so
//! two holders exclude each other there. Who is asked, and when, is in [`turnout`]; whatever a majority
//! cannot change any more is the answer. How fences grow without a clock is in [`rules::quorum`]; who has
//! a vote is in [`node`]; how those who wait are served is in [`ballots`] and [`renew`].
//!
//! [`rules::quorum`]: windlass_core::rules::quorum

mod acquire;
mod address;
mod ballots;
mod claims;
mod come_back;
mod examine;
mod failure;
mod gate;
mod held;
mod hint;
mod look;
mod news;
mod node;
mod nodes;
mod release;
mod renew;
mod round;
#[cfg(test)]
mod seat;
mod several;
mod tally;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod tests_of_few;
#[cfg(test)]
mod tests_of_owners;
#[cfg(test)]
mod tests_of_servers;
mod turnout;
mod voting;
mod young;

use std::fmt;
use std::ops::ControlFlow;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, Weak};
use std::task::{Context, Waker};
use std::time::Duration;

use tokio::runtime::Handle;

pub use self::address::Address;
use self::ballots::{Ballots, Ear};
use self::failure::Failures;
use self::node::Node;
use self::nodes::NodeSet;
use self::round::{Over, Round};
use self::turnout::Pace;
use self::young::Nursery;
use windlass_core::error::{Error, Result};
use windlass_core::rules::quorum;
use windlass_core::store::unsupported::UnsupportedStore;
use windlass_core::store::{
    Backend, Capabilities, ClaimStore, Finding, GateStore, GrantListener, LatchStore,
    NotificationStore, Pending,
};
use windlass_core::{Clock, Drift, FenceStrength};
use windlass_redis::RedisVoter;
use windlass_redis::{Confirmed, Standing, Voter};

/// The word for it in answers and errors.
const KIND: &str = "redlock";

/// The `redlock://` backend, as one coordinator sees it.
#[derive(Clone)]
pub struct Quorum {
    address: Arc<str>,
    shared: Arc<Shared>,
}

/// What all calls share.
pub(crate) struct Shared {
    nodes: Vec<Arc<Node>>,
    majority: usize,
    max_ttl: Duration,
    node_timeout: Duration,
    timeout_percent: u32,
    drift: Option<Drift>,
    clock: Clock,
    runtime: Handle,
    /// The highest number that was seen or proposed.
    highest: AtomicU64,
    /// Held while a request is sent to all nodes, so that all get requests in one order.
    order: Mutex<()>,
    ballots: Ballots,
    /// Those who are asked first.
    preferred: NodeSet,
    pace: Pace,
    young: Nursery,
    wakeups: Weak<dyn GrantListener>,
    /// They live as long as the nodes that talk to them.
    ears: Vec<Arc<Ear>>,
}

impl Quorum {
    pub async fn open(
        address: Address,
        shown: String,
        clock: Clock,
        call_timeout: Duration,
        id: u64,
        wakeups: Weak<dyn GrantListener>,
    ) -> Result<Arc<dyn Backend>> {
        let quorum = Quorum::meet(address, shown, clock, call_timeout, id, wakeups);
        Ok(Arc::new(quorum.await?))
    }

    async fn meet(
        mut address: Address,
        shown: String,
        clock: Clock,
        call_timeout: Duration,
        id: u64,
        wakeups: Weak<dyn GrantListener>,
    ) -> Result<Quorum> {
        let in_words = |e: Error| e.with_backend(shown.clone());
        address.node_timeout = address.node_timeout.min(call_timeout);
        let (mut nodes, mut ears) = (Vec::new(), Vec::new());
        for (node, url) in address.members.iter().enumerate() {
            let ear = Arc::new(Ear {
                node,
                shared: OnceLock::new(),
            });
            let weak: Weak<Ear> = Arc::downgrade(&ear);
            let voter = RedisVoter::new(url, address.node_timeout, id, weak).map_err(in_words)?;
            nodes.push(Node::new(host_of(url), Arc::new(voter)));
            ears.push(ear);
        }
        let shared = Shared::new(&address, nodes, ears, clock, wakeups);
        shared.meet().await.map_err(in_words)?;
        Ok(Quorum {
            address: shown.into(),
            shared,
        })
    }
}

impl Shared {
    fn new(
        address: &Address,
        nodes: Vec<Node>,
        ears: Vec<Arc<Ear>>,
        clock: Clock,
        wakeups: Weak<dyn GrantListener>,
    ) -> Arc<Shared> {
        let majority = quorum::majority(nodes.len());
        // By their names, so that clients that list them in another order ask the same ones.
        let mut by_name: Vec<usize> = (0..nodes.len()).collect();
        by_name.sort_by(|a, b| nodes[*a].name.cmp(&nodes[*b].name));
        let preferred = by_name.into_iter().take(majority).collect();
        let shared = Arc::new(Shared {
            majority,
            nodes: nodes.into_iter().map(Arc::new).collect(),
            max_ttl: address.max_ttl,
            node_timeout: address.node_timeout,
            timeout_percent: address.timeout_percent,
            drift: address.drift,
            clock,
            runtime: Handle::current(),
            highest: AtomicU64::new(0),
            order: Mutex::new(()),
            ballots: Ballots::default(),
            preferred,
            pace: Pace::default(),
            young: Nursery::default(),
            wakeups,
            ears,
        });
        for ear in &shared.ears {
            let _ = ear.shared.set(Arc::downgrade(&shared));
        }
        shared
    }

    /// Finds out who can be reached: fewer than a majority is no store. Whether they have a vote yet is
    /// another matter.
    async fn meet(self: &Arc<Shared>) -> Result<()> {
        let greet = |node: &Arc<Node>| -> Pending<'static, ()> {
            let (node, shared) = (Arc::clone(node), Arc::clone(self));
            Box::pin(async move {
                node.voter.standing().await?;
                // A node without a vote is named when it is asked to vote, unless it can never have one.
                match node.clear(&shared).await {
                    Err(e) if e.hint() == Some(node::SAME_SERVER) => Err(e),
                    _ => Ok(()),
                }
            })
        };
        let mut round = Round::new(self.nodes.iter().map(greet));
        let (mut met, mut failures) = (0, Failures::default());
        // Twice the time of a call: it takes a connection and several questions.
        let heard = round.hear(|node, answer| {
            match answer {
                Ok(()) => met += 1,
                Err(e) => failures.add(node, e),
            }
            match met + failures.len() == self.nodes.len() {
                true => ControlFlow::Break(()),
                false => ControlFlow::Continue(()),
            }
        });
        self.clock.within(2 * self.node_timeout, heard).await;
        failures.silent(round.silent());
        if let Some((node, why)) = failures.advised(node::SAME_SERVER) {
            let message = format!("{}: {why}", self.nodes[node].name);
            return Err(Error::invalid("connect", message).with_hint(node::SAME_SERVER));
        }
        match met >= self.majority {
            true => Ok(()),
            false => Err(failures.error(self, 0).with_operation("connect")),
        }
    }

    /// How long all nodes are waited for, on behalf of a claim that lives so long.
    fn limit(&self, ttl: Duration) -> Duration {
        (ttl * self.timeout_percent / 100).clamp(
            Duration::from_millis(20),
            self.node_timeout.max(Duration::from_millis(20)),
        )
    }

    /// A number that nobody here has proposed before.
    fn propose(&self, at_least: u64) -> u64 {
        self.saw(at_least.saturating_sub(1));
        self.highest.fetch_add(1, Ordering::AcqRel) + 1
    }

    fn saw(&self, number: u64) {
        self.highest.fetch_max(number, Ordering::AcqRel);
    }

    /// The highest counter of the other nodes, if enough of them can be asked.
    async fn highest_elsewhere(self: &Arc<Shared>, but: &Node) -> Result<u64> {
        let others: Vec<&Arc<Node>> = self.nodes.iter().filter(|n| n.name != but.name).collect();
        let question = |node: &&Arc<Node>| -> Pending<'static, Standing> {
            let node = Arc::clone(node);
            Box::pin(async move { node.voter.standing().await })
        };
        let mut round = Round::new(others.iter().map(question));
        let (mut answers, mut intact, mut highest) = (0, 0, 0);
        let heard = round.hear(|_, answer| {
            if let Ok(standing) = answer {
                answers += 1;
                highest = highest.max(standing.counter.unwrap_or(0));
                if standing.joined || standing.durable && standing.counter.is_some() {
                    intact += 1;
                }
            }
            ControlFlow::<()>::Continue(())
        });
        self.clock.within(self.node_timeout, heard).await;
        if answers < self.majority {
            return Err(Error::new(
                windlass_core::error::ErrorKind::Unreachable,
                "call",
                format!(
                    "it has lost its counter, and must hear those of {} others first; {answers} answered",
                    self.majority
                ),
            )
            .with_hint("bring back more of the other nodes first"));
        }
        if intact < self.majority {
            tracing::info!(
                node = but.name,
                intact,
                "few of the other nodes remember their counters: numbers begin at the servers' clocks"
            );
        }
        Ok(highest)
    }

    /// Lets what is still on its way arrive, with a deadline of its own; what has not left, stays.
    fn finish<T: Send + 'static>(
        self: &Arc<Shared>,
        mut round: Round<T>,
        over: &Over,
        limit: Duration,
    ) {
        over.now();
        // A node that takes longer than a node may is given up by its connection.
        let limit = limit.max(self.node_timeout);
        // Begun here and not when the task gets its turn: what undoes it must come after it.
        round.begin(&mut Context::from_waker(Waker::noop()), |_, _| ());
        if round.silent().next().is_none() {
            return;
        }
        let clock = self.clock.clone();
        self.runtime.spawn(async move {
            let rest = round.hear(|_, _| ControlFlow::<()>::Continue(()));
            clock.within(limit, rest).await;
        });
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
        Arc::new(self.clone())
    }

    fn gates(&self) -> Arc<dyn GateStore> {
        Arc::new(self.clone())
    }

    fn latches(&self) -> Arc<dyn LatchStore> {
        Arc::new(UnsupportedStore(KIND))
    }

    fn notifications(&self) -> Arc<dyn NotificationStore> {
        Arc::new(self.clone())
    }

    fn counters(&self) -> Arc<dyn windlass_core::store::counter::CounterStore> {
        Arc::new(UnsupportedStore(KIND))
    }

    fn limits(&self) -> Arc<dyn windlass_core::store::limit::LimitStore> {
        Arc::new(UnsupportedStore(KIND))
    }

    fn blooms(&self) -> Arc<dyn windlass_core::store::BloomStore> {
        Arc::new(UnsupportedStore(KIND))
    }

    fn permissions(&self) -> Arc<dyn windlass_core::store::PermissionStore> {
        Arc::new(UnsupportedStore(KIND))
    }

    fn seen(&self) -> Arc<dyn windlass_core::store::SeenStore> {
        Arc::new(UnsupportedStore(KIND))
    }

    fn onces(&self) -> Arc<dyn windlass_core::store::OnceStore> {
        Arc::new(UnsupportedStore(KIND))
    }

    fn topics(&self) -> Arc<dyn windlass_core::store::TopicStore> {
        Arc::new(UnsupportedStore(KIND))
    }

    fn drift(&self) -> Option<Drift> {
        self.shared.drift
    }

    fn examine(&self) -> Pending<'_, Vec<Finding>> {
        Box::pin(self.shared.examine())
    }
}

pub(crate) const CAPABILITIES: Capabilities = Capabilities::new(
    KIND,
    FenceStrength::Quorum,
    "all that reach a majority of the nodes",
    "survives the loss of a minority of the nodes; a node that forgot has no vote until \
                 all it may have granted has ended",
);

/// Host and port, for people.
fn host_of(url: &str) -> String {
    let rest = url.split_once("://").map_or(url, |(_, rest)| rest);
    let rest = rest.rsplit_once('@').map_or(rest, |(_, rest)| rest);
    rest.split(['/', '?']).next().unwrap_or(rest).to_owned()
}

impl fmt::Debug for Quorum {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Quorum")
            .field("nodes", &self.shared.nodes)
            .finish_non_exhaustive()
    }
}
