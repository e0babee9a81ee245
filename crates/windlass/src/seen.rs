//! [`Seen`]: exact deduplication within a time window.

use std::sync::Arc;
use std::time::Duration;

use crate::coordinator::Coordinator;
use windlass_core::error::{Error, Result};
use windlass_core::name::Name;
use windlass_core::seen::Member;
use windlass_core::store::{Pending, SeenStore};

const SHORTEST: Duration = Duration::from_millis(1);
const LONGEST: Duration = Duration::from_secs(100 * 365 * 24 * 60 * 60);
/// The most items in one store call.
const BATCH: usize = 4_096;

/// Exact deduplication: was this item seen before, within a time window?
///
/// # Guarantees
///
/// Each item is one atomic decision: of several clients that see the same item at once, exactly one is the first. The
/// window starts then; seeing the item again does not extend it. Items up to 64 bytes are compared as they are, longer
/// ones by SHA-256.
///
/// What the store loses is new again: on a Redis without persistence, everything after a restart.
///
/// # Example
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> windlass::Result<()> {
/// # use std::time::Duration;
/// let w = windlass::connect("memory:").await?;
/// let orders = w.seen("orders").window(Duration::from_secs(3600));
/// assert!(orders.first("order 42").await?, "seen for the first time");
/// assert!(!orders.first("order 42").await?);
/// assert_eq!(orders.first_all(["order 42", "order 43"]).await?, [false, true]);
/// # Ok(()) }
/// ```
///
/// # When not to use this
///
/// To run something once and return its result to later callers, use [`Once`](crate::Once). If an occasional false "seen
/// before" is acceptable, a [`Bloom`](crate::Bloom) filter takes a tenth of the memory.
#[derive(Clone, Debug)]
#[must_use = "nothing is sent until an item is checked"]
pub struct Seen {
    coordinator: Coordinator,
    store: Arc<dyn SeenStore>,
    name: String,
    window: Duration,
}

impl Seen {
    /// How long an item is kept, unless another [window](Seen::window) is set.
    pub const DEFAULT_WINDOW: Duration = Duration::from_secs(24 * 60 * 60);

    pub(crate) fn new(coordinator: Coordinator, name: &str) -> Seen {
        Seen {
            store: coordinator.backend().seen(),
            coordinator,
            name: name.to_owned(),
            window: Seen::DEFAULT_WINDOW,
        }
    }

    /// How long an item is kept: 1 ms to 100 years, 24 hours by default.
    pub fn window(mut self, window: Duration) -> Seen {
        self.window = window;
        self
    }

    /// Whether the item is new within the window. If so, it is stored.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, or the outcome is unknown, the item may or may not be stored. To process it
    /// twice rather than never, [forget](Seen::forget) it before calling again.
    pub async fn first(&self, item: impl AsRef<[u8]>) -> Result<bool> {
        let firsts = self.first_all([item]).await?;
        Ok(firsts[0])
    }

    /// As [`first`](Seen::first) for many items, in batches; each is a decision of its own. If it fails, some may be
    /// stored.
    ///
    /// The future does not contain the iterator: with one that borrows, such as `.map(|order| &order.id)`, the compiler
    /// could not prove that it is `Send`.
    pub fn first_all<I>(&self, items: I) -> Pending<'_, Vec<bool>>
    where
        I: IntoIterator,
        I::Item: AsRef<[u8]>,
    {
        let member = |item: I::Item| Member::of(item.as_ref());
        let members: Vec<Member> = items.into_iter().map(member).collect();
        Box::pin(async move {
            let operation = "check for duplicates";
            let name = self.full_name(operation)?;
            let mut firsts = Vec::with_capacity(members.len());
            for batch in members.chunks(BATCH) {
                let reply = self.store.first(name.clone(), batch.to_vec(), self.window);
                firsts.extend(self.coordinator.call(operation, &self.name, reply).await?);
            }
            Ok(firsts)
        })
    }

    /// Whether the item is stored. Changes nothing.
    pub async fn contains(&self, item: impl AsRef<[u8]>) -> Result<bool> {
        let operation = "check for duplicates";
        let name = self.full_name(operation)?;
        let reply = self.store.contains(name, vec![Member::of(item.as_ref())]);
        let contains = self.coordinator.call(operation, &self.name, reply).await?;
        Ok(contains.first() == Some(&true))
    }

    /// Forgets an item, so that it is new again. Returns whether it was stored.
    pub async fn forget(&self, item: impl AsRef<[u8]>) -> Result<bool> {
        let operation = "forget the item";
        let name = self.full_name(operation)?;
        let reply = self.store.forget(name, Member::of(item.as_ref()));
        self.coordinator.call(operation, &self.name, reply).await
    }

    fn full_name(&self, operation: &'static str) -> Result<Name> {
        if self.window < SHORTEST || self.window > LONGEST {
            let message = format!("a window of {:?} is outside 1 ms to 100 years", self.window);
            let error = Error::invalid(operation, message).with_name(&self.name);
            return Err(error);
        }
        Name::new(operation, self.coordinator.namespace(), &self.name)
    }
}
