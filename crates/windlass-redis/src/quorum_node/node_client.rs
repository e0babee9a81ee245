//! What a quorum needs of one of its nodes: a lock store that also gives numbers, and can say how
//! long it has been up.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use windlass_core::error::Result;
use windlass_core::name::Name;
use windlass_core::store::{
    AcquireRequest, Acquired, AcquiredAll, Backend, Holder, Kind, Pending, Released, Renewal,
    Renewed, WakeAddress,
};
use windlass_core::{Fence, Owner};

/// The client of one node of a quorum. Each call is one atomic decision of this node alone.
///
/// Where a node gives a number, the caller proposes one. The node gives it if it is higher than all
/// it has given before, and one more than the highest otherwise.
pub trait NodeClient: Send + Sync + fmt::Debug {
    /// The node as an ordinary store: for everything that needs no numbers.
    fn store(&self) -> Arc<dyn Backend>;

    /// The number of the connection that calls use; each new connection has another one. A
    /// restarted node never answers over an old connection.
    fn connection(&self) -> u64;

    /// Whether that connection is up, as far as is known. It breaks by itself when the node goes
    /// away.
    fn is_connected(&self) -> bool;

    /// Connects if need be, and reads what a quorum must know of the node before it counts.
    fn status(&self) -> Pending<'_, NodeStatus>;

    /// The node's clock, in microseconds since 1970.
    fn time(&self) -> Pending<'_, i64>;

    /// Raises the counter to at least `floor`, and records that this run of the server has joined
    /// the quorum.
    fn join(&self, run: String, floor: Fence) -> Pending<'_, ()>;

    /// Grants, enqueues, or says who holds it.
    fn acquire(&self, request: &AcquireRequest, proposal: Fence) -> Pending<'static, Acquired>;

    /// Decides on several locks, each by itself, in one call. All requests are on their way when
    /// this returns. One answer for each, in order.
    fn acquire_each(
        &self,
        requests: Vec<(AcquireRequest, Fence)>,
    ) -> Pending<'static, Vec<Result<Acquired>>>;

    /// Grants several locks at once, or none of them. The first poll sends the request, so that the
    /// release that undoes it arrives later.
    fn acquire_all(&self, requests: Vec<AcquireRequest>) -> Pending<'static, AcquiredAll>;

    /// Renews a claim, and takes a number for it if it is held on this node.
    fn confirm(&self, claim: &Renewal, proposal: Fence) -> Pending<'static, Confirmed>;

    /// Grants what is held on this node to the next waiter, and puts the holder at the end of the
    /// queue; unless it has taken another number than `number` since, or nobody else waits.
    fn requeue(&self, claim: &Renewal, number: Fence, proposal: Fence) -> Pending<'static, bool>;

    /// Renews held claims. One answer for each, in order.
    fn renew(&self, claims: Vec<Renewal>) -> Pending<'static, Vec<Result<Renewed>>>;

    /// Gives up what the owner has on this node, held or waiting.
    fn release(
        &self,
        kind: Kind,
        name: Name,
        owner: Owner,
        claim: Option<WakeAddress>,
    ) -> Pending<'static, Released>;

    /// Takes a lock from its holder on this node.
    fn break_lock(&self, name: Name) -> Pending<'static, Option<Holder>>;
}

/// What a node reports about itself.
#[derive(Clone, Debug)]
pub struct NodeStatus {
    /// The id of this run of the server.
    pub run: String,
    /// How long it has been running, by its own account.
    pub up: Duration,
    /// Whether all that it has acknowledged survives a crash.
    pub durable: bool,
    /// Whether this run has joined: it has been given the counters of the other nodes.
    pub joined: bool,
    /// The highest number it has given, if it has its counter.
    pub counter: Option<u64>,
}

/// What a node replies when a claim is confirmed.
#[derive(Clone, Debug, PartialEq)]
pub enum Confirmed {
    /// Held on this node for another ttl, under a number that was just taken.
    Held(Fence),
    /// In the queue of this node, behind this holder.
    Waiting {
        recheck_after: Option<Duration>,
        holder: String,
    },
    /// Neither.
    Gone,
}
