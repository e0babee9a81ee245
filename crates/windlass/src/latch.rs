//! [`Latch`]: closed until it is counted down to zero.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::coordinator::Coordinator;
use crate::lease::{RetryPolicy, WaitPolicy};
use crate::wait::{Checked, wait_until};
use windlass_core::error::{Error, ErrorKind, Result};
use windlass_core::name::Name;
use windlass_core::store::{Channel, CountedDown, LatchSpec, LatchState, Reset};

/// The longest retention that is stored; a longer one is shortened to it, because not every store's clock holds more.
const LONGEST_RETENTION: Duration = Duration::from_secs(100 * 365 * 24 * 60 * 60);

/// A count-down latch: a count that reaches zero once per generation.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> windlass::Result<()> {
/// let w = windlass::connect("memory:").await?;
/// let ready = w.latch("workers-ready").generation("deploy-17");
/// ready.reset(2).await?; // harmless if another client has done it already
/// ready.count_down().await?;
/// assert_eq!(ready.count_down().await?, 0);
/// ready.wait().await?; // open: returns at once
/// # Ok(()) }
/// ```
///
/// # Guarantees
///
/// - Each call counts once, even if its reply is lost and the library retries.
/// - The count never goes below zero: counting down further is an error and changes nothing.
/// - Waiters are notified when the latch opens, and when another generation replaces this one.
/// - Generations only go forward: one that was replaced cannot begin again, so a delayed request undoes nothing. The
///   last 16 are kept, with how they ended.
/// - A party that dies changes nothing: what it counted stays counted, and what it would have counted is missing until
///   another party counts for it or resets the latch to another generation. Where parties must be alive, use a
///   [barrier](crate::Barrier).
/// - A quorum (`redlock://`) refuses latches with [`Unsupported`](ErrorKind::Unsupported).
#[derive(Clone, Debug)]
#[must_use = "a latch does nothing until one of its methods is called"]
pub struct Latch {
    coordinator: Coordinator,
    name: String,
    generation: Arc<str>,
    retention: Duration,
}

/// How the wait for a latch ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
#[must_use = "the latch may not have opened"]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "kebab-case"))]
pub enum Opening {
    /// It was counted down to zero.
    Opened,
    /// Another generation replaced it first, or its retention has passed.
    Replaced,
    /// The wait has passed.
    Elapsed,
}

impl Latch {
    /// How long a latch is kept after its last change, unless another [retention](Latch::retention) is set.
    pub const DEFAULT_RETENTION: Duration = Duration::from_secs(24 * 60 * 60);
    /// The largest count.
    pub const MAX_COUNT: u32 = 1_000_000;

    pub(crate) fn new(coordinator: Coordinator, name: &str) -> Latch {
        Latch {
            coordinator,
            name: name.to_owned(),
            generation: "1".into(),
            retention: Latch::DEFAULT_RETENTION,
        }
    }

    /// The generation; `1` by default. All parties must name the same one.
    pub fn generation(mut self, generation: &str) -> Latch {
        self.generation = generation.into();
        self
    }

    /// How long the store keeps the latch after its last change; 24 hours by default.
    pub fn retention(mut self, retention: Duration) -> Latch {
        self.retention = retention;
        self
    }

    /// Begins this generation with `count`, replacing any earlier one. If it has begun already, nothing changes.
    /// Returns the remaining count.
    ///
    /// # Errors
    ///
    /// [`Mismatch`](ErrorKind::Mismatch) if the generation began with another count, or is over.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the reset may or may not have happened; calling again is harmless.
    pub async fn reset(&self, count: u32) -> Result<u32> {
        const MAX: u32 = Latch::MAX_COUNT;
        if !(1..=MAX).contains(&count) {
            let message = format!("a count of {count} is outside 1 to {MAX}");
            return Err(Error::invalid("reset", message).with_name(&self.name));
        }
        let spec = self.spec("reset")?;
        let reply = self
            .retrying("reset", || {
                self.coordinator.latches().reset(spec.clone(), count)
            })
            .await?;
        match reply {
            Reset::Begun => Ok(count),
            Reset::Known { remaining } => Ok(remaining),
            Reset::Over { present } => Err(self.failed(
                ErrorKind::Mismatch,
                "reset",
                format!(
                    "generation {} is over: the current one is {present}",
                    self.generation
                ),
                "use a generation that has not been used before",
            )),
            Reset::OtherCount { count: began } => Err(self.failed(
                ErrorKind::Mismatch,
                "reset",
                format!(
                    "generation {} began with a count of {began}, not {count}",
                    self.generation
                ),
                "use another generation to start again",
            )),
        }
    }

    /// Counts down by one, and returns the remaining count.
    ///
    /// # Errors and cancel safety
    ///
    /// As [`count_down_by`](Latch::count_down_by).
    pub async fn count_down(&self) -> Result<u32> {
        self.count_down_by(1).await
    }

    /// Counts down, and returns the remaining count.
    ///
    /// # Errors
    ///
    /// [`InvalidInput`](ErrorKind::InvalidInput) if less than `by` remains: nothing is counted then.
    /// [`Mismatch`](ErrorKind::Mismatch) if another generation has begun, or none has.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the call may or may not have counted.
    pub async fn count_down_by(&self, by: u32) -> Result<u32> {
        if by == 0 {
            let error = Error::invalid("count down", "counting down by 0 changes nothing");
            return Err(error.with_name(&self.name));
        }
        let spec = self.spec("count down")?;
        // The same id for every try, so that a lost reply does not count twice.
        let operation: u128 = rand::random();
        let reply = self
            .retrying("count down", || {
                let latches = self.coordinator.latches();
                latches.count_down(spec.clone(), by, operation)
            })
            .await?;
        match reply {
            CountedDown::To { remaining } => Ok(remaining),
            CountedDown::BelowZero { remaining } => Err(self.failed(
                ErrorKind::InvalidInput,
                "count down",
                format!("only {remaining} remain, so it cannot go down by {by}"),
                "more parties count down than it was reset for; reset it to another generation to start again",
            )),
            CountedDown::OtherGeneration { present } => Err(self.failed(
                ErrorKind::Mismatch,
                "count down",
                match present {
                    Some(present) => {
                        format!("its generation is {present}, not {}", self.generation)
                    }
                    None => "nobody has reset it, or its retention has passed".to_owned(),
                },
                "begin a generation with reset",
            )),
        }
    }

    /// Waits until the latch is open; also if its generation has not begun yet.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future loses nothing.
    pub async fn wait(&self) -> Result<Opening> {
        self.wait_with(WaitPolicy::Forever).await
    }

    /// Waits until the latch is open, at most for `wait`.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future loses nothing.
    pub async fn wait_within(&self, wait: Duration) -> Result<Opening> {
        self.wait_with(WaitPolicy::of(Some(wait), self.coordinator.keeper()))
            .await
    }

    async fn wait_with(&self, wait: WaitPolicy) -> Result<Opening> {
        let name = self.spec("wait")?.name;
        let kind = windlass_core::store::latch::CHANNEL;
        let begun = AtomicBool::new(false);
        let check = || async {
            let state = self.inspect().await?;
            let ended = state.as_ref().and_then(|s| s.ended(&self.generation));
            let present = state.as_ref().filter(|s| s.generation == *self.generation);
            Ok(match (present, ended) {
                (Some(state), _) if state.remaining == 0 => Checked::Done(Opening::Opened),
                (Some(_), _) => {
                    begun.store(true, Ordering::Relaxed);
                    Checked::NotYet(None)
                }
                (None, Some(past)) if past.opened => Checked::Done(Opening::Opened),
                (None, Some(_)) => Checked::Done(Opening::Replaced),
                // It had begun, and the store does not have it any more.
                (None, None) if begun.load(Ordering::Relaxed) => Checked::Done(Opening::Replaced),
                (None, None) => Checked::NotYet(None),
            })
        };
        let channel = Channel { kind, name };
        let opening = wait_until(&self.coordinator, channel, wait, check).await?;
        Ok(opening.unwrap_or(Opening::Elapsed))
    }

    /// Returns the current generation, its initial count and its remaining count. `None` if there is none.
    pub async fn inspect(&self) -> Result<Option<LatchState>> {
        let name = self.spec("inspect")?.name;
        let reply = self.coordinator.latches().inspect(name);
        self.coordinator.call("inspect", &self.name, reply).await
    }

    fn spec(&self, operation: &'static str) -> Result<LatchSpec> {
        let name = Name::new(operation, self.coordinator.namespace(), &self.name)?;
        let generation = &self.generation;
        let bad = generation.is_empty() || generation.len() > 256;
        if bad || generation.chars().any(char::is_control) {
            let message = "a generation has 1 to 256 bytes, and no control characters";
            return Err(Error::invalid(operation, message).with_name(&self.name));
        }
        if self.retention.is_zero() {
            let message = "a latch that is kept for no time would be gone at once";
            return Err(Error::invalid(operation, message)
                .with_name(&self.name)
                .with_hint("the retention must be longer than its parties take"));
        }
        Ok(LatchSpec {
            name,
            generation: Arc::clone(generation),
            keep: self
                .retention
                .clamp(Duration::from_millis(1), LONGEST_RETENTION),
        })
    }

    /// Retries if the store cannot be reached or did not reply: the operations here are idempotent.
    async fn retrying<T, F: Future<Output = Result<T>>>(
        &self,
        operation: &'static str,
        mut send: impl FnMut() -> F,
    ) -> Result<T> {
        let mut tries = 0;
        loop {
            let reply = self.coordinator.call(operation, &self.name, send()).await;
            tries += 1;
            match (reply, RetryPolicy::default().pause_after(tries)) {
                (Err(e), Some(pause)) if e.is_retryable() => {
                    self.coordinator.keeper().clock().sleep(pause).await;
                }
                (reply, _) => return reply,
            }
        }
    }

    fn failed(
        &self,
        kind: ErrorKind,
        operation: &'static str,
        message: String,
        hint: &str,
    ) -> Error {
        let error = Error::new(kind, operation, message).with_name(&self.name);
        self.coordinator.describe(error.with_hint(hint))
    }
}
