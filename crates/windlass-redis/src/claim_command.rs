//! Claim commands: how the scripts for locks and pools are called, and what they reply.
//!
//! There are two scripts, one for locks and one for pools, each with a variant for a node of a
//! quorum. All take batches of the same commands; `scripts/lock/prelude.lua` and
//! `scripts/pool/prelude.lua` describe keys and arguments.

mod lock_batch;

use std::sync::Arc;
use std::time::Duration;

use redis::{Cmd, Value};

use super::batch::{BatchedDecision, Batcher};
use super::errors::unexpected_reply;
use super::keys::Keys;
use super::master_epoch::FenceUse;
use super::router::Router;
use super::script::{self, Script};
use super::{bytes, millis, record, time_left};
use windlass_core::error::Result;
use windlass_core::name::Name;
use windlass_core::store::{
    AcquireRequest, Acquired, Holder, Kind, OnBusy, OnSizeMismatch, Order, Refusal, Released,
    Renewal, Renewed, SameOwner, Share, WakeAddress,
};
use windlass_core::{Fence, Owner};

/// One command on one lock or pool.
#[derive(Debug)]
pub(super) struct ClaimCommand {
    kind: Kind,
    name: Name,
    /// `None` for a command that is not about an owner.
    owner: Option<Owner>,
    verb: Verb,
}

#[derive(Debug)]
enum Verb {
    Acquire(ClaimFields, Share),
    Renew(ClaimFields),
    /// Only on a node of a quorum.
    Confirm(ClaimFields),
    /// Only on a node of a quorum.
    Requeue(ClaimFields),
    Release(ReleasedClaim),
    /// Only on pools.
    Shrink {
        address: String,
        weight: u32,
    },
    /// Only on pools.
    Resize {
        size: u32,
    },
    /// Only on locks.
    Break,
}

/// Which claim of its owner a release is about.
#[derive(Debug)]
pub(super) enum ReleasedClaim {
    /// The one at this address: a later claim may have replaced it.
    At(String),
    /// The only one, because no other claim can have this owner.
    Only,
    /// The only one. It was granted at once, and no record of it can exist: it has not been renewed.
    Unrecorded,
}

impl ReleasedClaim {
    pub(super) fn new(claim: Option<WakeAddress>, channel: &str) -> ReleasedClaim {
        match claim {
            Some(claim) => ReleasedClaim::At(record::address(channel, claim)),
            None => ReleasedClaim::Only,
        }
    }

    /// As scripts take it: empty if no other claim can have this owner.
    fn address(&self) -> &str {
        match self {
            ReleasedClaim::At(address) => address,
            ReleasedClaim::Only | ReleasedClaim::Unrecorded => "",
        }
    }
}

/// What the client says about its claim.
#[derive(Debug)]
struct ClaimFields {
    ttl_ms: u64,
    flags: Flags,
    /// Its fence or ticket; for a requeue, the number that the node gave it last.
    fence: Fence,
    age_ms: u64,
    /// Where the client is notified of its grant.
    channel: Arc<str>,
    wake: WakeAddress,
    note: Option<Arc<str>>,
    /// The number that a quorum would like.
    proposal: Option<Fence>,
}

impl ClaimFields {
    /// No argument if there is none.
    fn proposal(&self) -> Option<u64> {
        self.proposal.map(Fence::get)
    }

    /// What follows the numbers in the claim's record.
    fn tail(&self) -> String {
        record::tail(&self.channel, self.wake, self.note.as_deref())
    }
}

/// Letters that scripts understand.
#[derive(Clone, Copy, Debug, Default)]
struct Flags {
    letters: [u8; Flags::MOST],
    count: usize,
}

impl Flags {
    const MOST: usize = 5;

    fn of<const N: usize>(flags: [(u8, bool); N]) -> Flags {
        const { assert!(N <= Flags::MOST) };
        let mut found = Flags::default();
        for (letter, _) in flags.into_iter().filter(|(_, is_set)| *is_set) {
            found.letters[found.count] = letter;
            found.count += 1;
        }
        found
    }

    fn letters(&self) -> &[u8] {
        &self.letters[..self.count]
    }
}

impl ClaimCommand {
    fn new(kind: Kind, name: Name, owner: Option<Owner>, verb: Verb) -> ClaimCommand {
        ClaimCommand {
            kind,
            name,
            owner,
            verb,
        }
    }

    /// `channel` is where the client is notified of its grant.
    pub(super) fn acquire(
        request: AcquireRequest,
        channel: &Arc<str>,
        proposal: Option<Fence>,
    ) -> ClaimCommand {
        let (is_lock, share) = (request.kind == Kind::Lock, request.share);
        let adopts = share.on_size_mismatch == OnSizeMismatch::Adopt;
        let claim = ClaimFields {
            ttl_ms: millis(request.ttl),
            flags: Flags::of([
                (b'q', request.on_busy == OnBusy::Enqueue),
                (b'r', request.record_now),
                (b'h', is_lock && request.heal_missing_ttl),
                (b'b', !is_lock && share.order == Order::Barging),
                (b'a', !is_lock && adopts),
            ]),
            fence: Fence::new(0),
            age_ms: 0,
            channel: Arc::clone(channel),
            wake: request.wake,
            note: request.note,
            // A request for a share of a pool takes what the node gives.
            proposal: proposal.filter(|_| is_lock),
        };
        let verb = Verb::Acquire(claim, share);
        ClaimCommand::new(request.kind, request.name, Some(request.owner), verb)
    }

    pub(super) fn renew(claim: Renewal, channel: &Arc<str>) -> ClaimCommand {
        ClaimCommand::about(claim, channel, None, Verb::Renew)
    }

    /// Renews, and takes a number if the claim is held.
    pub(super) fn confirm(claim: Renewal, channel: &Arc<str>, proposal: Fence) -> ClaimCommand {
        ClaimCommand::about(claim, channel, Some(proposal), Verb::Confirm)
    }

    /// Gives up what is held under the claim's number, and goes to the end of the queue.
    pub(super) fn requeue(claim: Renewal, channel: &Arc<str>, proposal: Fence) -> ClaimCommand {
        ClaimCommand::about(claim, channel, Some(proposal), Verb::Requeue)
    }

    fn about(
        claim: Renewal,
        channel: &Arc<str>,
        proposal: Option<Fence>,
        verb: fn(ClaimFields) -> Verb,
    ) -> ClaimCommand {
        let replaces = claim.same_owner == SameOwner::Replace;
        let flags = Flags::of([
            (b'=', claim.same_owner == SameOwner::Respect),
            (b'!', replaces || claim.rewrite_details),
        ]);
        let fields = ClaimFields {
            ttl_ms: millis(claim.ttl),
            flags,
            fence: claim.fence,
            age_ms: u64::try_from(claim.age.as_millis()).unwrap_or(u64::MAX),
            channel: Arc::clone(channel),
            wake: claim.wake,
            note: claim.note,
            proposal,
        };
        ClaimCommand::new(claim.kind, claim.name, Some(claim.owner), verb(fields))
    }

    pub(super) fn release(
        kind: Kind,
        name: Name,
        owner: Owner,
        claim: ReleasedClaim,
    ) -> ClaimCommand {
        ClaimCommand::new(kind, name, Some(owner), Verb::Release(claim))
    }

    pub(super) fn shrink(
        kind: Kind,
        name: Name,
        owner: Owner,
        address: String,
        weight: u32,
    ) -> ClaimCommand {
        ClaimCommand::new(kind, name, Some(owner), Verb::Shrink { address, weight })
    }

    pub(super) fn resize(kind: Kind, name: Name, size: u32) -> ClaimCommand {
        ClaimCommand::new(kind, name, None, Verb::Resize { size })
    }

    pub(super) fn break_lock(name: Name) -> ClaimCommand {
        ClaimCommand::new(Kind::Lock, name, None, Verb::Break)
    }

    /// For the script for pools.
    fn write_arguments(&self, command: &mut Cmd) {
        command.arg(match self.verb {
            Verb::Acquire(..) => "acquire",
            Verb::Renew(_) => "renew",
            Verb::Confirm(_) => "confirm",
            Verb::Requeue(_) => "requeue",
            Verb::Release(_) => "release",
            Verb::Shrink { .. } => "shrink",
            Verb::Resize { .. } => "resize",
            Verb::Break => "break_lock",
        });
        command.arg(self.kind.word());
        command.arg(self.owner.as_ref().map_or("", Owner::as_str));
        if let Verb::Acquire(_, share) = &self.verb {
            command.arg(share.weight).arg(share.size);
        }
        self.write_details(command);
    }

    /// What both scripts take behind the owner.
    fn write_details(&self, command: &mut Cmd) {
        match &self.verb {
            Verb::Acquire(claim, _) => {
                command.arg(claim.ttl_ms).arg(claim.flags.letters());
                command.arg(claim.tail()).arg(claim.proposal())
            }
            Verb::Renew(claim) => {
                command.arg(claim.ttl_ms).arg(claim.flags.letters());
                command.arg(claim.fence.get()).arg(claim.age_ms);
                command.arg(claim.tail())
            }
            Verb::Confirm(claim) => {
                command.arg(claim.ttl_ms).arg(claim.flags.letters());
                command.arg(claim.age_ms).arg(claim.tail());
                command.arg(claim.proposal())
            }
            Verb::Requeue(claim) => {
                command.arg(claim.ttl_ms).arg(claim.fence.get());
                command.arg(claim.age_ms).arg(claim.tail());
                command.arg(claim.proposal())
            }
            Verb::Release(claim) => command.arg(claim.address()),
            Verb::Shrink { address, weight } => command.arg(address).arg(*weight),
            Verb::Resize { size } => command.arg(*size),
            Verb::Break => command,
        };
    }
}

impl BatchedDecision for ClaimCommand {
    fn name(&self) -> &Name {
        &self.name
    }

    fn fence_use(&self) -> FenceUse {
        match self.verb {
            Verb::Acquire(..) => FenceUse::Certain,
            _ if self.kind == Kind::Lock => FenceUse::None,
            // For a waiter that was overtaken, when it is granted its share.
            _ => FenceUse::Possible,
        }
    }

    fn command<'a>(
        script: &Script,
        batch: impl ExactSizeIterator<Item = &'a ClaimCommand> + Clone,
        keys: &Keys,
        fence_counter: &str,
    ) -> Cmd {
        let is_lock = |claim: &ClaimCommand| claim.kind == Kind::Lock;
        if batch.clone().next().is_some_and(is_lock) {
            return lock_batch::command(script, batch, keys, fence_counter);
        }
        let mut command = redis::cmd("EVALSHA");
        command.arg(script.digest());
        command.arg(1 + 3 * batch.len()).arg(fence_counter);
        for claim in batch.clone() {
            command.arg(&keys.pool(claim.kind, &claim.name));
        }
        command.arg(fences(batch.clone()));
        for claim in batch {
            claim.write_arguments(&mut command);
        }
        command
    }
}

/// How many fences a batch may need.
fn fences<'a>(batch: impl Iterator<Item = &'a ClaimCommand>) -> usize {
    batch
        .filter(|claim| matches!(claim.verb, Verb::Acquire(..)))
        .count()
}

/// The claim commands of one client that are on their way to the scripts, in batches.
#[derive(Clone, Debug)]
pub(super) struct ClaimBatchers {
    locks: Batcher<ClaimCommand>,
    pools: Batcher<ClaimCommand>,
}

impl ClaimBatchers {
    pub(super) fn start(router: &Arc<Router>) -> ClaimBatchers {
        ClaimBatchers {
            locks: Batcher::start(Arc::clone(router), &script::LOCK),
            pools: Batcher::start(Arc::clone(router), &script::POOL),
        }
    }

    /// A quorum decides for itself whether a node may have lost its counter: no fence is checked
    /// here.
    pub(super) fn start_on_quorum_node(router: &Arc<Router>) -> ClaimBatchers {
        let start = |script| Batcher::start_without_fence_check(Arc::clone(router), script);
        ClaimBatchers {
            locks: start(&script::QUORUM_NODE_LOCK),
            pools: start(&script::QUORUM_NODE_POOL),
        }
    }

    fn of(&self, kind: Kind) -> &Batcher<ClaimCommand> {
        match kind {
            Kind::Lock => &self.locks,
            _ => &self.pools,
        }
    }

    /// Sends the request of [`ClaimCommand::acquire`], and decodes the reply.
    pub(super) fn acquire(
        &self,
        request: AcquireRequest,
        channel: &Arc<str>,
        proposal: Option<Fence>,
    ) -> impl Future<Output = Result<Acquired>> + use<> {
        let recorded = is_recorded(&request);
        let reply = self.decide(ClaimCommand::acquire(request, channel, proposal));
        async move { reply.await?.acquired(recorded) }
    }

    /// Sends a command at once if nothing else is under way, otherwise in a batch.
    pub(super) fn decide(
        &self,
        command: ClaimCommand,
    ) -> impl Future<Output = Result<ClaimReply>> + use<> {
        let kind = command.kind;
        let reply = self.of(kind).decide(command);
        async move { ClaimReply::decode(kind, reply.await?) }
    }

    /// Sends a command in a batch: it joins the batch when this is called, not when the reply is
    /// awaited.
    pub(super) fn collect(
        &self,
        command: ClaimCommand,
    ) -> impl Future<Output = Result<ClaimReply>> + use<> {
        let kind = command.kind;
        let reply = self.of(kind).collect(command);
        async move { ClaimReply::decode(kind, reply.await?) }
    }
}

/// Whether the script writes the record of a grant at once. It always does for a share that weighs
/// more than one, as others must know how much a release frees.
pub(super) fn is_recorded(request: &AcquireRequest) -> bool {
    request.record_now || (request.kind != Kind::Lock && request.share.weight > 1)
}

/// What a script replies to a claim command.
#[derive(Debug, PartialEq)]
pub(super) enum ClaimReply {
    /// A fence, a size, or what was found; by the command.
    Number(i64),
    Queued {
        ticket: Fence,
        recheck_after: Option<Duration>,
    },
    Busy(Holder),
    Refused(Refusal),
    Held(Fence),
    Waiting {
        recheck_after: Option<Duration>,
        /// Only from a node of a quorum.
        holder: Option<String>,
    },
    Broken(Option<Holder>),
}

impl ClaimReply {
    pub(super) fn decode(kind: Kind, reply: Value) -> Result<ClaimReply> {
        if let Value::Int(number) = reply {
            return Ok(ClaimReply::Number(number));
        }
        ClaimReply::decode_parts(kind, &reply).ok_or_else(|| unexpected_reply(&reply))
    }

    fn decode_parts(kind: Kind, reply: &Value) -> Option<ClaimReply> {
        let Value::Array(parts) = reply else {
            return None;
        };
        let (tag, parts) = parts.split_first()?;
        let fence = |number: i64| Fence::new(number as u64);
        let refused = |refusal| Some(ClaimReply::Refused(refusal));
        match (bytes(tag)?, parts) {
            (b"queued", [Value::Int(ticket), Value::Int(left)]) => Some(ClaimReply::Queued {
                ticket: fence(*ticket),
                recheck_after: time_left(*left),
            }),
            (b"busy", holder) => record::holder(kind, holder)?.map(ClaimReply::Busy),
            (b"other_size", [Value::Int(size)]) => refused(Refusal::OtherSize {
                stored: *size as u32,
            }),
            (b"too_heavy", [Value::Int(size)]) => refused(Refusal::TooHeavy {
                stored: *size as u32,
            }),
            (b"other_weight", [Value::Int(weight)]) => refused(Refusal::OtherWeight {
                claimed: *weight as u32,
            }),
            (b"held", [Value::Int(number)]) => Some(ClaimReply::Held(fence(*number))),
            (b"waiting", [Value::Int(left), holder @ ..]) => Some(ClaimReply::Waiting {
                recheck_after: time_left(*left),
                holder: holder
                    .first()
                    .and_then(bytes)
                    .map(|owner| String::from_utf8_lossy(owner).into_owned()),
            }),
            (b"broken", holder) => record::holder(kind, holder).map(ClaimReply::Broken),
            _ => None,
        }
    }

    /// `recorded` says whether a grant has its record already.
    pub(super) fn acquired(self, recorded: bool) -> Result<Acquired> {
        match self {
            ClaimReply::Number(fence) if fence > 0 => Ok(Acquired::Granted {
                fence: Fence::new(fence as u64),
                recorded,
            }),
            ClaimReply::Queued {
                ticket,
                recheck_after,
            } => Ok(Acquired::Queued {
                ticket,
                recheck_after,
            }),
            ClaimReply::Busy(holder) => Ok(Acquired::Busy(holder)),
            ClaimReply::Refused(refusal) => Ok(Acquired::Refused(refusal)),
            other => Err(unexpected_reply(&other)),
        }
    }

    /// `fence` is what the client has: the script for locks does not repeat it.
    pub(super) fn renewed(self, fence: Fence) -> Result<Renewed> {
        match self {
            ClaimReply::Number(1) => Ok(Renewed::Held { fence }),
            ClaimReply::Held(fence) => Ok(Renewed::Held { fence }),
            ClaimReply::Waiting { recheck_after, .. } => Ok(Renewed::Waiting { recheck_after }),
            ClaimReply::Number(0) => Ok(Renewed::Gone),
            other => Err(unexpected_reply(&other)),
        }
    }

    pub(super) fn released(self) -> Result<Released> {
        match self {
            ClaimReply::Number(1) => Ok(Released::WasHeld),
            ClaimReply::Number(2) => Ok(Released::WasWaiting),
            ClaimReply::Number(0) => Ok(Released::WasGone),
            other => Err(unexpected_reply(&other)),
        }
    }

    /// Of a lock that was broken.
    pub(super) fn former_holder(self) -> Result<Option<Holder>> {
        match self {
            ClaimReply::Broken(holder) => Ok(holder),
            other => Err(unexpected_reply(&other)),
        }
    }

    /// Whether it was done.
    pub(super) fn done(self) -> Result<bool> {
        match self {
            ClaimReply::Number(done @ 0..=1) => Ok(done == 1),
            other => Err(unexpected_reply(&other)),
        }
    }

    /// Of a pool that was resized, if it was known.
    pub(super) fn former_size(self) -> Result<Option<u32>> {
        match self {
            ClaimReply::Number(size) => Ok((size != 0).then_some(size as u32)),
            other => Err(unexpected_reply(&other)),
        }
    }
}

#[cfg(test)]
mod tests;
