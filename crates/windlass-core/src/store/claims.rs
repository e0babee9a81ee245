//! Claims: locks, semaphores, read-write locks, elections, barriers and the leases of `once`.
//!
//! All of them are one mechanism, which this page defines.
//!
//! - A **claim** is what one [owner](Owner) has on one name: it either *holds* a part of the name's
//!   pool, or *waits* for one in the queue. A claim lives for its **TTL**, and longer only by being
//!   renewed. A claim whose TTL has passed is **expired** and counts for nothing; the next decision
//!   on the name removes it. A **lease** is a held claim as its owner sees it.
//! - The **pool** of a name has a **size**. Each claim has a **weight**, and the weights of the
//!   living holders add up to the size at most:
//!
//!   | kind | size | weight of a claim |
//!   |---|---|---|
//!   | lock, election, `once` | 1 | 1 |
//!   | semaphore | its permits | the permits requested |
//!   | read-write lock | [`MAX_READERS`] | 1 for a reader, all for the writer |
//!   | barrier | its parties | 1 |
//!
//!   The first request states the size, and the store keeps it for as long as the name is in use.
//!   For a semaphore, where callers could disagree, the store keeps it for a day [after the last
//!   request](Kind::size_retention).
//! - Waiting claims form the **queue** of the name: first come, first served. Its head is granted
//!   as soon as its weight fits, in the same decision that frees the weight (release, expiry,
//!   resize), and its client is woken. A request with [`Order::Barging`] may overtake the queue.
//! - A **fence** (fencing token) is a number that each grant of a name carries, higher than that of
//!   every grant before. A resource that has seen a fence rejects lower ones, which stops a holder
//!   that was paused past its TTL.
//! - A **ticket** is the number that a waiter takes when it joins the queue, from the same counter.
//!   Tickets order the queue, and the ticket becomes the fence of the grant, unless a barging claim
//!   was granted a higher fence meanwhile: then the waiter takes the next fence.
//! - A [`WakeAddress`] identifies a claim of a client. It routes the wake-up, and tells apart two
//!   claims that the same owner made one after the other.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use super::{Acknowledged, Holder, Occupancy, Pending, Replicas, WakeAddress};
use crate::error::{Error, ErrorKind, Result};
use crate::name::Name;
use crate::{Fence, Owner};

/// The primitive that a claim belongs to. Names are per kind: a lock and a semaphore may have the
/// same name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "lowercase"))]
pub enum Kind {
    /// A mutual-exclusion lock: one holder.
    Lock,
    /// A number of permits.
    #[cfg_attr(feature = "serde", serde(rename = "sem"))]
    Semaphore,
    /// A read-write lock: many readers, or one writer.
    #[cfg_attr(feature = "serde", serde(rename = "rw"))]
    ReadWrite,
    /// A leader election: one leader, which observers can see.
    #[cfg_attr(feature = "serde", serde(rename = "elect"))]
    Election,
    /// A barrier: parties that arrive and leave together.
    Barrier,
    /// The lease of an idempotent execution (`once`).
    Once,
}

impl Kind {
    /// All kinds.
    pub const ALL: [Kind; 6] = [
        Kind::Lock,
        Kind::Semaphore,
        Kind::ReadWrite,
        Kind::Election,
        Kind::Barrier,
        Kind::Once,
    ];

    /// Its name in stored keys, tables and JSON.
    pub const fn word(self) -> &'static str {
        match self {
            Kind::Lock => "lock",
            Kind::Semaphore => "sem",
            Kind::ReadWrite => "rw",
            Kind::Election => "elect",
            Kind::Barrier => "barrier",
            Kind::Once => "once",
        }
    }

    /// Whether subscribers are notified when its holders change: elections have observers, and the
    /// parties of a barrier wait for each other.
    pub const fn is_watched(self) -> bool {
        matches!(self, Kind::Election | Kind::Barrier)
    }

    /// How long the size is kept after the last request. Long where callers choose it, so that a
    /// disagreement does not go unnoticed.
    pub const fn size_retention(self) -> Duration {
        match self {
            Kind::Semaphore => Duration::from_secs(24 * 60 * 60),
            _ => Duration::ZERO,
        }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.word())
    }
}

/// The size of a read-write lock: the most readers that can hold it at once, and the weight of the
/// writer.
pub const MAX_READERS: u32 = 1_000_000;

/// Stores claims. Each call is one atomic decision; see the [module](self) for the terms.
pub trait ClaimStore: Send + Sync + fmt::Debug {
    /// Grants the claim, reports the holder, or enqueues the claim.
    ///
    /// A second request of the same owner keeps what the owner has: its grant (renewed, with the
    /// same fence) or its ticket. So a request whose reply was lost can be repeated. A store that
    /// records a claim only with its first renewal may not know the fence of an unrecorded grant:
    /// it then serves the queue first, and grants again with a higher fence.
    fn acquire(&self, request: AcquireRequest) -> Pending<'_, Acquired>;

    /// Grants several free locks at once, or none of them. Never enqueues.
    fn acquire_all(&self, requests: Vec<AcquireRequest>) -> Pending<'_, AcquiredAll>;

    /// Renews many claims, held or waiting. Returns one answer for each, in order.
    fn renew(&self, claims: Vec<Renewal>) -> Pending<'_, Vec<Result<Renewed>>>;

    /// Releases the owner's claim, held or waiting, and grants the freed weight to the queue in the
    /// same decision.
    ///
    /// With a `claim`, does nothing if a later claim of the same owner has replaced that one.
    fn release(
        &self,
        kind: Kind,
        name: Name,
        owner: Owner,
        claim: Option<WakeAddress>,
    ) -> Pending<'static, Released>;

    /// As [`release`](ClaimStore::release), for an owner that can have no other claim, whose only
    /// request was granted at once without a record, and which has never sent a renewal: the store
    /// need not look for a record.
    fn release_unrecorded(
        &self,
        kind: Kind,
        name: Name,
        owner: Owner,
    ) -> Pending<'static, Released> {
        self.release(kind, name, owner, None)
    }

    /// Reduces the weight of a held claim, and grants the freed weight to the queue. False if
    /// `owner` does not hold it.
    fn shrink(
        &self,
        kind: Kind,
        name: Name,
        owner: Owner,
        claim: WakeAddress,
        weight: u32,
    ) -> Pending<'_, bool>;

    /// Sets the size of the pool, and grants the added weight to the queue. No holder loses its
    /// claim. Returns the size before, if it was known.
    fn resize(&self, kind: Kind, name: Name, size: u32) -> Pending<'_, Option<u32>>;

    /// Waits until as many replicas as `wanted` have acknowledged the owner's grant. Returns how
    /// many did.
    fn acknowledged(
        &self,
        _kind: Kind,
        _name: Name,
        _owner: Owner,
        _wanted: Replicas,
    ) -> Pending<'_, Acknowledged> {
        let error = Error::new(
            ErrorKind::Unsupported,
            "wait for replicas",
            "this store has no replicas to wait for",
        );
        let error = error.with_hint("leave replicas(…) out: this store does not need it");
        Box::pin(async move { Err(error) })
    }

    /// Whether a decision is taken, and cannot fail, as soon as its method is called: what it
    /// returns need not be awaited.
    fn decides_immediately(&self) -> bool {
        false
    }

    /// A reply is overdue: the next request should not wait for the same connection. Returns the
    /// reason, if the store knows it.
    fn reply_is_overdue(&self) -> Option<Error> {
        None
    }

    /// The SQL function that checks a lock within a transaction of the user, schema included, if the
    /// store is a database: its arguments are the name and the fence.
    fn sql_check(&self) -> Option<String> {
        None
    }

    /// Reads the state of one name, with up to `most` of its holders. Changes nothing.
    fn inspect(&self, kind: Kind, name: Name, most: usize) -> Pending<'_, Occupancy>;

    /// Up to `most` holders of one name, in the order of their expiry. Unlike
    /// [`inspect`](Self::inspect), it need not look at the queue.
    fn holders(&self, kind: Kind, name: Name, most: usize) -> Pending<'_, Vec<Holder>> {
        Box::pin(async move { Ok(self.inspect(kind, name, most).await?.holders) })
    }

    /// Lists the names of the given kinds that have a holder or waiter and match the pattern (see
    /// [`matches`](super::matches)), each with up to `most` of its holders.
    fn list(
        &self,
        kinds: &'static [Kind],
        pattern: String,
        most: usize,
    ) -> Pending<'_, Vec<Occupancy>>;

    /// Takes a lock from its holder, and grants it to the queue. Returns the former holder.
    fn break_lock(&self, name: Name) -> Pending<'_, Option<Holder>>;
}

/// A request for a claim.
#[derive(Clone, Debug)]
pub struct AcquireRequest {
    /// The primitive.
    pub kind: Kind,
    /// The name of the lock, semaphore, ….
    pub name: Name,
    /// Who will hold the claim.
    pub owner: Owner,
    /// How much of which pool, and in which order.
    pub share: Share,
    /// How long the claim lives without being renewed.
    pub ttl: Duration,
    /// What to do if it cannot be granted at once.
    pub on_busy: OnBusy,
    /// Text that inspection shows.
    pub note: Option<Arc<str>>,
    /// Give a lock of another library that has no expiry one of this TTL, so that it ends.
    pub heal_missing_ttl: bool,
    /// Store everything that inspection shows at once: no renewal will add it soon.
    pub record_now: bool,
    /// Whether this repeats an earlier request of the same claim, which the store may have
    /// received.
    pub again: bool,
    /// Whether the claim will be renewed for as long as it is held. If not, it must expire by
    /// itself, even in a store where the claims of a client share one session or lease.
    pub renewed: bool,
    /// Where to send the wake-up when the claim is granted.
    pub wake: WakeAddress,
}

impl AcquireRequest {
    /// Asks for the only share, for 30 seconds, and does not wait. Callers set what differs.
    pub fn new(kind: Kind, name: Name, owner: Owner) -> AcquireRequest {
        AcquireRequest {
            kind,
            name,
            owner,
            share: Share::ONLY,
            ttl: Duration::from_secs(30),
            on_busy: OnBusy::Return,
            note: None,
            heal_missing_ttl: false,
            record_now: false,
            again: false,
            renewed: true,
            wake: WakeAddress::default(),
        }
    }
}

/// How much of a pool a claim takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Share {
    /// The part of the size that it takes.
    pub weight: u32,
    /// The size of the pool, as the client states it.
    pub size: u32,
    /// What to do if the store has another size.
    pub on_size_mismatch: OnSizeMismatch,
    /// Whether the claim waits its turn.
    pub order: Order,
}

impl Share {
    /// The whole of a pool of size 1.
    pub const ONLY: Share = Share {
        weight: 1,
        size: 1,
        on_size_mismatch: OnSizeMismatch::Refuse,
        order: Order::Fifo,
    };
}

/// What a store does if its size is not the one that the client states.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnSizeMismatch {
    /// Refuse: one of the clients is misconfigured.
    Refuse,
    /// Use the stored size.
    Adopt,
}

/// In which order claims are granted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Order {
    /// First come, first served: a claim that arrives while others wait joins the end of the queue.
    #[default]
    Fifo,
    /// A claim that fits is granted on arrival, even if others wait (for more weight). The queue
    /// keeps its order, but a heavy waiter may starve.
    Barging,
}

/// What a store does with a request that cannot be granted at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnBusy {
    /// Return [`Acquired::Busy`].
    Return,
    /// Enqueue the claim.
    Enqueue,
}

/// The outcome of an [`AcquireRequest`].
#[derive(Clone, Debug, PartialEq)]
pub enum Acquired {
    /// The claim is held.
    Granted {
        /// The fence of this grant.
        fence: Fence,
        /// Whether inspection already shows the whole claim. If not, the first renewal adds the
        /// rest and should come soon.
        recorded: bool,
    },
    /// The claim waits in the queue.
    Queued {
        /// Its ticket: the fence that the grant will have, unless a barging claim overtakes.
        ticket: Fence,
        /// When the waiter should check by itself: when the first of the current holders' claims
        /// expires, or sooner if a holder may leave without a wake-up. `None` if never.
        recheck_after: Option<Duration>,
    },
    /// Not granted and not enqueued. Names the holder whose claim expires first.
    Busy(Holder),
    /// It can never be granted as requested.
    Refused(Refusal),
}

/// Why a request can never be granted as it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// The pool has another size than the request states.
    OtherSize {
        /// The stored size.
        stored: u32,
    },
    /// The weight is larger than the pool.
    TooHeavy {
        /// The stored size.
        stored: u32,
    },
    /// The same owner has a claim of another weight.
    OtherWeight {
        /// The weight of that claim.
        claimed: u32,
    },
}

/// The outcome of a request for several locks.
#[derive(Clone, Debug, PartialEq)]
pub enum AcquiredAll {
    /// All are held, with these fences, in the order of the request.
    Granted(Vec<Fence>),
    /// None is held, because this one is not free.
    Busy {
        /// Its index in the request.
        which: usize,
        /// Its holder, if known.
        holder: Option<Holder>,
    },
    /// The store cannot decide on these in one step: acquire them one after the other.
    OneByOne,
}

/// A claim to renew.
#[derive(Clone, Debug)]
pub struct Renewal {
    /// The primitive.
    pub kind: Kind,
    /// The name of the lock, semaphore, ….
    pub name: Name,
    /// The owner of the claim.
    pub owner: Owner,
    /// Its fence, or its ticket.
    pub fence: Fence,
    /// How long it lives from now on.
    pub ttl: Duration,
    /// How long it has been held, which inspection shows.
    pub age: Duration,
    /// Text that inspection shows.
    pub note: Option<Arc<str>>,
    /// Where to send the wake-up when the claim is granted.
    pub wake: WakeAddress,
    /// What to do if another claim of the same owner is found.
    pub same_owner: SameOwner,
    /// The stored details of the claim are missing or out of date: write all of them.
    pub rewrite_details: bool,
    /// Whether it will be renewed again: see [`AcquireRequest::renewed`].
    pub renewed: bool,
}

impl Renewal {
    /// Renews the claim that `request` made and that has this fence or ticket.
    pub fn of(request: &AcquireRequest, fence: Fence) -> Renewal {
        Renewal {
            kind: request.kind,
            name: request.name.clone(),
            owner: request.owner.clone(),
            fence,
            ttl: request.ttl,
            age: Duration::ZERO,
            note: request.note.clone(),
            wake: request.wake,
            same_owner: SameOwner::Impossible,
            rewrite_details: false,
            renewed: request.renewed,
        }
    }
}

/// What a renewal does if the store has a later claim of the same owner. A restarted job takes its
/// lock back under the same owner, and the remains of the earlier process must not disturb it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SameOwner {
    /// The owner is random, so there is no other claim.
    Impossible,
    /// Leave the other claim alone; this one is gone.
    Respect,
    /// Take over the other claim's grant or ticket.
    Replace,
}

/// The outcome of a [`Renewal`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Renewed {
    /// Held, for another TTL.
    Held {
        /// The fence; higher than the ticket was, if a barging claim overtook.
        fence: Fence,
    },
    /// Still in the queue.
    Waiting {
        /// When the waiter should check by itself: when the first of the current holders' claims
        /// expires, or sooner if a holder may leave without a wake-up. `None` if never.
        recheck_after: Option<Duration>,
    },
    /// Neither held nor waiting: expired, broken or released.
    Gone,
}

/// The outcome of a release.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "a claim that was lost before its release did not protect the work"]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "kebab-case"))]
pub enum Released {
    /// The claim was held until now.
    WasHeld,
    /// The claim was waiting, and has left the queue.
    WasWaiting,
    /// There was no such claim: it had expired, or was broken.
    WasGone,
}

impl Released {
    /// Whether the claim was held until it was released.
    pub fn was_held(self) -> bool {
        self == Released::WasHeld
    }
}
