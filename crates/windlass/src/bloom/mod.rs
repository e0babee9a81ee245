//! [`Bloom`]: Bloom filters, approximate deduplication in a few bits per item.

mod filter;

use std::time::Duration;

pub use filter::{BloomFilter, BloomInfo};
use windlass_core::bloom::{BloomKey, BloomKind, Plan};

use crate::coordinator::Coordinator;
use windlass_core::error::{Error, ErrorKind, Result};
use windlass_core::name::Name;

/// A Bloom filter to create or open: its name and its parameters.
///
/// A filter answers "was this item inserted before?" in about 10 bits per item, whatever the item's size. "No" is always
/// true. "Yes" is sometimes wrong: at the error rate once the filter holds as many items as its capacity, more rarely
/// before, more often after. Items cannot be removed.
///
/// The parameters are stored beside the filter. A client with other parameters gets an error.
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
/// If a false "seen before" costs money, use [`Seen`](crate::Seen), which is exact and takes ten times the memory.
#[derive(Clone, Debug)]
#[must_use = "nothing is sent until the filter is created or opened"]
pub struct Bloom {
    coordinator: Coordinator,
    name: String,
    kind: BloomKind,
    slices: Option<u32>,
    size: FilterSize,
    key: Option<BloomKey>,
}

#[derive(Clone, Copy, Debug)]
enum FilterSize {
    Unset { error_rate: Option<f64> },
    ForCapacity { capacity: u64, error_rate: f64 },
    Explicit { bits: u64, hashes: u32 },
}

impl Bloom {
    /// The error rate, unless another one is set.
    pub const DEFAULT_ERROR_RATE: f64 = 0.01;

    pub(crate) fn new(coordinator: Coordinator, name: &str) -> Bloom {
        Bloom {
            coordinator,
            name: name.to_owned(),
            kind: BloomKind::Fixed,
            slices: None,
            size: FilterSize::Unset { error_rate: None },
            key: None,
        }
    }

    /// How many items the filter is sized for.
    pub fn capacity(mut self, capacity: u64) -> Bloom {
        let error_rate = match self.size {
            FilterSize::Unset { error_rate } => error_rate.unwrap_or(Bloom::DEFAULT_ERROR_RATE),
            FilterSize::ForCapacity { error_rate, .. } => error_rate,
            FilterSize::Explicit { .. } => Bloom::DEFAULT_ERROR_RATE,
        };
        self.size = FilterSize::ForCapacity {
            capacity,
            error_rate,
        };
        self
    }

    /// The false positive rate at capacity: above 0 and up to 0.5; 0.01 by default.
    pub fn error_rate(mut self, error_rate: f64) -> Bloom {
        self.size = match self.size {
            FilterSize::ForCapacity { capacity, .. } => FilterSize::ForCapacity {
                capacity,
                error_rate,
            },
            _ => FilterSize::Unset {
                error_rate: Some(error_rate),
            },
        };
        self
    }

    /// An explicit size instead of a capacity: the number of bits, and the number of hashes per item.
    pub fn sized(mut self, bits: u64, hashes: u32) -> Bloom {
        self.size = FilterSize::Explicit { bits, hashes };
        self
    }

    /// Lets the filter grow: a full generation is followed by one of twice its capacity. The error rate stays below the
    /// configured one. It costs a lookup in each generation, and bits: 1.44 more per item in the first generation, and
    /// 1.44 more again in each later one. At 1 % and 100 times the capacity, that is 23.3 bits per item instead of 9.6.
    ///
    /// There are at most 16 generations, which is 65,535 times the capacity. After that, the error rate grows.
    pub fn growing(mut self) -> Bloom {
        self.kind = BloomKind::Growing;
        self
    }

    /// Lets items expire: an item is kept for `window` after it was last inserted, and for at most two windows.
    /// `capacity` is then the number of items per window.
    pub fn rotating(mut self, window: Duration) -> Bloom {
        let slices = self.slices.unwrap_or(2);
        self.kind = BloomKind::Rotating { window, slices };
        self
    }

    /// The number of slices of a rotating filter; 2 by default.
    ///
    /// More slices keep an item for less beyond the window (a quarter with 5 slices), and use less memory if items
    /// arrive at a steady rate: a slice is sized for its share of the window.
    pub fn slices(mut self, count: u32) -> Bloom {
        self.slices = Some(count);
        if let BloomKind::Rotating { slices, .. } = &mut self.kind {
            *slices = count;
        }
        self
    }

    /// Hashes items with this secret key, by HMAC-SHA-256 instead of XXH3: for items that others choose.
    ///
    /// XXH3 is made for speed. Anyone can compute different items of more than 240 bytes that have the same hash, so that
    /// one is "seen before" once the other is inserted. Without the key nobody can. It does not lower the error rate:
    /// a client that may look up items still finds some by trying.
    ///
    /// All clients of the filter need the key. The store keeps a check value of it, never the key: a client without the
    /// key, or with another one, gets [`ErrorKind::Mismatch`]. The key of a filter cannot be changed.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> windlass::Result<()> {
    /// use windlass::BloomKey;
    ///
    /// # let secret = [7; 32];
    /// let w = windlass::connect("memory:").await?;
    /// let key = BloomKey::new(&secret)?; // 32 random bytes
    /// let urls = w.bloom("urls").capacity(1_000_000).keyed(key).create().await?;
    /// assert!(urls.insert("https://example.org/").await?);
    /// assert!(w.bloom("urls").open().await.is_err(), "it has a key");
    /// # Ok(()) }
    /// ```
    pub fn keyed(mut self, key: BloomKey) -> Bloom {
        self.key = Some(key);
        self
    }

    /// Creates the filter, or opens the existing one if its parameters are the same.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the filter may or may not have been created; creating it again is harmless.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidInput`] for invalid sizes, [`ErrorKind::Mismatch`] if the existing filter has other
    /// parameters.
    pub async fn create(&self) -> Result<BloomFilter> {
        let operation = "create the filter";
        let wanted = self.plan()?.ok_or_else(|| {
            Error::invalid(operation, "no capacity was given")
                .with_name(&self.name)
                .with_hint("set the number of expected items, such as capacity(1_000_000)")
        })?;
        let name = self.full_name(operation)?;
        let store = self.coordinator.backend().blooms();
        let reply = store.create(name.clone(), wanted);
        let found = self.call(operation, reply).await?;
        self.compare(operation, wanted, found)?;
        if wanted.kind == BloomKind::Fixed {
            // One call per shard: allocating 16 MiB takes the store some milliseconds.
            for shard in 0..wanted.shape.shards {
                let reply = store.prepare(name.clone(), wanted, shard);
                if self.call(operation, reply).await?.is_none() {
                    let error = filter::gone(operation, &self.name);
                    return Err(self.coordinator.describe(error));
                }
            }
        }
        Ok(self.filter(store, name, wanted))
    }

    /// Opens an existing filter. Sizes that are set must match the stored ones, and the key must be its key.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::NotFound`] if there is none, [`ErrorKind::Mismatch`] if its parameters differ.
    pub async fn open(&self) -> Result<BloomFilter> {
        let operation = "open the filter";
        let wanted = self.plan()?;
        let name = self.full_name(operation)?;
        let store = self.coordinator.backend().blooms();
        let reply = store.open(name.clone());
        let Some(found) = self.call(operation, reply).await? else {
            let error = filter::gone(operation, &self.name);
            return Err(self.coordinator.describe(error));
        };
        let wanted = wanted.unwrap_or(found.keyed(self.key.as_ref()));
        self.compare(operation, wanted, found)?;
        Ok(self.filter(store.clone(), name, found))
    }

    /// Removes the filter of this name and its contents, whatever its parameters; its key is not needed. Returns whether
    /// it existed.
    pub async fn remove(&self) -> Result<bool> {
        let operation = "remove the filter";
        let name = self.full_name(operation)?;
        let store = self.coordinator.backend().blooms();
        let Some(found) = self.call(operation, store.open(name.clone())).await? else {
            return Ok(false);
        };
        self.call(operation, store.remove(name, found)).await
    }

    fn plan(&self) -> Result<Option<Plan>> {
        let plan = match self.size {
            FilterSize::Unset { .. } => return Ok(None),
            FilterSize::ForCapacity {
                capacity,
                error_rate,
            } => Plan::sized(self.kind, capacity, error_rate),
            FilterSize::Explicit { bits, hashes } => Plan::with_bits(self.kind, bits, hashes),
        };
        let plan = plan.map_err(|e| e.with_name(&self.name))?;
        Ok(Some(plan.keyed(self.key.as_ref())))
    }

    fn compare(&self, operation: &'static str, wanted: Plan, found: Plan) -> Result<()> {
        if wanted == found {
            return Ok(());
        }
        let same_key = wanted.key_check == found.key_check;
        let (message, hint) = match (same_key, wanted.key_check, found.key_check) {
            (true, ..) => (
                format!("it was created with other parameters: {found}; requested: {wanted}"),
                "use the same parameters, another name, or remove the filter first",
            ),
            (false, None, _) => (
                "it was created with a key, and this client has none".to_owned(),
                "give its key: Bloom::keyed, or --key-file on the command line",
            ),
            (false, _, None) => (
                "it was created without a key".to_owned(),
                "open it without a key, or create another filter with one",
            ),
            (false, ..) => (
                "it was created with another key".to_owned(),
                "give the key with which it was created",
            ),
        };
        let error = Error::new(ErrorKind::Mismatch, operation, message);
        let error = error.with_name(&self.name).with_hint(hint);
        Err(self.coordinator.describe(error))
    }

    fn full_name(&self, operation: &'static str) -> Result<Name> {
        Name::new(operation, self.coordinator.namespace(), &self.name)
    }

    async fn call<T>(
        &self,
        operation: &'static str,
        reply: impl Future<Output = Result<T>>,
    ) -> Result<T> {
        self.coordinator.call(operation, &self.name, reply).await
    }

    fn filter(
        &self,
        store: std::sync::Arc<dyn windlass_core::store::BloomStore>,
        name: Name,
        plan: Plan,
    ) -> BloomFilter {
        BloomFilter::new(
            self.coordinator.clone(),
            store,
            &self.name,
            name,
            plan,
            self.key.clone(),
        )
    }
}
