//! Idempotency: done once for a key, and its result given to whoever asks again.

use std::fmt::Display;
use std::sync::Arc;
use std::time::Duration;

use sha2::{Digest as _, Sha256};

use crate::acquirer::Acquirer;
use crate::coordinator::Coordinator;
use crate::lease::{AcquireOutcome, Fence, Request, RetryPolicy, WaitPolicy};
use crate::lock::LockGuard;
use windlass_core::error::{Error, ErrorKind, Result};
use windlass_core::name::Name;
use windlass_core::store::{Holder, Kind, OnceFinish, OnceStart, OnceStore, Share};

/// How long a result is kept, unless told otherwise.
const DEFAULT_KEEP: Duration = Duration::from_secs(24 * 60 * 60);
const LONGEST_KEEP: Duration = Duration::from_secs(100 * 365 * 24 * 60 * 60);
/// How often a store that cannot be reached is asked again to keep a result.
const PATIENT: RetryPolicy = RetryPolicy::tries(u32::MAX);
/// How long it is remembered that work was begun, at least: longer than any work takes.
const BEGUN: Duration = Duration::from_secs(7 * 24 * 60 * 60);
/// The longest result that is kept, in bytes.
pub const MAX_RESULT_BYTES: usize = 16 << 20;

/// Something to be done once for a key: a payment for an order, a mail for an event.
///
/// The first to come does it, under a lease; the others wait in line and get the same result. The result is
/// kept for whoever comes later. A key that comes again with another payload is refused: it is somebody's
/// mistake.
///
/// # Guarantees
///
/// - While the lease is held, nobody else does the work. A result counts only if nobody began with a higher
///   fence since: the late result of a sleeper is refused.
/// - Once a result is kept, the work is not done again until `keep` is over.
/// - A store that is full takes no new work, but the results of what was begun.
/// - If a result cannot be kept at all, the lease is not given back: for the rest of its ttl nobody does the work
///   again, and the error says so.
/// - If whoever does the work dies half-way, the next one does it again: no store can know how far it came.
///   Hand the [fence](OnceGuard::fence) to what the work writes to.
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
#[must_use = "nothing is done until it is begun"]
pub struct Once {
    coordinator: Coordinator,
    store: Arc<dyn OnceStore>,
    key: String,
    request: Request,
    keep: Duration,
    payload: [u8; 32],
    on_failure: OnFailure,
}

/// What becomes of work that failed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnFailure {
    /// It is forgotten: whoever comes next does it again, with any payload.
    #[default]
    Retry,
    /// It is kept, like a success: whoever comes next hears that it failed.
    Keep,
}

/// What came of asking to begin.
#[derive(Debug)]
#[must_use = "dropping the guard lets others do the work"]
pub enum Begun {
    /// The work is ours to do.
    Mine(OnceGuard),
    /// It was done before.
    Again(Finished),
    /// Somebody else is doing it, and there was no patience to wait.
    Busy(Option<Holder>),
}

/// What came of the work.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Finished {
    /// It succeeded, with this result.
    Done(Vec<u8>),
    /// It failed, for this reason, and that was kept.
    Failed(String),
}

/// What came of [`Once::run`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ran<E> {
    /// Done here and now, with this result.
    First(Vec<u8>),
    /// Done before, with this result.
    Again(Vec<u8>),
    /// Tried here and now, and failed.
    Failed(E),
    /// Failed before, for this reason, and kept by [`OnFailure::Keep`].
    FailedBefore(String),
}

impl Once {
    pub(crate) fn new(coordinator: Coordinator, key: &str) -> Once {
        Once {
            store: coordinator.backend().onces(),
            coordinator,
            key: key.to_owned(),
            request: Request::new(),
            keep: DEFAULT_KEEP,
            payload: Sha256::digest(b"").into(),
            on_failure: OnFailure::default(),
        }
    }

    /// How long the result is kept: up to 100 years, 24 hours by default.
    pub fn keep(mut self, keep: Duration) -> Once {
        self.keep = keep;
        self
    }

    /// What is asked for, in any form: the same key with another payload is refused. Only its digest is
    /// stored.
    pub fn payload(mut self, payload: impl AsRef<[u8]>) -> Once {
        self.payload = Sha256::digest(payload.as_ref()).into();
        self
    }

    /// The ttl of the lease under which the work is done, 30 s by default: how long a dead worker holds up
    /// the others.
    pub fn ttl(mut self, ttl: Duration) -> Once {
        self.request.ttl = ttl;
        self
    }

    /// How long to wait for somebody else who is doing it; without it, for ever.
    pub fn wait(mut self, wait: Duration) -> Once {
        self.request.wait = Some(wait);
        self
    }

    /// What becomes of work that fails.
    pub fn on_failure(mut self, policy: OnFailure) -> Once {
        self.on_failure = policy;
        self
    }

    /// Does the work, unless it was done before. It is dropped if the lease is lost.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the work is dropped with it, and the next one does it again.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Mismatch`] if the key came with another payload, [`ErrorKind::WaitElapsed`] if the patience
    /// ran out, [`ErrorKind::Lost`] if the lease was lost before the result was kept: the work may have been done.
    /// An error of [`OnceGuard::finish`] says that it was.
    pub async fn run<F, W, E>(&self, work: F) -> Result<Ran<E>>
    where
        F: FnOnce(Fence) -> W,
        W: Future<Output = Result<Vec<u8>, E>>,
        E: Display,
    {
        let guard = match self.begin().await? {
            Begun::Mine(guard) => guard,
            Begun::Again(Finished::Done(result)) => return Ok(Ran::Again(result)),
            Begun::Again(Finished::Failed(why)) => return Ok(Ran::FailedBefore(why)),
            Begun::Busy(_) => return Err(self.error(ErrorKind::WaitElapsed, "it is being done")),
        };
        match guard.lock.run(work(guard.fence())).await {
            Err(_) => Err(self.lost()),
            Ok(Ok(result)) => match guard.finish(&result).await? {
                Finished::Done(kept) if kept == result => Ok(Ran::First(result)),
                Finished::Done(kept) => Ok(Ran::Again(kept)),
                Finished::Failed(why) => Ok(Ran::FailedBefore(why)),
            },
            Ok(Err(e)) => {
                match self.on_failure {
                    // Whether or not it could be forgotten, what the caller wants to know is why it failed.
                    OnFailure::Retry => {
                        if let Err(error) = guard.forget().await {
                            tracing::warn!(%error, "a failure could not be forgotten");
                        }
                    }
                    OnFailure::Keep => drop(guard.fail(&e.to_string()).await?),
                }
                Ok(Ran::Failed(e))
            }
        }
    }

    /// Begins, or gives the result if it was done before; waits in line while somebody else is doing it.
    ///
    /// # Errors
    ///
    /// As [`run`](Once::run).
    pub async fn begin(&self) -> Result<Begun> {
        let patience = WaitPolicy::of(self.request.wait, self.coordinator.keeper());
        self.attempt(patience).await
    }

    /// The same, without waiting.
    pub async fn try_begin(&self) -> Result<Begun> {
        self.attempt(WaitPolicy::None).await
    }

    async fn attempt(&self, patience: WaitPolicy) -> Result<Begun> {
        let operation = "begin";
        let name = self.checked(operation)?;
        // Most who come again come long after: they need no lease.
        let known = self.store.look(name.clone());
        if let Some(record) = self.coordinator.call(operation, &self.key, known).await? {
            if record.payload != self.payload {
                return Err(self.other_payload());
            }
            if let Some(result) = record.result {
                return Ok(Begun::Again(unpack(result)));
            }
        }
        let asking = Acquirer {
            coordinator: &self.coordinator,
            kind: Kind::Once,
            name: &self.key,
            share: Share::ONLY,
            request: &self.request,
            heal_missing_ttl: false,
        };
        let lock = match asking.attempt(patience).await? {
            AcquireOutcome::Held(lease) => LockGuard::new(lease),
            AcquireOutcome::Busy(holder) => return Ok(Begun::Busy(holder)),
        };
        let started = self.store.start(
            name.clone(),
            lock.fence(),
            self.payload,
            self.keep.max(BEGUN),
        );
        match self.coordinator.call(operation, &self.key, started).await? {
            OnceStart::Go => Ok(Begun::Mine(OnceGuard {
                once: self.clone(),
                name,
                lock,
            })),
            OnceStart::Done(result) => {
                // Nothing was done under it, so nothing depends on whether it was held.
                let _ = lock.release().await?;
                Ok(Begun::Again(unpack(result)))
            }
            OnceStart::OtherPayload => Err(self.other_payload()),
            OnceStart::Stale => Err(self.lost()),
        }
    }

    /// Forgets the key, so that it can be done again. Tells whether anything was known of it.
    pub async fn forget(&self) -> Result<bool> {
        let answer = self.store.forget(self.checked("forget")?, None);
        self.coordinator.call("forget", &self.key, answer).await
    }

    fn checked(&self, operation: &'static str) -> Result<Name> {
        if self.keep.is_zero() || self.keep > LONGEST_KEEP {
            let message = format!("a result cannot be kept for {:?}", self.keep);
            let error = Error::invalid(operation, message).with_name(&self.key);
            return Err(error.with_hint("keep it for 1 ms to 100 years"));
        }
        Name::new(operation, self.coordinator.namespace(), &self.key)
    }

    fn error(&self, kind: ErrorKind, message: &str) -> Error {
        let error = Error::new(kind, "do once", message).with_name(&self.key);
        self.coordinator.describe(error)
    }

    fn other_payload(&self) -> Error {
        self.error(ErrorKind::Mismatch, "the key was used for another payload")
            .with_hint("use a key of its own for each thing to be done")
    }

    fn lost(&self) -> Error {
        let message = "the lease was lost before the result was kept; it may have been done";
        self.error(ErrorKind::Lost, message)
            .with_hint("ask again: whoever took over may have finished it")
    }
}

/// The right, and the duty, to do something once. Dropping it lets the next one do it.
#[derive(Debug)]
#[must_use = "dropping the guard lets others do the work"]
pub struct OnceGuard {
    once: Once,
    name: Name,
    lock: LockGuard,
}

impl OnceGuard {
    /// The fence, to hand to what the work writes to.
    pub fn fence(&self) -> Fence {
        self.lock.fence()
    }

    /// The lease under which the work is done: it tells of loss.
    pub fn lease(&self) -> &LockGuard {
        &self.lock
    }

    /// Keeps the result, and lets those who wait have it. Gives the result that counts: another one's, if
    /// the lease was lost and somebody else was faster. A store that cannot be reached, or takes nothing for the
    /// moment, is asked again for as long as the lease is held.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the result may or may not be kept; if not, the next one does the work again.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Lost`] if the lease was lost and somebody else has begun; [`ErrorKind::InvalidInput`] for a
    /// result of more than 16 MiB; whatever the store said last, if it cannot be kept. The work is done, and not
    /// kept, then: nobody does it again for the rest of the ttl, which the error tells.
    pub async fn finish(self, result: &[u8]) -> Result<Finished> {
        self.keep(b'+', result).await
    }

    /// Keeps that it failed, and why.
    pub async fn fail(self, why: &str) -> Result<Finished> {
        self.keep(b'-', why.as_bytes()).await
    }

    /// Forgets that it was begun: whoever comes next begins afresh, with any payload.
    pub async fn forget(self) -> Result<()> {
        let (key, fence) = (&self.once.key, self.lock.fence());
        let answer = self.once.store.forget(self.name.clone(), Some(fence));
        self.once.coordinator.call("forget", key, answer).await?;
        self.lock.release().await.map(drop)
    }

    async fn keep(self, mark: u8, result: &[u8]) -> Result<Finished> {
        let once = &self.once;
        if result.len() > MAX_RESULT_BYTES {
            let why = format!("{} bytes are more than {MAX_RESULT_BYTES}", result.len());
            let why = Error::invalid("keep the result", why);
            return Err(self.give_up(why));
        }
        let packed = [&[mark], result].concat();
        let (name, fence) = (self.name.clone(), self.lock.fence());
        let mut failures = 0;
        let kept = loop {
            let answer = once
                .store
                .finish(name.clone(), fence, packed.clone(), once.keep);
            let answer = once.coordinator.call("keep the result", &once.key, answer);
            match answer.await {
                Ok(kept) => break kept,
                // The work is done: were the result not kept, it would be done again. Keeping it twice is
                // harmless.
                Err(e) if may_pass(&e, failures) && self.lock.is_held() => {
                    failures += 1;
                    let Some(pause) = PATIENT.pause_after(failures) else {
                        return Err(self.give_up(e));
                    };
                    once.coordinator.keeper().clock().sleep(pause).await;
                }
                Err(e) => return Err(self.give_up(e)),
            }
        };
        let finished = match kept {
            OnceFinish::OnceFinish => unpack(packed),
            OnceFinish::Done(other) => unpack(other),
            OnceFinish::Stale => return Err(once.lost()),
        };
        // The result is kept: whether the lease was held to the end does not matter any more.
        let _ = self.lock.release().await;
        Ok(finished)
    }

    /// The work is done, and nobody will know of it: then others had better not begin for as long as can be.
    fn give_up(self, why: Error) -> Error {
        let once = self.once;
        let kind = why.kind();
        let held = self.lock.abandon();
        let message =
            format!("it was done, but its result cannot be kept; held for {held:.0?} more");
        once.error(kind, &message)
            .with_hint("find out what it did before that: whoever asks afterwards does it again")
            .with_source(why)
    }
}

/// Whether it is worth asking again. A store that is full, say, may have room again in a while.
fn may_pass(e: &Error, failures: u32) -> bool {
    const A_WHILE: u32 = 40;
    e.is_retryable() || (e.kind() == ErrorKind::Store && failures < A_WHILE)
}

/// A result is stored behind `+`, a failure behind `-`.
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
