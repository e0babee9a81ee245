//! [`Counter`]: a number that all clients add to.

mod buffered;

pub use buffered::BufferedCounter;

use std::sync::Arc;
use std::time::Duration;

use crate::coordinator::Coordinator;
use windlass_core::error::{Error, Result};
use windlass_core::name::Name;
use windlass_core::rules::counter::Addition;
use windlass_core::rules::limit::MAX_PERIOD_MICROS;
use windlass_core::store::counter::{Counted, CounterRequest, Operation};

/// A distributed counter, with optional bounds, expiry or time window.
///
/// # Guarantees
///
/// - An addition is one atomic step: none is lost, and each returns its own result.
/// - A [bound](Counter::max) refuses: what would exceed it is not added at all. The limits of 64 bits do the same:
///   nothing wraps around.
/// - [`add_once`](Counter::add_once) adds once per operation id, however often it is sent.
/// - As durable as the store.
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
#[must_use = "a counter does nothing until one of its methods is called"]
pub struct Counter {
    coordinator: Coordinator,
    name: String,
    min: i64,
    max: i64,
    expire: Option<Duration>,
    window: Option<Duration>,
    retention: Duration,
}

impl Counter {
    /// How long the id of an operation is kept, unless another [retention](Counter::retention) is set.
    pub const DEFAULT_RETENTION: Duration = Duration::from_secs(24 * 60 * 60);
    /// The longest id of an operation, in bytes.
    pub const MAX_OPERATION_BYTES: usize = 256;

    pub(crate) fn new(coordinator: Coordinator, name: &str) -> Counter {
        Counter {
            coordinator,
            name: name.to_owned(),
            min: i64::MIN,
            max: i64::MAX,
            expire: None,
            window: None,
            retention: Counter::DEFAULT_RETENTION,
        }
    }

    /// Refuses additions above this value. If the value is higher already, subtracting is allowed.
    pub fn max(mut self, max: i64) -> Counter {
        self.max = max;
        self
    }

    /// Refuses subtractions below this value. If the value is lower already, adding is allowed.
    pub fn min(mut self, min: i64) -> Counter {
        self.min = min;
        self
    }

    /// Expires this long after the first addition, and starts again from 0. By default a counter does not expire.
    pub fn expire(mut self, time: Duration) -> Counter {
        self.expire = Some(time);
        self
    }

    /// Counts what was added within this time, such as the last 60 minutes.
    ///
    /// The window has 60 slices: nothing older than the window counts, and nothing younger than 59/60 of it is left out.
    /// At most 2⁵³ units. A windowed counter expires on its own.
    pub fn window(mut self, window: Duration) -> Counter {
        self.window = Some(window);
        self
    }

    /// How long the store keeps the ids of [`add_once`](Counter::add_once): longer than any client retries. 24 hours by
    /// default.
    pub fn retention(mut self, retention: Duration) -> Counter {
        self.retention = retention;
        self
    }

    /// Adds, or subtracts if negative, and returns the new value.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, or the outcome is unknown, the amount may or may not have been added. Use
    /// [`add_once`](Counter::add_once) to be able to retry.
    pub async fn add(&self, amount: i64) -> Result<Counted> {
        self.send("add", amount, None).await
    }

    /// Adds once per `operation`, however often this is called with the same id: a repeat returns the first result. An
    /// addition that was refused may be retried.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the amount may or may not have been added; calling again with the same id is
    /// harmless.
    ///
    /// # Errors
    ///
    /// If the same id comes with another amount.
    pub async fn add_once(&self, operation: &str, amount: i64) -> Result<Counted> {
        let problem = if operation.is_empty() {
            Some("the operation's id is empty")
        } else if operation.len() > Counter::MAX_OPERATION_BYTES {
            Some("the operation's id is longer than 256 bytes")
        } else if operation.chars().any(char::is_control) {
            Some("the operation's id contains a control character")
        } else {
            None
        };
        if let Some(problem) = problem {
            return Err(Error::invalid("add", problem)
                .with_name(&self.name)
                .with_hint("use a new, short id for each operation"));
        }
        self.add_numbered(&operation.into(), 0, amount).await
    }

    /// Adds once per number of an id. Numbers are used one after the other.
    async fn add_numbered(&self, id: &Arc<str>, number: u64, amount: i64) -> Result<Counted> {
        let operation = Operation {
            id: Arc::clone(id),
            number,
            remember: self.micros("a retention of", self.retention)?,
        };
        self.send("add", amount, Some(operation)).await
    }

    /// Returns the value.
    pub async fn get(&self) -> Result<i64> {
        Ok(self.send("get", 0, None).await?.value)
    }

    /// Resets it to 0, whatever its kind. Returns the former value.
    ///
    /// Ids of operations are kept.
    pub async fn reset(&self) -> Result<i64> {
        let name = Name::new("reset", self.coordinator.namespace(), &self.name)?;
        let reply = self.coordinator.counters().reset(name);
        self.coordinator.call("reset", &self.name, reply).await
    }

    async fn send(
        &self,
        operation_name: &'static str,
        amount: i64,
        operation: Option<Operation>,
    ) -> Result<Counted> {
        let name = Name::new(operation_name, self.coordinator.namespace(), &self.name)?;
        let expire = self.expire.map(|time| self.micros("an expiry of", time));
        let window = self.window.map(|time| self.micros("a window of", time));
        if self.window.is_some() && self.expire.is_some() {
            return Err(Error::invalid(
                operation_name,
                "a counter with a window cannot have an expiry",
            )
            .with_name(&self.name)
            .with_hint("remove the expiry: the window expires on its own"));
        }
        if self.min > self.max {
            let (min, max) = (self.min, self.max);
            let message = format!("the minimum {min} is above the maximum {max}");
            return Err(Error::invalid(operation_name, message)
                .with_name(&self.name)
                .with_hint("swap the bounds"));
        }
        let request = CounterRequest {
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
        let reply = self.coordinator.counters().add(request);
        self.coordinator
            .call(operation_name, &self.name, reply)
            .await
    }

    fn micros(&self, what: &str, time: Duration) -> Result<u64> {
        let micros = u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
        // Redis expires keys by the millisecond.
        if (1_000..MAX_PERIOD_MICROS).contains(&micros) {
            return Ok(micros);
        }
        let message = format!("{what} {time:?} cannot be kept");
        Err(Error::invalid("use the counter", message)
            .with_name(&self.name)
            .with_hint("use 1 ms to 100 years"))
    }
}
