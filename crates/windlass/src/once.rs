//! [`Once`]: idempotent execution. Work runs once per key; later callers get its result.
//!
//! The work runs under a lease of kind [`Kind::Once`]. Before it starts, its fence is stored with the key; a result is
//! accepted only from the highest fence that has started. A worker that lost its lease can therefore not overwrite
//! the result of its successor.

mod guard;

use std::fmt::Display;
use std::sync::Arc;
use std::time::Duration;

use sha2::{Digest as _, Sha256};

pub use self::guard::OnceGuard;
use crate::acquirer::Acquirer;
use crate::coordinator::Coordinator;
use crate::lease::{AcquireOutcome, Fence, RequestOptions, WaitPolicy};
use crate::lock::LockGuard;
use windlass_core::error::{Error, ErrorKind, Result};
use windlass_core::name::Name;
use windlass_core::store::{Holder, Kind, OnceStart, OnceStore, Share};

const LONGEST_RETENTION: Duration = Duration::from_secs(100 * 365 * 24 * 60 * 60);
/// How long the start of the work is kept, at least: longer than any work takes.
const SHORTEST_START_RETENTION: Duration = Duration::from_secs(7 * 24 * 60 * 60);

/// Idempotent execution under a key: a payment for an order, a mail for an event.
///
/// The first caller runs the work, under a lease. Others wait in the queue and get the same result, which is
/// stored for later callers too. The same key with another payload is an error while the work runs, and as long as
/// its result is kept.
///
/// # Guarantees
///
/// - While the lease is held, no other caller runs the work. A result counts only if no caller has started with a
///   higher fence since: a suspended process that lost its lease cannot store its result.
/// - Once a result is stored, the work does not run again until the [retention](Once::retention) has passed.
/// - A full store accepts no new work, but accepts the results of work that has started.
/// - If a result cannot be stored at all, the lease is not released: for the rest of its TTL the work does not run
///   again, and the error says so.
/// - If the worker dies, the next caller runs the work again: no store can know how far it came. Send the
///   [fence](OnceGuard::fence) to what the work writes to.
///
/// # Example
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> windlass::Result<()> {
/// use windlass::Ran;
/// # let w = windlass::connect("memory:").await?;
/// # async fn charge(cents: u32) -> Result<Vec<u8>, std::io::Error> { Ok(b"receipt 7".to_vec()) }
/// let once = w.once("charge/order-42").payload("1999 cents");
/// let Ran::First(receipt) = once.run(|_fence| charge(1999)).await? else { panic!() };
/// let Ran::Again(same) = once.run(|_fence| charge(1999)).await? else { panic!() };
/// assert_eq!(receipt, same);
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
#[must_use = "nothing is sent until it begins"]
pub struct Once {
    coordinator: Coordinator,
    store: Arc<dyn OnceStore>,
    key: String,
    request: RequestOptions,
    retention: Duration,
    payload: [u8; 32],
    on_failure: OnFailure,
}

/// What happens when the work fails.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum OnFailure {
    /// The failure is not stored: the next caller runs the work again, with any payload.
    #[default]
    Retry,
    /// The failure is stored like a result: the next caller gets it.
    Keep,
}

/// The outcome of [`Once::begin`].
///
/// Exhaustive on purpose: a caller has to handle each outcome.
#[derive(Debug)]
#[must_use = "dropping the guard lets others run the work"]
pub enum Begun {
    /// This caller runs the work.
    Mine(OnceGuard),
    /// The work was finished before.
    Again(Finished),
    /// Another caller is running the work, and the wait has passed.
    Busy(Option<Holder>),
}

/// How the work ended.
///
/// Exhaustive on purpose: a caller has to handle each outcome.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Finished {
    /// It succeeded, with this result.
    Done(Vec<u8>),
    /// It failed for this reason, and the failure was stored.
    Failed(String),
}

/// What a store has about a key, see [`Once::inspect`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum OnceState {
    /// Nothing: the next caller runs the work.
    Unknown,
    /// The work has begun. It runs, or was interrupted: then the next caller runs it again.
    Started,
    /// The work was finished, and the next caller gets its result.
    Finished(Finished),
}

/// The outcome of [`Once::run`].
///
/// Exhaustive on purpose: a caller has to handle each outcome.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ran<E> {
    /// The work ran now, with this result.
    First(Vec<u8>),
    /// The work ran before, with this result.
    Again(Vec<u8>),
    /// The work ran now, and failed.
    Failed(E),
    /// The work failed before for this reason, which was stored by [`OnFailure::Keep`].
    FailedBefore(String),
}

impl Once {
    /// How long a result is kept, unless another [retention](Once::retention) is set.
    pub const DEFAULT_RETENTION: Duration = Duration::from_secs(24 * 60 * 60);
    /// The longest result, in bytes.
    pub const MAX_RESULT_BYTES: usize = 16 << 20;

    pub(crate) fn new(coordinator: Coordinator, key: &str) -> Once {
        Once {
            store: coordinator.backend().onces(),
            request: RequestOptions::new(coordinator.default_ttl()),
            coordinator,
            key: key.to_owned(),
            retention: Once::DEFAULT_RETENTION,
            payload: Sha256::digest(b"").into(),
            on_failure: OnFailure::default(),
        }
    }

    /// How long the result is kept: up to 100 years, 24 hours by default.
    pub fn retention(mut self, retention: Duration) -> Once {
        self.retention = retention;
        self
    }

    /// The payload of the request, in any form: the same key with another payload is an error. Only its SHA-256 digest
    /// is stored.
    pub fn payload(mut self, payload: impl AsRef<[u8]>) -> Once {
        self.payload = Sha256::digest(payload.as_ref()).into();
        self
    }

    /// The TTL of the lease under which the work runs; 30 s by default. It bounds how long a dead worker blocks
    /// others.
    pub fn ttl(mut self, ttl: Duration) -> Once {
        self.request.ttl = ttl;
        self
    }

    /// How long to wait while another caller runs the work; for ever by default.
    pub fn wait(mut self, wait: Duration) -> Once {
        self.request.wait = Some(wait);
        self
    }

    /// What happens when the work fails.
    pub fn on_failure(mut self, policy: OnFailure) -> Once {
        self.on_failure = policy;
        self
    }

    /// Runs the work, unless it was finished before. The work is dropped if the lease is lost.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the work is dropped with it, and the next caller runs it again.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Mismatch`] if the key was used with another payload. [`ErrorKind::WaitElapsed`] if
    /// [`wait`](Once::wait) was set and has passed. [`ErrorKind::Lost`] if the lease was lost before the result was
    /// stored: the work may have been done. An error of [`OnceGuard::finish`] says that it was done.
    pub async fn run<F, W, E>(&self, work: F) -> Result<Ran<E>>
    where
        F: FnOnce(Fence) -> W,
        W: Future<Output = Result<Vec<u8>, E>>,
        E: Display,
    {
        let guard = match self.begin().await? {
            Begun::Mine(guard) => guard,
            Begun::Again(Finished::Done(result)) => return Ok(Ran::Again(result)),
            Begun::Again(Finished::Failed(reason)) => return Ok(Ran::FailedBefore(reason)),
            Begun::Busy(_) => {
                return Err(self.error(ErrorKind::WaitElapsed, "another caller is running it"));
            }
        };
        match guard.lock.run(work(guard.fence())).await {
            Err(_) => Err(self.lost()),
            Ok(Ok(result)) => match guard.finish(&result).await? {
                Finished::Done(stored) if stored == result => Ok(Ran::First(result)),
                Finished::Done(stored) => Ok(Ran::Again(stored)),
                Finished::Failed(reason) => Ok(Ran::FailedBefore(reason)),
            },
            Ok(Err(e)) => {
                match self.on_failure {
                    // The caller needs the failure of the work, even if forgetting it failed.
                    OnFailure::Retry => {
                        if let Err(error) = guard.forget().await {
                            tracing::warn!(%error, "the failed execution could not be forgotten");
                        }
                    }
                    OnFailure::Keep => drop(guard.fail(&e.to_string()).await?),
                }
                Ok(Ran::Failed(e))
            }
        }
    }

    /// Begins, or returns the result if the work was finished before. Waits in the queue while another caller runs it.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future leaves the queue; the next caller runs the work.
    ///
    /// # Errors
    ///
    /// As [`run`](Once::run).
    pub async fn begin(&self) -> Result<Begun> {
        let wait = WaitPolicy::of(self.request.wait, self.coordinator.keeper());
        self.attempt(wait).await
    }

    /// As [`begin`](Once::begin), without waiting.
    pub async fn try_begin(&self) -> Result<Begun> {
        self.attempt(WaitPolicy::None).await
    }

    async fn attempt(&self, wait: WaitPolicy) -> Result<Begun> {
        // Dropped with the outcome that was set last.
        let mut record = self.coordinator.keeper().telemetry().once();
        match self.attempt_unrecorded(wait).await {
            Ok(Attempted::Mine(name, lock)) => Ok(Begun::Mine(OnceGuard {
                once: Box::new(self.clone()),
                name,
                lock,
                record,
            })),
            Ok(Attempted::Again(finished)) => {
                record.outcome("replayed");
                Ok(Begun::Again(finished))
            }
            Ok(Attempted::Busy(holder)) => {
                record.outcome("busy");
                Ok(Begun::Busy(holder))
            }
            Err(e) => {
                record.failed(&e);
                Err(e)
            }
        }
    }

    async fn attempt_unrecorded(&self, wait: WaitPolicy) -> Result<Attempted> {
        let operation = "begin";
        let name = self.full_name(operation)?;
        // A finished key is the common case of a repeat, and needs no lease.
        let reply = self.store.get(name.clone());
        let mut other_payload = false;
        if let Some(record) = self.coordinator.call(operation, &self.key, reply).await? {
            other_payload = record.payload != self.payload;
            match record.result {
                Some(_) if other_payload => return Err(self.other_payload()),
                Some(result) => return Ok(Attempted::Again(unpack(result))),
                None => {}
            }
        }
        // If work with another payload was interrupted, its lease is free; if it is held, the work runs.
        let wait = if other_payload {
            WaitPolicy::None
        } else {
            wait
        };
        let acquirer = Acquirer {
            coordinator: &self.coordinator,
            kind: Kind::Once,
            name: &self.key,
            share: Share::ONLY,
            request: &self.request,
            heal_missing_ttl: false,
        };
        let lock = match acquirer.attempt(wait).await? {
            AcquireOutcome::Held(lease) => LockGuard::new(lease),
            AcquireOutcome::Busy(_) if other_payload => return Err(self.other_payload()),
            AcquireOutcome::Busy(holder) => return Ok(Attempted::Busy(holder)),
        };
        let reply = self.store.start(
            name.clone(),
            lock.fence(),
            self.payload,
            self.retention.max(SHORTEST_START_RETENTION),
        );
        match self.coordinator.call(operation, &self.key, reply).await? {
            OnceStart::Go => Ok(Attempted::Mine(name, lock)),
            OnceStart::Done(result) => {
                // No work ran under it, so it does not matter whether it was still held.
                let _ = lock.release().await?;
                Ok(Attempted::Again(unpack(result)))
            }
            OnceStart::OtherPayload => Err(self.other_payload()),
            OnceStart::Stale => Err(self.lost()),
        }
    }

    /// What the store has about the key. Changes nothing.
    pub async fn inspect(&self) -> Result<OnceState> {
        let reply = self.store.get(self.full_name("inspect")?);
        let record = self.coordinator.call("inspect", &self.key, reply).await?;
        Ok(match record.map(|record| record.result) {
            None => OnceState::Unknown,
            Some(None) => OnceState::Started,
            Some(Some(result)) => OnceState::Finished(unpack(result)),
        })
    }

    /// Forgets the key, so that the work can run again. Returns whether the key was known.
    pub async fn forget(&self) -> Result<bool> {
        let reply = self.store.forget(self.full_name("forget")?, None);
        self.coordinator.call("forget", &self.key, reply).await
    }

    fn full_name(&self, operation: &'static str) -> Result<Name> {
        if self.retention.is_zero() || self.retention > LONGEST_RETENTION {
            let message = format!("a result cannot be kept for {:?}", self.retention);
            let error = Error::invalid(operation, message).with_name(&self.key);
            return Err(error.with_hint("use a retention of 1 ms to 100 years"));
        }
        Name::new(operation, self.coordinator.namespace(), &self.key)
    }

    fn error(&self, kind: ErrorKind, message: &str) -> Error {
        let error = Error::new(kind, "do once", message).with_name(&self.key);
        self.coordinator.describe(error)
    }

    fn other_payload(&self) -> Error {
        self.error(ErrorKind::Mismatch, "the key was used for another payload")
            .with_hint("use a different key for each request")
    }

    fn lost(&self) -> Error {
        let message =
            "the lease was lost before the result was stored; the work may have been done";
        self.error(ErrorKind::Lost, message)
            .with_hint("run it again: the caller that took over may have finished it")
    }
}

/// [`Begun`], before the guard exists.
enum Attempted {
    Mine(Name, LockGuard),
    Again(Finished),
    Busy(Option<Holder>),
}

/// A result is stored after a `+`, a failure after a `-`.
fn unpack(mut packed: Vec<u8>) -> Finished {
    match packed.first() {
        Some(b'-') => Finished::Failed(String::from_utf8_lossy(&packed[1..]).into_owned()),
        Some(_) => {
            packed.remove(0);
            Finished::Done(packed)
        }
        None => Finished::Done(packed),
    }
}
