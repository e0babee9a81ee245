//! What a store decides about Bloom filters.

use std::fmt;

use super::Pending;
use crate::bloom::{Digest, Plan, Shape};
use crate::name::Name;

/// Bloom filters: was this item here before?
///
/// A filter is known by its plan. Where the name has none, or another one, the answer is `None`, and
/// nothing that is stored was changed.
pub trait BloomStore: Send + Sync + fmt::Debug {
    /// Creates the filter, unless the name has one. Gives the plan that the name has now.
    fn create(&self, name: Name, plan: Plan) -> Pending<'_, Plan>;

    /// Takes the memory of one shard, so that a store that has none left says so now, rather than one day. For
    /// filters of one generation; a shard that was never prepared is made when it is needed.
    fn prepare(&self, _name: Name, _plan: Plan, _shard: u64) -> Pending<'_, Option<()>> {
        Box::pin(std::future::ready(Ok(Some(()))))
    }

    /// The plan of the filter of that name.
    fn open(&self, name: Name) -> Pending<'_, Option<Plan>>;

    /// Inserts items, and tells for each whether it was new. Each item is one decision.
    fn insert(&self, name: Name, plan: Plan, items: Vec<Digest>) -> Pending<'_, Option<Vec<bool>>>;

    /// Tells for each item whether it is in the filter. Changes nothing.
    fn contains(
        &self,
        name: Name,
        plan: Plan,
        items: Vec<Digest>,
    ) -> Pending<'_, Option<Vec<bool>>>;

    /// How full each living generation is.
    fn survey(&self, name: Name, plan: Plan) -> Pending<'_, Option<Vec<Filled>>>;

    /// Adds all of `from` to `into`; both have this plan, and do not grow or rotate.
    fn union(&self, into: Name, from: Name, plan: Plan) -> Pending<'_, Option<()>>;

    /// Removes the filter. Tells whether there was one.
    fn remove(&self, name: Name, plan: Plan) -> Pending<'_, bool>;
}

/// How full a generation is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Filled {
    /// Its size.
    pub shape: Shape,
    /// How many of its bits are set.
    pub set: u64,
}
