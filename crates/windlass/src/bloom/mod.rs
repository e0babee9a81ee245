//! Bloom filters: was this item here before, in a few bits for each?

mod filter;

use std::time::Duration;

pub use filter::{BloomFilter, BloomInfo};
pub use windlass_core::bloom::{BloomKind, Digest, Plan, Shape};

use crate::coordinator::Coordinator;
use windlass_core::error::{Error, ErrorKind, Result};
use windlass_core::name::Name;

/// The error rate of a filter, unless told otherwise.
pub const DEFAULT_ERROR_RATE: f64 = 0.01;

/// A Bloom filter to be: its name, and what it shall be like.
///
/// A filter answers "was this item here before?" in about 10 bits an item, whatever the item's
/// size. "No" is always true. "Yes" is wrong now and then: at the error rate once the filter holds as
/// many items as it was made for, more rarely before, more often after. Items cannot be removed.
///
/// The parameters are stored beside the filter. A program that comes with others gets an error;
/// the filter is never written by two rules.
///
/// # Example
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> windlass::Result<()> {
/// let w = windlass::connect("memory:").await?;
/// let crawled = w.bloom("crawled").capacity(1_000_000).error_rate(0.01).create().await?;
/// assert!(crawled.insert("https://example.org/").await?, "it is new");
/// assert!(!crawled.insert("https://example.org/").await?);
/// assert!(crawled.contains("https://example.org/").await?);
/// # Ok(()) }
/// ```
///
/// # When not to use this
///
/// If one wrong "seen before" costs money: that is what [`Seen`](crate::Seen) is for, which is exact, and
/// takes ten times the memory.
#[derive(Clone, Debug)]
#[must_use = "nothing is sent until the filter is created or opened"]
pub struct Bloom {
    coordinator: Coordinator,
    name: String,
    kind: BloomKind,
    slices: Option<u32>,
    size: Size,
}

#[derive(Clone, Copy, Debug)]
enum Size {
    Unsaid { error_rate: Option<f64> },
    For { capacity: u64, error_rate: f64 },
    ByHand { bits: u64, hashes: u32 },
}

impl Bloom {
    pub(crate) fn new(coordinator: Coordinator, name: &str) -> Bloom {
        Bloom {
            coordinator,
            name: name.to_owned(),
            kind: BloomKind::Fixed,
            slices: None,
            size: Size::Unsaid { error_rate: None },
        }
    }

    /// How many items the filter is made for.
    pub fn capacity(mut self, capacity: u64) -> Bloom {
        let error_rate = match self.size {
            Size::Unsaid { error_rate } => error_rate.unwrap_or(DEFAULT_ERROR_RATE),
            Size::For { error_rate, .. } => error_rate,
            Size::ByHand { .. } => DEFAULT_ERROR_RATE,
        };
        self.size = Size::For {
            capacity,
            error_rate,
        };
        self
    }

    /// The part of new items that may be taken for known ones, once `capacity` items are in: above 0
    /// and up to 0.5. 0.01 by default.
    pub fn error_rate(mut self, error_rate: f64) -> Bloom {
        self.size = match self.size {
            Size::For { capacity, .. } => Size::For {
                capacity,
                error_rate,
            },
            _ => Size::Unsaid {
                error_rate: Some(error_rate),
            },
        };
        self
    }

    /// The size by hand, instead of by capacity: how many bits there are, and how many of them
    /// stand for an item.
    pub fn sized(mut self, bits: u64, hashes: u32) -> Bloom {
        self.size = Size::ByHand { bits, hashes };
        self
    }

    /// Lets the filter grow: a generation that is full is followed by one of twice its
    /// capacity. Errors stay below the rate that was asked for; it costs one or two bits an item more, and
    /// a question to each generation.
    ///
    /// There are 16 generations at most, which is 65,535 times the capacity. After that, errors grow.
    pub fn growing(mut self) -> Bloom {
        self.kind = BloomKind::Growing;
        self
    }

    /// Lets the filter forget: an item is remembered for `window` after it was last inserted, and for
    /// two windows at most. `capacity` is then what comes in one window.
    pub fn rotating(mut self, window: Duration) -> Bloom {
        let slices = self.slices.unwrap_or(2);
        self.kind = BloomKind::Rotating { window, slices };
        self
    }

    /// In how many slices a rotating filter forgets, 2 by default.
    ///
    /// With more, an item is remembered for less beyond the window (a quarter with 5 slices), and
    /// less memory is used, if items come in at a steady rate: a slice is made for its share
    /// of the window.
    pub fn slices(mut self, count: u32) -> Bloom {
        self.slices = Some(count);
        if let BloomKind::Rotating { slices, .. } = &mut self.kind {
            *slices = count;
        }
        self
    }

    /// Creates the filter, or finds the one of that name and checks that it is like this.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the filter may or may not have been created; creating it again is
    /// harmless.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidInput`] for sizes that cannot work, [`ErrorKind::Mismatch`] if the name has
    /// a filter that was made with other parameters.
    pub async fn create(&self) -> Result<BloomFilter> {
        let operation = "create the filter";
        let wanted = self.plan()?.ok_or_else(|| {
            Error::invalid(operation, "no capacity was given")
                .with_name(&self.name)
                .with_hint("how many items are expected? say .capacity(1_000_000)")
        })?;
        let name = self.checked(operation)?;
        let store = self.coordinator.backend().blooms();
        let answer = store.create(name.clone(), wanted);
        let found = self.ask(operation, answer).await?;
        self.compare(operation, wanted, found)?;
        if wanted.kind == BloomKind::Fixed {
            // One call for each: a shard of 16 MiB takes the store some milliseconds.
            for shard in 0..wanted.shape.shards {
                let answer = store.prepare(name.clone(), wanted, shard);
                if self.ask(operation, answer).await?.is_none() {
                    let error = filter::gone(operation, &self.name);
                    return Err(self.coordinator.describe(error));
                }
            }
        }
        Ok(self.filter(store, name, wanted))
    }

    /// Opens the filter of that name. If sizes were given, they are compared with what is stored.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::NotFound`] if there is none, [`ErrorKind::Mismatch`] if it is not like this.
    pub async fn open(&self) -> Result<BloomFilter> {
        let operation = "open the filter";
        let wanted = self.plan()?;
        let name = self.checked(operation)?;
        let store = self.coordinator.backend().blooms();
        let answer = store.open(name.clone());
        let Some(found) = self.ask(operation, answer).await? else {
            let error = filter::gone(operation, &self.name);
            return Err(self.coordinator.describe(error));
        };
        self.compare(operation, wanted.unwrap_or(found), found)?;
        Ok(self.filter(store.clone(), name, found))
    }

    fn plan(&self) -> Result<Option<Plan>> {
        let plan = match self.size {
            Size::Unsaid { .. } => return Ok(None),
            Size::For {
                capacity,
                error_rate,
            } => Plan::sized(self.kind, capacity, error_rate),
            Size::ByHand { bits, hashes } => Plan::by_hand(self.kind, bits, hashes),
        };
        plan.map(Some).map_err(|e| e.with_name(&self.name))
    }

    fn compare(&self, operation: &'static str, wanted: Plan, found: Plan) -> Result<()> {
        if wanted == found {
            return Ok(());
        }
        let error = Error::new(
            ErrorKind::Mismatch,
            operation,
            format!("it was made with other parameters: {found}; asked for was {wanted}"),
        );
        Err(self.coordinator.describe(
            error
                .with_name(&self.name)
                .with_hint("use the same parameters, another name, or remove the filter first"),
        ))
    }

    fn checked(&self, operation: &'static str) -> Result<Name> {
        Name::new(operation, self.coordinator.namespace(), &self.name)
    }

    async fn ask<T>(
        &self,
        operation: &'static str,
        answer: impl Future<Output = Result<T>>,
    ) -> Result<T> {
        self.coordinator.call(operation, &self.name, answer).await
    }

    fn filter(
        &self,
        store: std::sync::Arc<dyn windlass_core::store::BloomStore>,
        name: Name,
        plan: Plan,
    ) -> BloomFilter {
        BloomFilter::new(self.coordinator.clone(), store, &self.name, name, plan)
    }
}
