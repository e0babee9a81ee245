//! One number for all.

mod buffered;

pub use buffered::{BufferedCounter, DEFAULT_FLUSH_EVERY};

use std::sync::Arc;
use std::time::Duration;

use crate::coordinator::Coordinator;
use windlass_core::error::{Error, Result};
use windlass_core::name::Name;
use windlass_core::rules::counter::Addition;
use windlass_core::rules::limit::LONGEST_MICROS;
use windlass_core::store::counter::{Counted, CounterRequest, Operation};

/// For how long an operation's id is remembered, unless told otherwise.
pub const DEFAULT_REMEMBER_OPERATION: Duration = Duration::from_secs(24 * 60 * 60);

/// The longest id of an operation, in bytes.
pub const MAX_OPERATION_BYTES: usize = 256;

/// A number that all processes add to.
///
/// # Guarantees
///
/// - An addition is one indivisible step: none is lost, and each gets its own answer.
/// - A [bound](Counter::max) refuses: what would go beyond it is not added at all. So do the ends of
///   the numbers, ±2⁶³: nothing ever wraps around.
/// - [`add_once`](Counter::add_once) adds once, however often it is sent.
/// - As durable as the backend.
///
/// # Example
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> windlass::Result<()> {
/// let w = windlass::connect("memory:").await?;
/// let sold = w.counter("tickets").max(100);
/// assert_eq!(sold.add(98).await?.value, 98);
/// let last = sold.add(3).await?;
/// assert!(!last.added, "only two are left");
/// assert_eq!(last.value, 98);
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
#[must_use = "a counter does nothing until it is asked"]
pub struct Counter {
    coordinator: Coordinator,
    name: String,
    min: i64,
    max: i64,
    expire: Option<Duration>,
    window: Option<Duration>,
    remember: Duration,
}

impl Counter {
    pub(crate) fn new(coordinator: Coordinator, name: &str) -> Counter {
        Counter {
            coordinator,
            name: name.to_owned(),
            min: i64::MIN,
            max: i64::MAX,
            expire: None,
            window: None,
            remember: DEFAULT_REMEMBER_OPERATION,
        }
    }

    /// Refuses what would make it more than this. If it is more already, subtracting is allowed.
    pub fn max(mut self, max: i64) -> Counter {
        self.max = max;
        self
    }

    /// Refuses what would make it less than this. If it is less already, adding is allowed.
    pub fn min(mut self, min: i64) -> Counter {
        self.min = min;
        self
    }

    /// Ends this long after it began, and starts again from 0. Unless told, a counter never ends.
    pub fn expire(mut self, time: Duration) -> Counter {
        self.expire = Some(time);
        self
    }

    /// Counts what was added within this time: "the last 60 minutes".
    ///
    /// It is kept in sixtieths: nothing older than the window counts, and nothing younger than 59/60 of
    /// it is left out. Up to 2⁵³ units. A windowed counter ends by itself.
    pub fn window(mut self, window: Duration) -> Counter {
        self.window = Some(window);
        self
    }

    /// For how long the ids of [`add_once`](Counter::add_once) are remembered: longer than anybody
    /// would try again. 24 hours by default.
    pub fn remember(mut self, time: Duration) -> Counter {
        self.remember = time;
        self
    }

    /// Adds, or subtracts if negative, and gives the value afterwards.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, or the outcome is unknown, it may or may not have been added. Use
    /// [`add_once`](Counter::add_once) to be able to try again.
    pub async fn add(&self, amount: i64) -> Result<Counted> {
        self.ask("add", amount, None).await
    }

    /// Adds once for each `operation`, however often this is called with the same id: a repeat gets the
    /// first one's answer. What was refused may be tried again.
    ///
    /// # Errors
    ///
    /// When the same id comes with another amount.
    pub async fn add_once(&self, operation: &str, amount: i64) -> Result<Counted> {
        let problem = if operation.is_empty() {
            Some("the operation's id is empty")
        } else if operation.len() > MAX_OPERATION_BYTES {
            Some("the operation's id is longer than 256 bytes")
        } else if operation.chars().any(char::is_control) {
            Some("the operation's id contains a control character")
        } else {
            None
        };
        if let Some(problem) = problem {
            return Err(Error::invalid("add", problem)
                .with_name(&self.name)
                .with_hint("use a fresh, short text for each operation"));
        }
        self.add_numbered(&operation.into(), 0, amount).await
    }

    /// Adds once for each number of an id. They come one after the other.
    async fn add_numbered(&self, id: &Arc<str>, number: u64, amount: i64) -> Result<Counted> {
        let operation = Operation {
            id: Arc::clone(id),
            number,
            remember: self.micros("remembering operations for", self.remember)?,
        };
        self.ask("add", amount, Some(operation)).await
    }

    /// The value.
    pub async fn get(&self) -> Result<i64> {
        Ok(self.ask("get", 0, None).await?.value)
    }

    /// Sets it back to 0, whatever its kind. Gives the value it had.
    ///
    /// Ids of operations are still remembered.
    pub async fn reset(&self) -> Result<i64> {
        let name = Name::new("reset", self.coordinator.namespace(), &self.name)?;
        let answer = self.coordinator.counters().reset(name);
        let keeper = self.coordinator.keeper();
        let value = keeper.call("reset", &self.name, answer).await;
        value.map_err(|e| self.coordinator.describe(e))
    }

    async fn ask(
        &self,
        verb: &'static str,
        amount: i64,
        operation: Option<Operation>,
    ) -> Result<Counted> {
        let name = Name::new(verb, self.coordinator.namespace(), &self.name)?;
        let expire = self.expire.map(|time| self.micros("an expiry of", time));
        let window = self.window.map(|time| self.micros("a window of", time));
        if self.window.is_some() && self.expire.is_some() {
            return Err(Error::invalid(verb, "a windowed counter ends by itself")
                .with_name(&self.name)
                .with_hint("leave the expiry out"));
        }
        if self.min > self.max {
            let (min, max) = (self.min, self.max);
            let message = format!("nothing is at least {min} and at most {max}");
            return Err(Error::invalid(verb, message)
                .with_name(&self.name)
                .with_hint("the lower bound must not be above the upper one"));
        }
        let ask = CounterRequest {
            name,
            addition: Addition {
                amount,
                min: self.min,
                max: self.max,
                expire: expire.transpose()?,
                window: window.transpose()?,
            },
            operation,
        };
        let answer = self.coordinator.counters().add(ask);
        let keeper = self.coordinator.keeper();
        let counted = keeper.call(verb, &self.name, answer).await;
        counted.map_err(|e| self.coordinator.describe(e))
    }

    fn micros(&self, what: &str, time: Duration) -> Result<u64> {
        let micros = u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
        // A millisecond is as short as Redis can be told.
        if (1_000..LONGEST_MICROS).contains(&micros) {
            return Ok(micros);
        }
        let message = format!("{what} {time:?} cannot be kept");
        Err(Error::invalid("use the counter", message)
            .with_name(&self.name)
            .with_hint("from 1 ms to 100 years"))
    }
}
