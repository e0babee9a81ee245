//! The latch: closed until it has been counted down to zero.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::coordinator::Coordinator;
use crate::lease::{RetryPolicy, WaitPolicy};
use crate::semaphore::MAX_PERMITS;
use crate::wait::{Look, wait_until};
use windlass_core::error::{Error, ErrorKind, Result};
use windlass_core::name::Name;
use windlass_core::store::{Channel, CountedDown, LatchSpec, LatchState, Reset};

/// How long a latch is kept after it was last changed, unless told otherwise.
pub const DEFAULT_KEEP: Duration = Duration::from_secs(24 * 60 * 60);

/// Longer than this is for ever; a store's clock may not hold more.
const LONGEST: Duration = Duration::from_secs(100 * 365 * 24 * 60 * 60);

/// A latch: a count that goes down to zero once, for each generation anew.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> windlass::Result<()> {
/// let w = windlass::connect("memory:").await?;
/// let ready = w.latch("workers-ready").generation("deploy-17");
/// ready.reset(2).await?; // harmless if somebody has done so already
/// ready.count_down().await?;
/// assert_eq!(ready.count_down().await?, 0);
/// ready.wait().await?; // open: returns at once
/// # Ok(()) }
/// ```
///
/// # Guarantees
///
/// - Each count is counted once, even if the answer is lost and the call is made again.
/// - It never goes below zero: counting down further is an error and changes nothing.
/// - Those who wait are woken when it opens, or when another generation takes its place.
/// - Generations only go forward: one whose place was taken cannot begin again, so that a request which
///   comes late undoes nothing. The last 16 are remembered, and how they ended.
/// - Nobody's death matters: what was counted stays counted, and what a dead party would have
///   counted is missing until somebody counts for it, or resets to another generation. (Where the
///   parties must be alive, use a [barrier](crate::Barrier).)
/// - A quorum (`redlock://`) refuses latches with [`Unsupported`](ErrorKind::Unsupported).
#[derive(Clone, Debug)]
#[must_use = "a latch does nothing until it is asked to"]
pub struct Latch {
    coordinator: Coordinator,
    name: String,
    generation: Arc<str>,
    keep: Duration,
}

/// How waiting for a latch ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "the latch may not have opened"]
pub enum Opening {
    /// It was counted down to zero.
    Opened,
    /// Another generation took its place first, or the store has forgotten it.
    Replaced,
    /// WaitPolicy ran out.
    Elapsed,
}

impl Latch {
    pub(crate) fn new(coordinator: Coordinator, name: &str) -> Latch {
        Latch {
            coordinator,
            name: name.to_owned(),
            generation: "1".into(),
            keep: DEFAULT_KEEP,
        }
    }

    /// Which generation is meant; `1` if none is named. All parties must name the same one.
    pub fn generation(mut self, generation: &str) -> Latch {
        self.generation = generation.into();
        self
    }

    /// How long the latch is kept after it was last changed; 24 hours by default.
    pub fn keep(mut self, keep: Duration) -> Latch {
        self.keep = keep;
        self
    }

    /// Begins this generation with `count`, in place of whatever generation there was. If it has
    /// begun already, nothing changes. Tells what remains.
    ///
    /// # Errors
    ///
    /// [`Mismatch`](ErrorKind::Mismatch) if it has begun with another count, or is over.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, it may or may not have happened; asking again is harmless.
    pub async fn reset(&self, count: u32) -> Result<u32> {
        if !(1..=MAX_PERMITS).contains(&count) {
            let message = format!("a count of {count} is outside 1 to {MAX_PERMITS}");
            return Err(Error::invalid("reset", message).with_name(&self.name));
        }
        let terms = self.terms("reset")?;
        let answer = self
            .retrying("reset", || {
                self.coordinator.latches().reset(terms.clone(), count)
            })
            .await?;
        match answer {
            Reset::Begun => Ok(count),
            Reset::Known { remaining } => Ok(remaining),
            Reset::Over { present } => Err(self.failed(
                ErrorKind::Mismatch,
                "reset",
                format!("generation {} is over: it is at {present}", self.generation),
                "name a generation that has not been before",
            )),
            Reset::OtherCount { count: began } => Err(self.failed(
                ErrorKind::Mismatch,
                "reset",
                format!(
                    "generation {} began with a count of {began}, not {count}",
                    self.generation
                ),
                "name another generation to begin anew",
            )),
        }
    }

    /// Counts down by one, and tells what remains.
    ///
    /// # Errors and cancel safety
    ///
    /// As [`count_down_by`](Latch::count_down_by).
    pub async fn count_down(&self) -> Result<u32> {
        self.count_down_by(1).await
    }

    /// Counts down, and tells what remains.
    ///
    /// # Errors
    ///
    /// [`InvalidInput`](ErrorKind::InvalidInput) if less than that remains: nothing is counted then.
    /// [`Mismatch`](ErrorKind::Mismatch) if another generation has begun, or none has.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, it may or may not have been counted.
    pub async fn count_down_by(&self, by: u32) -> Result<u32> {
        if by == 0 {
            let error = Error::invalid("count down", "counting down by 0 changes nothing");
            return Err(error.with_name(&self.name));
        }
        let terms = self.terms("count down")?;
        // The same for every try, so that a lost answer does not make it count twice.
        let operation: u128 = rand::random();
        let answer = self
            .retrying("count down", || {
                let latches = self.coordinator.latches();
                latches.count_down(terms.clone(), by, operation)
            })
            .await?;
        match answer {
            CountedDown::To { remaining } => Ok(remaining),
            CountedDown::BelowZero { remaining } => Err(self.failed(
                ErrorKind::InvalidInput,
                "count down",
                format!("only {remaining} remain, so it cannot go down by {by}"),
                "more parties count than it was reset for; or reset it to another generation",
            )),
            CountedDown::OtherGeneration { present } => Err(self.failed(
                ErrorKind::Mismatch,
                "count down",
                match present {
                    Some(present) => {
                        format!("it is at generation {present}, not {}", self.generation)
                    }
                    None => "nobody has reset it, or it was forgotten".to_owned(),
                },
                "reset it to begin a generation",
            )),
        }
    }

    /// Waits until the latch is open. Waits for it to begin, too.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future loses nothing.
    pub async fn wait(&self) -> Result<Opening> {
        self.wait_with(WaitPolicy::Forever).await
    }

    /// Waits until the latch is open, but no longer than `wait`.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future loses nothing.
    pub async fn wait_within(&self, wait: Duration) -> Result<Opening> {
        self.wait_with(WaitPolicy::of(Some(wait), self.coordinator.keeper()))
            .await
    }

    async fn wait_with(&self, patience: WaitPolicy) -> Result<Opening> {
        let name = self.terms("wait")?.name;
        let kind = windlass_core::store::latch::CHANNEL;
        let begun = AtomicBool::new(false);
        let look = || async {
            let seen = self.inspect().await?;
            let ended = seen.as_ref().and_then(|s| s.ended(&self.generation));
            let present = seen.as_ref().filter(|s| s.generation == *self.generation);
            Ok(match (present, ended) {
                (Some(state), _) if state.remaining == 0 => Look::Done(Opening::Opened),
                (Some(_), _) => {
                    begun.store(true, Ordering::Relaxed);
                    Look::After(None)
                }
                (None, Some(past)) if past.opened => Look::Done(Opening::Opened),
                (None, Some(_)) => Look::Done(Opening::Replaced),
                // It was there, and the store knows nothing of it any more.
                (None, None) if begun.load(Ordering::Relaxed) => Look::Done(Opening::Replaced),
                (None, None) => Look::After(None),
            })
        };
        let channel = Channel { kind, name };
        let seen = wait_until(&self.coordinator, channel, patience, look).await?;
        Ok(seen.unwrap_or(Opening::Elapsed))
    }

    /// Looks: the present generation, what it began with, what remains. `None` if there is none.
    pub async fn inspect(&self) -> Result<Option<LatchState>> {
        let name = self.terms("inspect")?.name;
        let answer = self.coordinator.latches().look(name);
        self.coordinator.call("inspect", &self.name, answer).await
    }

    fn terms(&self, operation: &'static str) -> Result<LatchSpec> {
        let name = Name::new(operation, self.coordinator.namespace(), &self.name)?;
        let generation = &self.generation;
        let bad = generation.is_empty() || generation.len() > 256;
        if bad || generation.chars().any(char::is_control) {
            let message = "a generation has 1 to 256 bytes, and no control characters";
            return Err(Error::invalid(operation, message).with_name(&self.name));
        }
        if self.keep.is_zero() {
            let message = "a latch that is kept for no time would be gone at once";
            return Err(Error::invalid(operation, message)
                .with_name(&self.name)
                .with_hint("keep it for longer than its parties take"));
        }
        Ok(LatchSpec {
            name,
            generation: Arc::clone(generation),
            keep: self.keep.clamp(Duration::from_millis(1), LONGEST),
        })
    }

    /// Asks again if the store cannot be reached, or has not answered: what is asked here can be
    /// asked twice.
    async fn retrying<T, F: Future<Output = Result<T>>>(
        &self,
        operation: &'static str,
        mut ask: impl FnMut() -> F,
    ) -> Result<T> {
        let mut tries = 0;
        loop {
            let answer = self.coordinator.call(operation, &self.name, ask()).await;
            tries += 1;
            match (answer, RetryPolicy::default().pause_after(tries)) {
                (Err(e), Some(pause)) if e.is_retryable() => {
                    self.coordinator.keeper().clock().sleep(pause).await;
                }
                (answer, _) => return answer,
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
