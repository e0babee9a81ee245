//! Where state lives: the store traits and the backends behind them.
//!
//! A store answers *whole decisions*, each in one indivisible step; waiting, renewing, retrying
//! and cleaning up are written once, above. No type of a driver crosses these traits.

pub mod counter;
#[cfg(feature = "file")]
pub(crate) mod file;
pub mod limit;
pub(crate) mod memory;
#[cfg(feature = "redis")]
pub(crate) mod redis;
pub mod rules;
pub(crate) mod url;

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use crate::error::Result;
use crate::lease::{Fence, FenceStrength, Owner};
use crate::name::Name;

/// The answer of a store, on its way.
pub type Pending<'a, T> = Pin<Box<dyn Future<Output = Result<T>> + Send + 'a>>;

/// An opened store.
pub trait Backend: Send + Sync + fmt::Debug {
    /// What it is, without credentials: `redis://127.0.0.1:6379/0`.
    fn address(&self) -> &str;

    /// What it can do.
    fn capabilities(&self) -> Capabilities;

    /// Its locks.
    fn locks(&self) -> Arc<dyn LockStore>;

    /// Its gates.
    fn gates(&self) -> Arc<dyn GateStore>;

    /// Its counters.
    fn counters(&self) -> Arc<dyn counter::CounterStore>;

    /// Its limiters.
    fn limits(&self) -> Arc<dyn limit::LimitStore>;

    /// Looks at the store as an operator would.
    fn examine(&self) -> Pending<'_, Vec<Finding>>;
}

/// What a backend is and offers.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Capabilities {
    /// `memory`, `file` or `redis`.
    pub kind: &'static str,
    /// How far fences can be trusted.
    pub fences: FenceStrength,
    /// Who can take part.
    pub reach: &'static str,
    /// What happens to held locks when the store's process or machine ends.
    pub durability: &'static str,
}

/// One line of a doctor's report.
#[derive(Clone, Debug)]
pub struct Finding {
    /// How bad it is.
    pub severity: Severity,
    /// What was looked at: `version`, `persistence`, …
    pub topic: &'static str,
    /// What was found, and what it means for a lock.
    pub message: String,
}

/// How much a [`Finding`] matters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Severity {
    /// Good, or neutral.
    Fine,
    /// Works, with a weakness that the operator should know.
    Warning,
    /// Locks cannot be relied upon.
    Problem,
}

impl Finding {
    pub(crate) fn new(
        severity: Severity,
        topic: &'static str,
        message: impl Into<String>,
    ) -> Finding {
        Finding {
            severity,
            topic,
            message: message.into(),
        }
    }
}

/// Locks: who may act.
pub trait LockStore: Send + Sync + fmt::Debug {
    /// Grants the lock, or says who has it, or puts the caller in line.
    ///
    /// The same owner again keeps what it has: its lock (renewed, same fence) or its place.
    fn acquire(&self, ask: Ask) -> Pending<'_, Acquired>;

    /// Keeps many claims alive, held or waiting. One answer for each, in order.
    fn renew(&self, claims: Vec<Renewal>) -> Pending<'_, Vec<Result<Renewed>>>;

    /// Gives up the lock or the place in line, whichever `owner` has; hands a held lock to the
    /// first living waiter in the same step.
    ///
    /// With a `claim`, only if no later claim of the same owner has taken its place.
    fn release(
        &self,
        name: Name,
        owner: Owner,
        claim: Option<WakeAddress>,
    ) -> Pending<'static, Released>;

    /// An answer is overdue: what is asked next should not have to wait for the same connection.
    fn answer_is_overdue(&self) {}

    /// Looks, and changes nothing.
    fn inspect(&self, name: Name) -> Pending<'_, LockState>;

    /// The locks that are held or waited for, whose name `matches` the pattern (`*` and `?`).
    fn list(&self, pattern: String) -> Pending<'_, Vec<LockState>>;

    /// Takes the lock from whoever has it and hands it on. Tells whose it was.
    fn break_lock(&self, name: Name) -> Pending<'_, Option<Holder>>;
}

/// Gates: what a resource has seen.
pub trait GateStore: Send + Sync + fmt::Debug {
    /// Admits `fence` unless a higher one was admitted within `remember`.
    fn admit(&self, name: Name, fence: Fence, remember: Duration) -> Pending<'_, Admission>;
}

/// A request for a lock.
#[derive(Clone, Debug)]
pub struct Ask {
    /// Which lock.
    pub name: Name,
    /// Who asks.
    pub owner: Owner,
    /// How long the claim lives without being renewed.
    pub ttl: Duration,
    /// What to do when the lock is held.
    pub if_held: IfHeld,
    /// Shown to others while held.
    pub note: Option<Arc<str>>,
    /// Give a foreign key without expiry one, so that it ends.
    pub heal_missing_ttl: bool,
    /// Nobody will renew this claim soon, so all that others may ask about it must be stored now.
    pub record_now: bool,
    /// Whom to tell when the lock is handed over.
    pub wake: WakeAddress,
}

/// What a store does with a request for a lock that somebody has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IfHeld {
    /// Say so.
    Answer,
    /// Put the asker in line.
    LineUp,
}

/// Which client, and which of its claims, to wake.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct WakeAddress {
    /// The client: one connected coordinator.
    pub client: u64,
    /// The claim within the client.
    pub claim: u64,
}

/// What became of an [`Ask`].
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
    /// In line. The place is the fence that the grant will have.
    Queued {
        /// The fence to be.
        place: Fence,
        /// When the present holder's claim ends unless renewed; `None` if never.
        held_for: Option<Duration>,
    },
    /// Held by somebody else, and the asker did not want to wait.
    Busy(Holder),
}

/// A claim to keep alive.
#[derive(Clone, Debug)]
pub struct Renewal {
    /// Which lock.
    pub name: Name,
    /// Whose claim.
    pub owner: Owner,
    /// Its fence, or place in line.
    pub fence: Fence,
    /// How long it shall live from now on.
    pub ttl: Duration,
    /// How long it has been held, for others to see.
    pub age: Duration,
    /// Shown to others.
    pub note: Option<Arc<str>>,
    /// Whom to tell when the lock is handed over.
    pub wake: WakeAddress,
    /// Whether another claim of the same owner may be in its place.
    pub same_owner: SameOwner,
    /// What is stored about the claim is missing or out of date, and must be written anew.
    pub write_anew: bool,
}

/// What to do about another claim of the same owner: a restarted job takes its lock back, and what
/// is left of the old one must not disturb it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SameOwner {
    /// There can be none: the owner is random.
    Impossible,
    /// Leave it alone: it came later.
    Respect,
    /// Take its place.
    Replace,
}

/// What a store says of a claim that was to be kept alive.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Renewed {
    /// Held, for another ttl.
    Held,
    /// Still in line.
    Waiting {
        /// When the present holder's claim ends unless renewed; `None` if never.
        held_for: Option<Duration>,
    },
    /// Not the owner's any more: neither held nor in line.
    Gone,
}

/// What a release found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "a lock that was no longer held did not protect the work"]
pub enum Released {
    /// The lock was held until now.
    WasHeld,
    /// The owner was in line, and has left it.
    WasWaiting,
    /// Nothing was there: the claim had expired, or was broken.
    WasGone,
}

impl Released {
    /// Whether the lock was held until it was released.
    pub fn was_held(self) -> bool {
        self == Released::WasHeld
    }
}

/// Who has a lock.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Holder {
    /// The owner; bytes that are not text, as some libraries write them, appear escaped.
    pub owner: String,
    /// The fence, unless the holder is a library that has none.
    pub fence: Option<Fence>,
    /// Time left unless renewed; `None` for a foreign key that never expires.
    pub remaining: Option<Duration>,
    /// How long it has been held, where known.
    pub age: Option<Duration>,
    /// The holder's note.
    pub note: Option<String>,
}

/// What can be seen of a lock from outside.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct LockState {
    /// The name, namespace included.
    pub name: String,
    /// Who has it, if anybody.
    pub holder: Option<Holder>,
    /// How many wait in line.
    pub waiters: u64,
}

/// A gate's answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "a stale write must not go ahead"]
pub enum Admission {
    /// No higher fence was seen.
    Admitted,
    /// A higher fence was seen: the caller's lease is history.
    Stale {
        /// The highest fence seen.
        highest: Fence,
    },
}

impl Admission {
    /// Whether the write may go ahead.
    pub fn is_admitted(self) -> bool {
        self == Admission::Admitted
    }
}

/// Where a backend reports what nobody asked for just then.
pub trait WakeUps: Send + Sync {
    /// The claim was given the lock. Without proof (`None`), the claim must ask.
    fn granted(&self, claim: u64, fence: Option<Fence>);

    /// Wake-ups may have been missed: every waiter should ask.
    fn missed(&self);
}

/// Whether `name` matches `pattern`, where `*` stands for any text and `?` for one character.
pub(crate) fn matches(pattern: &str, name: &str) -> bool {
    let (pattern, name): (Vec<char>, Vec<char>) =
        (pattern.chars().collect(), name.chars().collect());
    let (mut p, mut n) = (0, 0);
    let mut star: Option<(usize, usize)> = None;
    while n < name.len() {
        if p < pattern.len() && pattern[p] == '*' {
            star = Some((p, n));
            p += 1;
        } else if p < pattern.len() && (pattern[p] == '?' || pattern[p] == name[n]) {
            p += 1;
            n += 1;
        } else if let Some((star_p, star_n)) = star {
            p = star_p + 1;
            n = star_n + 1;
            star = Some((star_p, star_n + 1));
        } else {
            return false;
        }
    }
    pattern[p..].iter().all(|&c| c == '*')
}

#[cfg(test)]
mod tests {
    use super::matches;

    #[test]
    fn patterns() {
        assert!(matches("*", ""));
        assert!(matches("*", "anything"));
        assert!(matches("job/*", "job/1"));
        assert!(matches("*/1", "job/1"));
        assert!(matches("j?b/*/x", "job/a/b/x"));
        assert!(!matches("j?b", "jb"));
        assert!(!matches("job", "job/1"));
        assert!(matches("a*b*c", "a1b2b3c"));
        assert!(matches("[x]", "[x]"), "brackets mean themselves");
    }
}
