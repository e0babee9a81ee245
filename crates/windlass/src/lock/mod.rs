//! The lock: who may act.

mod acquire;
mod guard;
mod retry;

use std::sync::Arc;
use std::time::Duration;

pub use guard::{Detached, LeaseLost, LockGuard};
pub use retry::RetryPolicy;

use crate::backend::{Holder, LockState, Released, Renewed};
use crate::coordinator::Coordinator;
use crate::error::{Error, ErrorKind, Result};
use crate::lease::{Owner, Terms, Undo};
use crate::name::Name;

/// The ttl of a lock unless told otherwise.
pub const DEFAULT_TTL: Duration = Duration::from_secs(30);
/// The shortest ttl.
pub const MIN_TTL: Duration = Duration::from_millis(10);
/// The longest ttl.
pub const MAX_TTL: Duration = Duration::from_secs(365 * 24 * 60 * 60);
/// The longest note, in bytes.
pub const MAX_NOTE_BYTES: usize = 1024;

/// How long to let a fresh claim be recorded before looking a second time.
const RECORDING: Duration = Duration::from_millis(100);

/// A lock to be acquired: its name, and how.
///
/// What is asked for (`Lock`) and what is held ([`LockGuard`]) are different types.
///
/// ```
/// # use std::time::Duration;
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> windlass::Result<()> {
/// let w = windlass::connect("memory:").await?;
/// let guard = w.lock("invoice/42").ttl(Duration::from_secs(10)).acquire().await?;
/// // … send guard.fence() along with every write …
/// assert!(guard.release().await?.was_held());
/// # Ok(()) }
/// ```
///
/// # Guarantees
///
/// - At most one holder at a time, as long as holders stop when told that the lease is lost; beyond
///   that, the [fence](crate::Fence) protects the resource.
/// - First come, first served. A release hands the lock to the first living waiter.
/// - A holder that crashes blocks others for at most one ttl.
///
/// # Re-entry
///
/// A lock is not re-entrant: a task that holds it and acquires it again with a new owner waits for
/// itself. A counter inside one program cannot be kept in step with leases that end by
/// themselves, so it is not offered; pass the guard (or `&LockGuard`) to the code that needs to know
/// the lock is held. With the *same* owner, acquiring again renews.
///
/// # When not to use this
///
/// To count or to limit, a counter or a limiter decides in one step without holding anything. To
/// protect data that lives in one database, that database's own transactions are simpler.
#[derive(Clone, Debug)]
#[must_use = "a lock does nothing until it is acquired"]
pub struct Lock {
    coordinator: Coordinator,
    name: String,
    ttl: Duration,
    wait: Option<Duration>,
    owner: Option<String>,
    retry: RetryPolicy,
    renews: bool,
    max_hold: Option<Duration>,
    note: Option<Arc<str>>,
    heal_missing_ttl: bool,
}

/// What became of an attempt that may be answered with "busy".
#[derive(Debug)]
#[must_use = "the lock may not have been acquired"]
pub enum Attempt {
    /// Held until the guard is released or dropped.
    Acquired(LockGuard),
    /// Somebody else has it; who, where that could still be seen.
    Busy(Option<Holder>),
}

impl Attempt {
    /// The guard, if acquired.
    pub fn acquired(self) -> Option<LockGuard> {
        match self {
            Attempt::Acquired(guard) => Some(guard),
            Attempt::Busy(_) => None,
        }
    }

    /// Whether somebody else has the lock.
    pub fn is_busy(&self) -> bool {
        matches!(self, Attempt::Busy(_))
    }
}

impl Lock {
    pub(crate) fn new(coordinator: Coordinator, name: &str) -> Lock {
        Lock {
            coordinator,
            name: name.to_owned(),
            ttl: DEFAULT_TTL,
            wait: None,
            owner: None,
            retry: RetryPolicy::default(),
            renews: true,
            max_hold: None,
            note: None,
            heal_missing_ttl: false,
        }
    }

    /// How long the claim lives without being renewed: 10 ms to 365 days, 30 s by default.
    ///
    /// It bounds how long a crashed holder blocks others. It does not bound the work: a guard is
    /// renewed at a third of the ttl for as long as it lives.
    pub fn ttl(mut self, ttl: Duration) -> Lock {
        self.ttl = ttl;
        self
    }

    /// The patience of [`acquire`](Lock::acquire); without it, `acquire` waits for ever.
    pub fn wait(mut self, wait: Duration) -> Lock {
        self.wait = Some(wait);
        self
    }

    /// An owner of the caller's choice, so that a restarted job takes its lock back.
    ///
    /// Whoever comes as the same owner takes the lock over, fence included. The one it is taken from
    /// learns of it at its next renewal, up to a third of its ttl later: so only one process may
    /// use an owner at a time.
    pub fn owner(mut self, owner: impl Into<String>) -> Lock {
        self.owner = Some(owner.into());
        self
    }

    /// What to do when the store cannot be reached while acquiring.
    pub fn retry(mut self, policy: RetryPolicy) -> Lock {
        self.retry = policy;
        self
    }

    /// Does not renew: the lock is held for one ttl at most.
    pub fn without_renewal(mut self) -> Lock {
        self.renews = false;
        self
    }

    /// The longest the lock is held in all, renewals included. Then it is lost.
    pub fn max_hold(mut self, cap: Duration) -> Lock {
        self.max_hold = Some(cap);
        self
    }

    /// Free text that others see when they ask who has the lock.
    pub fn note(mut self, note: &str) -> Lock {
        self.note = Some(note.into());
        self
    }

    /// If somebody else's key has no expiry at all (a SETNX client that crashed), gives it ours,
    /// so that it ends.
    pub fn heal_missing_ttl(mut self) -> Lock {
        self.heal_missing_ttl = true;
        self
    }

    /// Asks once: the answer comes at once.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future leaves nothing behind: if the lock was granted, it is given back.
    pub async fn try_acquire(&self) -> Result<Attempt> {
        acquire::acquire(self, acquire::Patience::None).await
    }

    /// Waits in line until the lock is ours.
    ///
    /// # Errors
    ///
    /// If a patience was set with [`wait`](Lock::wait) and it ran out, the error's kind is
    /// [`WaitElapsed`](ErrorKind::WaitElapsed). [`acquire_within`](Lock::acquire_within) gives
    /// the same as an answer.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future loses the place in line, and leaves nothing behind.
    pub async fn acquire(&self) -> Result<LockGuard> {
        let patience = match self.wait {
            Some(wait) => acquire::Patience::Until(self.coordinator.keeper().clock().now() + wait),
            None => acquire::Patience::Forever,
        };
        match acquire::acquire(self, patience).await? {
            Attempt::Acquired(guard) => Ok(guard),
            Attempt::Busy(holder) => {
                let by = holder.map_or("somebody else".to_owned(), |h| h.owner);
                Err(self.coordinator.describe(
                    Error::new(
                        ErrorKind::WaitElapsed,
                        "acquire",
                        format!(
                            "still held by {by} after {:?}",
                            self.wait.unwrap_or_default()
                        ),
                    )
                    .with_name(&self.name),
                ))
            }
        }
    }

    /// Waits in line, but no longer than `wait`.
    ///
    /// # Cancel safety
    ///
    /// As [`acquire`](Lock::acquire).
    pub async fn acquire_within(&self, wait: Duration) -> Result<Attempt> {
        let until = self.coordinator.keeper().clock().now() + wait;
        acquire::acquire(self, acquire::Patience::Until(until)).await
    }

    /// Takes over a lock that `owner` holds, from a guard that was
    /// [detached](LockGuard::detach), in this process or another one.
    ///
    /// # Errors
    ///
    /// [`Lost`](ErrorKind::Lost) if `owner` does not hold it now.
    pub async fn attach(&self, owner: impl Into<String>) -> Result<LockGuard> {
        let lock = self.clone().owner(owner);
        let terms = lock.terms("attach")?;
        let keeper = self.coordinator.keeper();
        let not_held = |name: &str| {
            self.coordinator.describe(
                Error::new(ErrorKind::Lost, "attach", "this owner does not hold it now")
                    .with_name(name)
                    .with_hint("acquire it again, or look with inspect"),
            )
        };
        let state = self.inspect().await?;
        let held = state.holder.filter(|h| h.owner == terms.owner.as_str());
        let Some((fence, holder)) = held.and_then(|h| Some((h.fence?, h))) else {
            return Err(not_held(&self.name));
        };
        let note = terms.note.or_else(|| holder.note.map(Arc::from));
        let claim = keeper.new_claim(Terms { note, ..terms });
        let sent = keeper.clock().now();
        claim.held_since(fence, sent - holder.age.unwrap_or_default());
        let renewed = keeper
            .take_over(&claim)
            .await
            .map_err(|e| self.coordinator.describe(e.with_operation("attach")))?;
        if renewed != Renewed::Held {
            return Err(not_held(&self.name));
        }
        if !keeper.hold(&claim, sent, fence, true) {
            return Err(not_held(&self.name));
        }
        Ok(LockGuard::new(Undo::arm(Arc::clone(keeper), claim)))
    }

    /// Gives up whatever `owner` has, the lock or a place in line, without a guard: for a lock that
    /// was [detached](LockGuard::detach) and that nobody needs to take over any more.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, it may or may not have happened; asking again is harmless.
    ///
    /// # Errors
    ///
    /// If the store did not answer, the lock may or may not have been released.
    pub async fn release_as(&self, owner: impl Into<String>) -> Result<Released> {
        let terms = self.clone().owner(owner).terms("release")?;
        let answer = terms.store.release(terms.name, terms.owner, None);
        self.call("release", answer).await
    }

    /// Looks at the lock: who has it, since when, how many wait.
    pub async fn inspect(&self) -> Result<LockState> {
        let mut state = self.look().await?;
        let half_seen = |s: &LockState| s.holder.as_ref().is_some_and(|h| h.fence.is_none());
        if half_seen(&state) {
            // A claim this fresh may not have been recorded yet.
            self.coordinator.keeper().clock().sleep(RECORDING).await;
            state = self.look().await?;
        }
        Ok(state)
    }

    async fn look(&self) -> Result<LockState> {
        let name = self.checked_name("inspect")?;
        let answer = self.coordinator.locks().inspect(name);
        let mut state = self.call("inspect", answer).await?;
        self.coordinator.strip_namespace(&mut state.name);
        Ok(state)
    }

    /// Takes the lock from whoever has it, by force, and hands it on. Tells whose it was.
    ///
    /// The holder learns of it at its next renewal, up to a third of its ttl later; until
    /// then, only the fence protects the resource.
    pub async fn break_lock(&self) -> Result<Option<Holder>> {
        let name = self.checked_name("break")?;
        let answer = self.coordinator.locks().break_lock(name);
        self.call("break", answer).await
    }

    async fn call<T>(
        &self,
        operation: &'static str,
        answer: impl Future<Output = Result<T>>,
    ) -> Result<T> {
        self.coordinator
            .keeper()
            .call(operation, &self.name, answer)
            .await
            .map_err(|e| self.coordinator.describe(e))
    }

    fn checked_name(&self, operation: &'static str) -> Result<Name> {
        Name::new(operation, self.coordinator.namespace(), &self.name)
    }

    /// Checks everything that can be wrong before anything is sent.
    fn terms(&self, operation: &'static str) -> Result<Terms> {
        let name = self.checked_name(operation)?;
        let invalid = |m: String| Error::invalid(operation, m).with_name(&self.name);
        if self.ttl < MIN_TTL || self.ttl > MAX_TTL {
            return Err(invalid(format!(
                "a ttl of {:?} is outside 10 ms to 365 days",
                self.ttl
            )));
        }
        if self.max_hold.is_some_and(|cap| cap < MIN_TTL) {
            return Err(invalid(
                "a cap on the hold under 10 ms leaves no time".into(),
            ));
        }
        let note = self.note.as_deref().unwrap_or("");
        if note.len() > MAX_NOTE_BYTES || note.chars().any(char::is_control) {
            return Err(invalid(
                "the note is longer than 1 KiB or contains a control character".into(),
            ));
        }
        let owner = match &self.owner {
            Some(owner) => {
                Owner::new(owner).map_err(|e| e.with_operation(operation).with_name(&self.name))?
            }
            None => Owner::random(),
        };
        Ok(Terms {
            store: Arc::clone(self.coordinator.locks()),
            name,
            owner,
            random_owner: self.owner.is_none(),
            ttl: self.ttl.min(self.max_hold.unwrap_or(self.ttl)),
            note: self.note.clone(),
            renews: self.renews,
            hold_cap: self.max_hold,
        })
    }
}
