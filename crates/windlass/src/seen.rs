//! Exact de-duplication: was this item here before, within a window?

use std::sync::Arc;
use std::time::Duration;

use crate::coordinator::Coordinator;
use windlass_core::error::{Error, Result};
use windlass_core::name::Name;
use windlass_core::seen::Member;
use windlass_core::store::SeenStore;

/// How long an item is remembered, unless told otherwise.
pub const DEFAULT_WINDOW: Duration = Duration::from_secs(24 * 60 * 60);
const SHORTEST: Duration = Duration::from_millis(1);
const LONGEST: Duration = Duration::from_secs(100 * 365 * 24 * 60 * 60);
/// Items in one question to the store.
const BATCH: usize = 4_096;

/// Tells whether items were here before, exactly, within a window: for messages that may come twice.
///
/// # Guarantees
///
/// Each item is one indivisible decision: of several programs that see the same item at once, one is told
/// that it is new. The window runs from then; seeing it again does not prolong it. Items up to 64 bytes are
/// compared as they are, longer ones by SHA-256.
///
/// What the store forgets is new again: on a Redis without persistence, everything after a restart.
///
/// # Example
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> windlass::Result<()> {
/// # use std::time::Duration;
/// let w = windlass::connect("memory:").await?;
/// let orders = w.seen("orders").window(Duration::from_secs(3600));
/// assert!(orders.first("order 42").await?, "the first of its kind");
/// assert!(!orders.first("order 42").await?);
/// assert_eq!(orders.first_all(["order 42", "order 43"]).await?, [false, true]);
/// # Ok(()) }
/// ```
///
/// # When not to use this
///
/// To do something once and hand its result to whoever asks again, use [`Once`](crate::Once). If a wrong "seen before"
/// now and then does no harm, a [`Bloom`](crate::Bloom) filter takes a tenth of the memory.
#[derive(Clone, Debug)]
#[must_use = "nothing is looked at until an item is shown"]
pub struct Seen {
    coordinator: Coordinator,
    store: Arc<dyn SeenStore>,
    name: String,
    window: Duration,
}

impl Seen {
    pub(crate) fn new(coordinator: Coordinator, name: &str) -> Seen {
        Seen {
            store: coordinator.backend().seen(),
            coordinator,
            name: name.to_owned(),
            window: DEFAULT_WINDOW,
        }
    }

    /// How long an item is remembered: 1 ms to 100 years, 24 hours by default.
    pub fn window(mut self, window: Duration) -> Seen {
        self.window = window;
        self
    }

    /// Whether the item is the first of its kind within the window. It is remembered if so.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, or no answer comes, the item may or may not be remembered. Whoever
    /// would rather see it twice than never [forgets](Seen::forget) it before asking again.
    pub async fn first(&self, item: impl AsRef<[u8]>) -> Result<bool> {
        let answers = self.first_all([item]).await?;
        Ok(answers[0])
    }

    /// The same for many items, in batches; each is a decision of its own. If it fails, some may be remembered.
    pub async fn first_all<I>(&self, items: I) -> Result<Vec<bool>>
    where
        I: IntoIterator,
        I::Item: AsRef<[u8]>,
    {
        let operation = "look for what was seen";
        let name = self.checked(operation)?;
        let mut items = items.into_iter().map(|item| Member::of(item.as_ref()));
        let mut answers = Vec::new();
        loop {
            let batch: Vec<Member> = items.by_ref().take(BATCH).collect();
            if batch.is_empty() {
                return Ok(answers);
            }
            let answer = self.store.first(name.clone(), batch, self.window);
            answers.extend(self.coordinator.call(operation, &self.name, answer).await?);
        }
    }

    /// Whether the item is remembered. Changes nothing.
    pub async fn contains(&self, item: impl AsRef<[u8]>) -> Result<bool> {
        let operation = "look for what was seen";
        let name = self.checked(operation)?;
        let answer = self.store.contains(name, vec![Member::of(item.as_ref())]);
        let answers = self.coordinator.call(operation, &self.name, answer).await?;
        Ok(answers.first() == Some(&true))
    }

    /// Forgets an item, so that it is new again. Tells whether it was remembered.
    pub async fn forget(&self, item: impl AsRef<[u8]>) -> Result<bool> {
        let operation = "forget what was seen";
        let name = self.checked(operation)?;
        let answer = self.store.forget(name, Member::of(item.as_ref()));
        self.coordinator.call(operation, &self.name, answer).await
    }

    fn checked(&self, operation: &'static str) -> Result<Name> {
        if self.window < SHORTEST || self.window > LONGEST {
            let message = format!("the window is {:?}", self.window);
            let error = Error::invalid(operation, message).with_name(&self.name);
            return Err(error.with_hint("give a window from 1 ms to 100 years"));
        }
        Name::new(operation, self.coordinator.namespace(), &self.name)
    }
}
