//! A filter that exists.

use std::sync::Arc;

use super::{BloomKind, Digest, Plan};
use crate::coordinator::Coordinator;
use windlass_core::error::{Error, ErrorKind, Result};
use windlass_core::name::Name;
use windlass_core::store::{BloomStore, Filled, Pending};

/// Items in one question to the store: bounds how long the store is kept from others, and what is
/// unsure when no answer comes.
const BATCH: usize = 16_384;
/// The same for filters of several generations, where an item costs the store more.
const SMALL_BATCH: usize = 512;

/// A Bloom filter that exists in the store. Cheap to clone.
///
/// # Guarantees
///
/// Each insertion is one indivisible decision: of several programs that insert the same item at
/// once, at most one is told that it was new. What the store forgets, the filter forgets; a filter that
/// is gone is an error, and never an empty filter to which everything is new.
#[derive(Clone, Debug)]
pub struct BloomFilter {
    coordinator: Coordinator,
    store: Arc<dyn BloomStore>,
    shown: String,
    name: Name,
    plan: Plan,
}

/// What a filter holds, as far as it can be told.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub struct BloomInfo {
    /// Bits in all living generations.
    pub bits: u64,
    /// Bytes that they take in the store, without what the store needs for itself.
    pub bytes: u64,
    /// How many living generations there are.
    pub generations: u64,
    /// About how many different items were inserted.
    pub estimate: u64,
    /// The part of new items that would be taken for known ones now.
    pub error_rate: f64,
}

impl BloomFilter {
    pub(super) fn new(
        coordinator: Coordinator,
        store: Arc<dyn BloomStore>,
        shown: &str,
        name: Name,
        plan: Plan,
    ) -> BloomFilter {
        BloomFilter {
            coordinator,
            store,
            shown: shown.to_owned(),
            name,
            plan,
        }
    }

    /// The parameters it was made with.
    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    /// Inserts an item, and tells whether it was new. Any bytes will do, none at all included; only their
    /// hash travels.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the item may or may not be in the filter; who inserts it again
    /// may be told that it is not new.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::NotFound`] if the filter is gone, or was made anew with other parameters.
    pub async fn insert(&self, item: impl AsRef<[u8]>) -> Result<bool> {
        let answer = self.insert_all([item]).await?;
        Ok(answer[0])
    }

    /// Inserts many items, and tells for each whether it was new.
    ///
    /// Each item is a decision of its own; if this fails, some may be in. There is no limit to how many:
    /// they travel in batches.
    pub async fn insert_all<I>(&self, items: I) -> Result<Vec<bool>>
    where
        I: IntoIterator,
        I::Item: AsRef<[u8]>,
    {
        let insert = |batch| self.store.insert(self.name.clone(), self.plan, batch);
        self.in_batches("insert into the filter", items, insert)
            .await
    }

    /// Whether an item was inserted; wrong now and then if it says yes. Changes nothing, and can be
    /// asked of a replica.
    pub async fn contains(&self, item: impl AsRef<[u8]>) -> Result<bool> {
        let answer = self.contains_all([item]).await?;
        Ok(answer[0])
    }

    /// Whether each of many items was inserted.
    pub async fn contains_all<I>(&self, items: I) -> Result<Vec<bool>>
    where
        I: IntoIterator,
        I::Item: AsRef<[u8]>,
    {
        let contains = |batch| self.store.contains(self.name.clone(), self.plan, batch);
        self.in_batches("ask the filter", items, contains).await
    }

    /// How full the filter is. The store counts every bit for this.
    pub async fn info(&self) -> Result<BloomInfo> {
        let answer = self.store.survey(self.name.clone(), self.plan);
        let generations = self.ask("look at the filter", answer).await?;
        let total = |of: fn(&Filled) -> u64| generations.iter().map(of).sum();
        let estimate: f64 = generations.iter().map(estimate).sum();
        // By logarithms: the rates may be too small to be told from 0 otherwise.
        let spared: f64 = generations.iter().map(|g| (-error_rate(g)).ln_1p()).sum();
        Ok(BloomInfo {
            bits: total(|g| g.shape.total_bits()),
            bytes: total(|g| g.shape.bytes()),
            generations: generations.len() as u64,
            estimate: estimate.round() as u64,
            error_rate: -spared.exp_m1(),
        })
    }

    /// Adds all that is in `other` to this filter, which then answers as if everything had been
    /// inserted into it. Both must be on the same store and of the same parameters.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Mismatch`] if they are not alike, [`ErrorKind::Unsupported`] for filters that grow
    /// or rotate.
    pub async fn union(&self, other: &BloomFilter) -> Result<()> {
        let operation = "unite the filters";
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
                "the filters were made with different parameters",
                "only filters of the same capacity and error rate can be united",
            );
        }
        if self.plan.kind != BloomKind::Fixed {
            return refuse(
                ErrorKind::Unsupported,
                "filters that grow or rotate cannot be united",
                "insert the items instead",
            );
        }
        let (into, from) = (self.name.clone(), other.name.clone());
        let answer = self.store.union(into, from, self.plan);
        self.ask(operation, answer).await
    }

    /// Removes the filter with all it knows. Tells whether there was one.
    pub async fn remove(self) -> Result<bool> {
        let answer = self.store.remove(self.name.clone(), self.plan);
        self.coordinator
            .call("remove the filter", &self.shown, answer)
            .await
    }

    async fn in_batches<'a, I>(
        &'a self,
        operation: &'static str,
        items: I,
        ask: impl Fn(Vec<Digest>) -> Pending<'a, Option<Vec<bool>>>,
    ) -> Result<Vec<bool>>
    where
        I: IntoIterator,
        I::Item: AsRef<[u8]>,
    {
        let mut answers = Vec::new();
        let mut items = items.into_iter().map(|item| Digest::of(item.as_ref()));
        loop {
            let batch: Vec<Digest> = items.by_ref().take(self.batch()).collect();
            if batch.is_empty() {
                return Ok(answers);
            }
            answers.extend(self.ask(operation, ask(batch)).await?);
        }
    }

    fn batch(&self) -> usize {
        match self.plan.kind {
            BloomKind::Fixed => BATCH,
            _ => SMALL_BATCH,
        }
    }

    async fn ask<T>(
        &self,
        operation: &'static str,
        answer: impl Future<Output = Result<Option<T>>>,
    ) -> Result<T> {
        let answer = self.coordinator.call(operation, &self.shown, answer);
        let gone = || self.coordinator.describe(gone(operation, &self.shown));
        answer.await?.ok_or_else(gone)
    }
}

pub(super) fn gone(operation: &'static str, name: &str) -> Error {
    Error::new(
        ErrorKind::NotFound,
        operation,
        "there is no such filter (any more)",
    )
    .with_name(name)
    .with_hint("create it, with a capacity and an error rate")
}

/// About how many items set so many bits (Swamidass and Baldi).
fn estimate(filled: &Filled) -> f64 {
    let (bits, set) = (filled.shape.total_bits() as f64, filled.set as f64);
    let hashes = f64::from(filled.shape.hashes);
    // A filter with no bit left says nothing but "at least this many".
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
    use crate::bloom::Shape;

    #[test]
    fn estimates() {
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
