//! [`BloomFilter`]: an existing Bloom filter.

use std::sync::Arc;

use crate::coordinator::Coordinator;
use windlass_core::bloom::{BloomKey, BloomKind, Digest, Plan, Shape};
use windlass_core::error::{Error, ErrorKind, Result};
use windlass_core::name::Name;
use windlass_core::store::{BloomStore, Pending};

/// The most items in one store call: bounds how long the store serves no other client, and how many outcomes are
/// unknown when the reply is lost.
const BATCH: usize = 16_384;
/// The same for filters of several generations, where an item costs the store more.
const SMALL_BATCH: usize = 512;

/// An existing Bloom filter. Cheap to clone.
///
/// # Guarantees
///
/// Each insertion is one atomic decision: of several clients that insert the same item at once, at most one
/// gets "new". What the store loses, the filter loses. A filter that is gone is an error, never an empty filter.
#[derive(Clone, Debug)]
pub struct BloomFilter {
    coordinator: Coordinator,
    store: Arc<dyn BloomStore>,
    shown: String,
    name: Name,
    plan: Plan,
    key: Option<BloomKey>,
}

/// The size and fill level of a Bloom filter.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct BloomInfo {
    /// The bits of all current generations.
    pub bits: u64,
    /// The bytes that they take in the store, without the store's overhead.
    pub bytes: u64,
    /// The number of current generations.
    pub generations: u64,
    /// The estimated number of distinct items inserted.
    pub estimate: u64,
    /// The current false positive rate.
    pub error_rate: f64,
}

impl BloomFilter {
    pub(super) fn new(
        coordinator: Coordinator,
        store: Arc<dyn BloomStore>,
        shown: &str,
        name: Name,
        plan: Plan,
        key: Option<BloomKey>,
    ) -> BloomFilter {
        BloomFilter {
            coordinator,
            store,
            shown: shown.to_owned(),
            name,
            plan,
            key,
        }
    }

    /// The parameters with which it was created.
    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    /// Inserts an item, and returns whether it was new. An item is any byte string; only its hash is sent.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the item may or may not be in the filter; inserting it again may return `false`.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::NotFound`] if the filter is gone, or was created again with other parameters.
    pub async fn insert(&self, item: impl AsRef<[u8]>) -> Result<bool> {
        let new = self.insert_all([item]).await?;
        Ok(new[0])
    }

    /// Inserts any number of items in batches, and returns for each whether it was new.
    ///
    /// Each item is a decision of its own; if this fails, some may have been inserted.
    ///
    /// The future does not contain the iterator: with one that borrows, such as `.map(|user| &user.name)`, the compiler
    /// could not prove that it is `Send`.
    pub fn insert_all<I>(&self, items: I) -> Pending<'_, Vec<bool>>
    where
        I: IntoIterator,
        I::Item: AsRef<[u8]>,
    {
        let insert = |batch| self.store.insert(self.name.clone(), self.plan, batch);
        self.in_batches("insert into the filter", items, insert)
    }

    /// Whether an item was inserted; `true` is sometimes wrong. Changes nothing.
    pub async fn contains(&self, item: impl AsRef<[u8]>) -> Result<bool> {
        let contains = self.contains_all([item]).await?;
        Ok(contains[0])
    }

    /// Whether each of many items was inserted.
    pub fn contains_all<I>(&self, items: I) -> Pending<'_, Vec<bool>>
    where
        I: IntoIterator,
        I::Item: AsRef<[u8]>,
    {
        let contains = |batch| self.store.contains(self.name.clone(), self.plan, batch);
        self.in_batches("look up in the filter", items, contains)
    }

    /// Returns the size and fill level. The store counts every bit for this, in one call for each
    /// 16 MiB.
    pub async fn info(&self) -> Result<BloomInfo> {
        let operation = "inspect the filter";
        let living = self.store.generations(self.name.clone(), self.plan);
        let mut generations = Vec::new();
        for generation in self.call(operation, living).await? {
            let shape = self.plan.shape(generation);
            let mut set = 0;
            for shard in 0..shape.shards {
                let name = self.name.clone();
                let reply = self.store.count_bits(name, self.plan, generation, shard);
                set += self.call(operation, reply).await?;
            }
            generations.push(Filled { shape, set });
        }
        let total = |of: fn(&Filled) -> u64| generations.iter().map(of).sum();
        let estimate: f64 = generations.iter().map(estimate).sum();
        // In logarithms, because 1 - rate rounds to 1 for small rates.
        let log_correct: f64 = generations.iter().map(|g| (-error_rate(g)).ln_1p()).sum();
        Ok(BloomInfo {
            bits: total(|g| g.shape.total_bits()),
            bytes: total(|g| g.shape.bytes()),
            generations: generations.len() as u64,
            estimate: estimate.round() as u64,
            error_rate: -log_correct.exp_m1(),
        })
    }

    /// Adds the contents of `other` to this filter. Both must be on the same store and have the same parameters.
    ///
    /// Large filters are merged in parts of at most 16 MiB, so that the store serves others in between. After an
    /// error some parts may be merged already; repeating the call completes it.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Mismatch`] if the parameters differ, [`ErrorKind::Unsupported`] for filters that grow or rotate.
    pub async fn union(&self, other: &BloomFilter) -> Result<()> {
        let operation = "merge the filters";
        let refuse = |kind, message: &str, hint: &str| {
            let error = Error::new(kind, operation, message).with_name(&self.shown);
            Err(self.coordinator.describe(error.with_hint(hint)))
        };
        if self.coordinator.address() != other.coordinator.address() {
            return refuse(
                ErrorKind::Mismatch,
                "the filters are on different stores",
                "insert the items into both instead",
            );
        }
        if self.plan != other.plan {
            return refuse(
                ErrorKind::Mismatch,
                "the filters were created with different parameters",
                "only filters with the same capacity, error rate and key can be merged",
            );
        }
        if self.plan.kind != BloomKind::Fixed {
            return refuse(
                ErrorKind::Unsupported,
                "filters that grow or rotate cannot be merged",
                "insert the items instead",
            );
        }
        for shard in 0..self.plan.shape.shards {
            let (into, from) = (self.name.clone(), other.name.clone());
            let reply = self.store.union(into, from, self.plan, shard);
            self.call(operation, reply).await?;
        }
        Ok(())
    }

    /// Removes the filter and its contents. Returns whether it existed.
    pub async fn remove(self) -> Result<bool> {
        let reply = self.store.remove(self.name.clone(), self.plan);
        self.coordinator
            .call("remove the filter", &self.shown, reply)
            .await
    }

    fn in_batches<'a, I>(
        &'a self,
        operation: &'static str,
        items: I,
        send: impl Fn(Vec<Digest>) -> Pending<'a, Option<Vec<bool>>> + Send + 'a,
    ) -> Pending<'a, Vec<bool>>
    where
        I: IntoIterator,
        I::Item: AsRef<[u8]>,
    {
        let digest = |item: I::Item| match &self.key {
            Some(key) => key.digest(item.as_ref()),
            None => Digest::of(item.as_ref()),
        };
        let digests: Vec<Digest> = items.into_iter().map(digest).collect();
        Box::pin(async move {
            let mut results = Vec::with_capacity(digests.len());
            for batch in digests.chunks(self.batch()) {
                results.extend(self.call(operation, send(batch.to_vec())).await?);
            }
            Ok(results)
        })
    }

    fn batch(&self) -> usize {
        match self.plan.kind {
            BloomKind::Fixed => BATCH,
            _ => SMALL_BATCH,
        }
    }

    /// The reply; an error if the filter is gone.
    async fn call<T>(
        &self,
        operation: &'static str,
        reply: impl Future<Output = Result<Option<T>>>,
    ) -> Result<T> {
        let reply = self.coordinator.call(operation, &self.shown, reply);
        let gone = || self.coordinator.describe(gone(operation, &self.shown));
        reply.await?.ok_or_else(gone)
    }
}

pub(super) fn gone(operation: &'static str, name: &str) -> Error {
    Error::new(ErrorKind::NotFound, operation, "there is no such filter")
        .with_name(name)
        .with_hint("create it with a capacity and an error rate")
}

/// How full a generation is.
struct Filled {
    shape: Shape,
    /// The number of its bits that are set.
    set: u64,
}

/// The estimated number of items, from the bits that are set (Swamidass and Baldi).
fn estimate(filled: &Filled) -> f64 {
    let (bits, set) = (filled.shape.total_bits() as f64, filled.set as f64);
    let hashes = f64::from(filled.shape.hashes);
    // A filter with all bits set only gives a lower bound.
    let part = (set / bits).min(1.0 - 0.5 / bits);
    -bits / hashes * (-part).ln_1p()
}

fn error_rate(filled: &Filled) -> f64 {
    let part = filled.set as f64 / filled.shape.total_bits() as f64;
    part.powi(filled.shape.hashes as i32)
}

#[cfg(test)]
mod tests {
    use super::*;
    use windlass_core::bloom::Shape;

    #[tokio::test]
    async fn items_may_be_borrowed_in_a_spawned_task() {
        let store = crate::connect("memory:").await.unwrap();
        let filter = store.bloom("f").capacity(10).error_rate(0.001);
        let filter = filter.create().await.unwrap();
        let seen = store.seen("s");
        let task = tokio::spawn(async move {
            let users = [("ann".to_owned(), 1), ("bob".to_owned(), 2)];
            let names = || users.iter().map(|(name, _)| name.as_bytes());
            let new = filter.insert_all(names()).await.unwrap();
            let known = filter.contains_all(names()).await.unwrap();
            let first = seen.first_all(names()).await.unwrap();
            (new, known, first)
        });
        let both = vec![true, true];
        assert_eq!(task.await.unwrap(), (both.clone(), both.clone(), both));
    }

    #[test]
    fn estimate_matches_inserted_items() {
        let shape = Shape {
            bits: 9_585_059,
            shards: 1,
            hashes: 7,
        };
        let of = |set| estimate(&Filled { shape, set }).round();
        assert_eq!(of(0), 0.0);
        assert_eq!(of(7), 1.0);
        // 1 million items set 51.8 % of the bits.
        let set = (1.0 - (-7e6f64 / 9_585_059.0).exp()) * 9_585_059.0;
        assert!((of(set as u64) / 1e6 - 1.0).abs() < 1e-5);
        assert!(of(9_585_059).is_finite());
    }
}
