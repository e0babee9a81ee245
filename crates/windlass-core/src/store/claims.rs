//! Claims: who holds a share of something, and who waits for one.
//!
//! A lock has pool for one. A semaphore has pool for as many as its size says. A read-write lock has
//! pool for many readers or for one writer, who takes all of it. An election has pool for one leader,
//! and a barrier for its parties. So all of them are one kind of store.

use std::fmt;
use std::sync::{Arc, Weak};
use std::time::Duration;

use super::{Acknowledged, Pending, Replicas};
use crate::error::{Error, ErrorKind, Result};
use crate::name::Name;
use crate::{Fence, Owner};

/// Which primitive a name is the name of: a lock and a semaphore may share one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Kind {
    /// One holder.
    Lock,
    /// So many permits.
    Semaphore,
    /// Many readers, or one writer.
    ReadWrite,
    /// One leader, whom all can see.
    Election,
    /// Parties that come and go together.
    Barrier,
    /// One who does what is to be done once.
    Once,
}

impl Kind {
    /// All there are.
    pub const ALL: [Kind; 6] = [
        Kind::Lock,
        Kind::Semaphore,
        Kind::ReadWrite,
        Kind::Election,
        Kind::Barrier,
        Kind::Once,
    ];

    /// The word for it in keys, tables and answers.
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

    /// Whether a change of holders is notification for those who watch without waiting in queue.
    pub const fn is_watched(self) -> bool {
        matches!(self, Kind::Election | Kind::Barrier)
    }

    /// How long the size is remembered after the last request: long where callers name it, so that
    /// they cannot disagree unnoticed.
    pub const fn remember_size(self) -> Duration {
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

/// The most readers that hold a read-write lock at once. A writer's claim weighs as much as all of them.
pub const MAX_READERS: u32 = 1_000_000;

/// Claims: who may act. Each call is one indivisible decision.
pub trait ClaimStore: Send + Sync + fmt::Debug {
    /// Grants the share, or says who is in the way, or puts the caller in queue.
    ///
    /// The same owner again keeps what it has: its share (renewed, same fence) or its ticket.
    fn acquire(&self, ask: AcquireRequest) -> Pending<'_, Acquired>;

    /// Grants several free locks at once, or none. Nobody is put in queue.
    fn acquire_all(&self, asks: Vec<AcquireRequest>) -> Pending<'_, AcquiredAll>;

    /// Keeps many claims alive, held or waiting. One answer for each, in order.
    fn renew(&self, claims: Vec<Renewal>) -> Pending<'_, Vec<Result<Renewed>>>;

    /// Gives up the share or the ticket in queue, whichever `owner` has; hands on what comes free
    /// in the same step.
    ///
    /// With a `claim`, only if no later claim of the same owner has taken its ticket.
    fn release(
        &self,
        kind: Kind,
        name: Name,
        owner: Owner,
        claim: Option<WakeAddress>,
    ) -> Pending<'static, Released>;

    /// Makes a held share smaller, and hands on what comes free. False if `owner` holds none.
    fn shrink(
        &self,
        kind: Kind,
        name: Name,
        owner: Owner,
        claim: WakeAddress,
        weight: u32,
    ) -> Pending<'_, bool>;

    /// Sets the size, whatever it was, and hands on what comes free. Nobody loses a share. Tells what
    /// the size was, if it was known.
    fn resize(&self, kind: Kind, name: Name, size: u32) -> Pending<'_, Option<u32>>;

    /// Waits until as many replicas as `wanted` have acknowledged what `owner` holds. Tells how many
    /// did.
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
        let error = error.with_hint("leave replicas(…) out: its own promises hold without it");
        Box::pin(async move { Err(error) })
    }

    /// An answer is overdue: what is asked next should not have to wait for the same connection.
    fn answer_is_overdue(&self) {}

    /// Looks, and names up to `most` of the holders. Nothing changes but what time has changed
    /// already.
    fn inspect(&self, kind: Kind, name: Name, most: usize) -> Pending<'_, Occupancy>;

    /// All of the given kinds that are held or waited for, and whose name `matches` the pattern (`*`
    /// and `?`), each with up to `most` of its holders.
    fn list(
        &self,
        kinds: &'static [Kind],
        pattern: String,
        most: usize,
    ) -> Pending<'_, Vec<Occupancy>>;

    /// Takes a lock from whoever has it and hands it on. Tells whose it was.
    fn break_lock(&self, name: Name) -> Pending<'_, Option<Holder>>;
}

/// A request for a share.
#[derive(Clone, Debug)]
pub struct AcquireRequest {
    /// Of what.
    pub kind: Kind,
    /// Of which.
    pub name: Name,
    /// Who asks.
    pub owner: Owner,
    /// How much.
    pub share: Share,
    /// How long the claim lives without being renewed.
    pub ttl: Duration,
    /// What to do when there is no pool.
    pub on_busy: OnBusy,
    /// Shown to others while held.
    pub note: Option<Arc<str>>,
    /// Give a foreign key without expiry one, so that it ends.
    pub heal_missing_ttl: bool,
    /// Nobody will renew this claim soon, so all that others may ask about it must be stored now.
    pub record_now: bool,
    /// Whether the same claim has been asked for before, so that something of it may be in the store.
    pub again: bool,
    /// Whether it will be renewed for as long as it is held. One that is not must end by itself, even
    /// where a store ends all claims of a client together.
    pub renewed: bool,
    /// Whom to tell when the share is handed over.
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

/// How much is asked for, out of how much.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Share {
    /// How much of the size it takes.
    pub weight: u32,
    /// The size, as the asker knows it.
    pub size: u32,
    /// What to do if another size is stored.
    pub on_size_mismatch: OnSizeMismatch,
    /// Whether to respect the queue.
    pub order: Order,
}

impl Share {
    /// All of something that has pool for one.
    pub const ONLY: Share = Share {
        weight: 1,
        size: 1,
        on_size_mismatch: OnSizeMismatch::Refuse,
        order: Order::Fifo,
    };
}

/// What a store does when the size is not what the asker says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnSizeMismatch {
    /// Refuse: somebody is misconfigured.
    Refuse,
    /// Go by what is stored.
    Adopt,
}

/// In what order those who wait are served.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Order {
    /// First come, first served: whoever comes while others wait goes behind them.
    #[default]
    Fifo,
    /// Whoever comes while there is pool takes it, even if others wait for more pool. Those who wait
    /// are still served in order, but may wait for ever.
    Barging,
}

/// What a store does with a request when there is no pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnBusy {
    /// Say so.
    Return,
    /// Put the asker in queue.
    Enqueue,
}

/// Which client, and which of its claims, to wake.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct WakeAddress {
    /// The client: one connected coordinator.
    pub client: u64,
    /// The claim within the client.
    pub claim: u64,
}

/// What became of an [`AcquireRequest`].
#[derive(Clone, Debug, PartialEq)]
pub enum Acquired {
    /// It is the asker's.
    Granted {
        /// The fence of this grant.
        fence: Fence,
        /// Whether inspection already shows the whole claim; if not, the first renewal should
        /// come soon.
        recorded: bool,
    },
    /// In queue. The ticket is the fence that the grant will have, unless somebody barges in.
    Queued {
        /// The fence to be.
        ticket: Fence,
        /// When the first of the present holders' claims ends unless renewed; `None` if never. Sooner
        /// if the holder may go without anybody being told.
        held_for: Option<Duration>,
    },
    /// No pool, and the asker did not want to wait. The holder is the one whose claim would end
    /// first.
    Busy(Holder),
    /// It cannot be granted now or later.
    Refused(Refusal),
}

/// Why a share cannot be granted, however long one waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// The size is not what the asker says.
    OtherSize {
        /// What is stored.
        stored: u32,
    },
    /// More is asked for than there is.
    TooHeavy {
        /// What is stored.
        stored: u32,
    },
    /// The same owner has a claim of another weight.
    OtherWeight {
        /// Of this one.
        claimed: u32,
    },
}

/// What became of a request for several locks.
#[derive(Clone, Debug, PartialEq)]
pub enum AcquiredAll {
    /// All are the asker's, with these fences, in the order asked.
    Granted(Vec<Fence>),
    /// None is: this one is held, or waited for.
    Busy {
        /// Its index in the request.
        which: usize,
        /// Who has it.
        holder: Option<Holder>,
    },
    /// The store cannot decide on these in one step: they are to be asked for one after the other.
    Apart,
}

/// A claim to keep alive.
#[derive(Clone, Debug)]
pub struct Renewal {
    /// To what.
    pub kind: Kind,
    /// To which.
    pub name: Name,
    /// Whose claim.
    pub owner: Owner,
    /// Its fence, or ticket in queue.
    pub fence: Fence,
    /// How long it shall live from now on.
    pub ttl: Duration,
    /// How long it has been held, for others to see.
    pub age: Duration,
    /// Shown to others.
    pub note: Option<Arc<str>>,
    /// Whom to tell when the share is handed over.
    pub wake: WakeAddress,
    /// Whether another claim of the same owner may be in its ticket.
    pub same_owner: SameOwner,
    /// What is stored about the claim is missing or out of date, and must be written anew.
    pub write_anew: bool,
    /// Whether it will be renewed again, for as long as it is held: see [`AcquireRequest::renewed`].
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
            write_anew: false,
            renewed: request.renewed,
        }
    }
}

/// What to do about another claim of the same owner: a restarted job takes its lock back, and what
/// is left of the old one must not disturb it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SameOwner {
    /// There can be none: the owner is random.
    Impossible,
    /// Leave it alone: it came later.
    Respect,
    /// Take its ticket.
    Replace,
}

/// What a store says of a claim that was to be kept alive.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Renewed {
    /// Held, for another ttl.
    Held {
        /// Higher than the ticket in queue was, if somebody barged in.
        fence: Fence,
    },
    /// Still in queue.
    Waiting {
        /// When the first of the present holders' claims ends unless renewed; `None` if never. Sooner
        /// if the holder may go without anybody being told.
        held_for: Option<Duration>,
    },
    /// Not the owner's any more: neither held nor in queue.
    Gone,
}

/// What a release found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "what was no longer held did not protect the work"]
pub enum Released {
    /// It was held until now.
    WasHeld,
    /// The owner was in queue, and has left it.
    WasWaiting,
    /// Nothing was there: the claim had expired, or was broken.
    WasGone,
}

impl Released {
    /// Whether it was held until it was released.
    pub fn was_held(self) -> bool {
        self == Released::WasHeld
    }
}

/// Who has a lock, or a share of something.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Holder {
    /// The owner; bytes that are not text, as some libraries write them, appear escaped.
    pub owner: String,
    /// The fence, unless the holder is a library that has none.
    pub fence: Option<Fence>,
    /// How much of the size it takes: 1 for a lock.
    pub weight: u32,
    /// Time left unless renewed; `None` for a foreign key that never expires.
    pub remaining: Option<Duration>,
    /// How long it has been held, where known.
    pub age: Option<Duration>,
    /// The holder's note.
    pub note: Option<String>,
}

impl Holder {
    /// A holder of weight 1 of which only the owner is known.
    pub fn new(owner: impl Into<String>) -> Holder {
        Holder {
            owner: owner.into(),
            fence: None,
            weight: 1,
            remaining: None,
            age: None,
            note: None,
        }
    }

    /// A holder of which nothing is known.
    pub fn unknown() -> Holder {
        Holder::new("somebody else")
    }
}

/// What can be seen from outside of anything that is claimed.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Occupancy {
    /// What it is.
    pub kind: Kind,
    /// Its name; a store includes the namespace.
    pub name: String,
    /// How much pool there is in all; 0 if that is not known, because nobody has asked for any lately.
    pub size: u32,
    /// How much of it is taken.
    pub used: u64,
    /// How many wait in queue.
    pub waiters: u64,
    /// The holders, those first whose claims would end first; maybe not all of them.
    pub holders: Vec<Holder>,
    /// For a barrier: since all parties have come, and until all have gone, a number that no other
    /// round has.
    pub open: Option<Fence>,
}

impl Occupancy {
    /// Nobody holds it and nobody waits; the size is not known.
    pub fn new(kind: Kind, name: impl Into<String>) -> Occupancy {
        Occupancy {
            kind,
            name: name.into(),
            size: 0,
            used: 0,
            waiters: 0,
            holders: Vec::new(),
            open: None,
        }
    }
}

/// Where a backend reports what nobody asked for just then.
pub trait GrantListener: Send + Sync {
    /// The claim was given its share. Without proof (`None`), the claim must ask.
    fn granted(&self, claim: u64, fence: Option<Fence>);

    /// Wake-ups may have been missed: every waiter should ask.
    fn missed(&self);

    /// Something happened that may have ended the claim, held or waiting: it should ask at once.
    fn doubtful(&self, _claim: u64) {}
}

/// A listener that ignores everything: for a store whose claims nobody waits for.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoListener;

impl NoListener {
    /// What a store is opened with when nothing listens.
    pub fn weak() -> Weak<dyn GrantListener> {
        Weak::<NoListener>::new()
    }
}

impl GrantListener for NoListener {
    fn granted(&self, _claim: u64, _fence: Option<Fence>) {}

    fn missed(&self) {}
}
