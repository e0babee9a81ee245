//! Bloom filters.

use std::fmt;
use std::ops::RangeInclusive;

use super::Pending;
use crate::bloom::{Digest, Plan};
use crate::name::Name;

/// Stores Bloom filters.
///
/// A client names the filter and its [`Plan`]. If the name has no filter, or one of another plan,
/// the answer is `None` and nothing changes.
pub trait BloomStore: Send + Sync + fmt::Debug {
    /// Creates the filter, unless the name has one. Returns the plan that the name has now.
    fn create(&self, name: Name, plan: Plan) -> Pending<'_, Plan>;

    /// Allocates one shard, so that a store without enough memory fails now and not at a later
    /// insertion. For filters of one generation; a shard that was not prepared is created when it
    /// is needed.
    fn prepare(&self, _name: Name, _plan: Plan, _shard: u64) -> Pending<'_, Option<()>> {
        Box::pin(std::future::ready(Ok(Some(()))))
    }

    /// The plan of the filter.
    fn open(&self, name: Name) -> Pending<'_, Option<Plan>>;

    /// Inserts items. Returns for each whether it was new. Each item is one decision.
    fn insert(&self, name: Name, plan: Plan, items: Vec<Digest>) -> Pending<'_, Option<Vec<bool>>>;

    /// Returns for each item whether it is in the filter. Changes nothing.
    fn contains(
        &self,
        name: Name,
        plan: Plan,
        items: Vec<Digest>,
    ) -> Pending<'_, Option<Vec<bool>>>;

    /// The generations that count now.
    fn generations(&self, name: Name, plan: Plan) -> Pending<'_, Option<RangeInclusive<u64>>>;

    /// The number of bits that are set in one shard of a generation. By shard, so that a call takes
    /// no longer if the filter is larger.
    fn count_bits(
        &self,
        name: Name,
        plan: Plan,
        generation: u64,
        shard: u64,
    ) -> Pending<'_, Option<u64>>;

    /// Adds one shard of `from` to `into`; both have this plan, and do not grow or rotate.
    fn union(&self, into: Name, from: Name, plan: Plan, shard: u64) -> Pending<'_, Option<()>>;

    /// Removes the filter. Returns whether there was one.
    fn remove(&self, name: Name, plan: Plan) -> Pending<'_, bool>;
}
