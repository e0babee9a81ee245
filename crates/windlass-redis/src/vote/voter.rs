//! One node of a quorum: a lock store that also gives numbers, and can say how long it has been up.

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

/// A store that takes part in a quorum. Each call is one indivisible decision of this node alone.
///
/// Wherever a number is drawn, the caller proposes one; the node gives it if it is higher than all it
/// has given before, and one more than the highest otherwise.
pub trait Voter: Send + Sync + fmt::Debug {
    /// The store as it is by itself: for all that needs no numbers.
    fn store(&self) -> Arc<dyn Backend>;

    /// Which connection calls go over; another number after each new one. A node that was started
    /// anew is never spoken to over an old one.
    fn connection(&self) -> u64;

    /// Whether that connection stands, as far as is known. It breaks by itself when the node goes away.
    fn is_connected(&self) -> bool;

    /// Connects if need be, and asks what a voter must be able to say of itself.
    fn standing(&self) -> Pending<'_, Standing>;

    /// What its clock says, in microseconds since 1970.
    fn time(&self) -> Pending<'_, i64>;

    /// Raises the counter to at least `floor`, and remembers that this run of the server has been
    /// told.
    fn join(&self, run: String, floor: Fence) -> Pending<'_, ()>;

    /// Grants, puts in line, or says who has it.
    fn vote(&self, ask: &AcquireRequest, proposal: Fence) -> Pending<'static, Acquired>;

    /// The same for several locks, each by itself; they travel together. Each is on its way when this returns. One
    /// answer for each, in order.
    fn vote_together(
        &self,
        asks: Vec<(AcquireRequest, Fence)>,
    ) -> Pending<'static, Vec<Result<Acquired>>>;

    /// Grants several locks at once, or none of them. Sent by the first poll, so that what gives it back comes
    /// after it.
    fn vote_for_all(&self, asks: Vec<AcquireRequest>) -> Pending<'static, AcquiredAll>;

    /// Keeps a claim alive, and draws a number for it if it is held here.
    fn confirm(&self, claim: &Renewal, proposal: Fence) -> Pending<'static, Confirmed>;

    /// Gives what is held here to the next in line, and goes to the end of it; unless another number
    /// than `number` has been drawn since, or nobody else waits.
    fn line_up_again(
        &self,
        claim: &Renewal,
        number: Fence,
        proposal: Fence,
    ) -> Pending<'static, bool>;

    /// Keeps held claims alive. One answer for each, in order.
    fn renew(&self, claims: Vec<Renewal>) -> Pending<'static, Vec<Result<Renewed>>>;

    /// Gives up whatever the owner has here.
    fn release(
        &self,
        kind: Kind,
        name: Name,
        owner: Owner,
        claim: Option<WakeAddress>,
    ) -> Pending<'static, Released>;

    /// Takes a lock from whoever has it here.
    fn break_lock(&self, name: Name) -> Pending<'static, Option<Holder>>;
}

/// What a node says of itself.
#[derive(Clone, Debug)]
pub struct Standing {
    /// This run of the server, and no other.
    pub run: String,
    /// How long it has been running, by its own account.
    pub up: Duration,
    /// Whether everything it has said yes to survives a crash.
    pub durable: bool,
    /// Whether this run has been told the others' counters.
    pub joined: bool,
    /// The highest number it has given, if it remembers any.
    pub counter: Option<u64>,
}

/// What a node says of a claim that was to be confirmed.
#[derive(Clone, Debug, PartialEq)]
pub enum Confirmed {
    /// Held here, for another ttl, under a number that was drawn just now.
    Held(Fence),
    /// In line here, behind this holder.
    Waiting {
        held_for: Option<Duration>,
        holder: String,
    },
    /// Neither.
    Gone,
}
