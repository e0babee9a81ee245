//! Deduplication: which items were seen within a window.

use std::fmt;
use std::time::Duration;

use super::Pending;
use crate::name::Name;
use crate::seen::Member;

/// Stores deduplication windows: sets of items, each of which is kept for a time. Exact, unlike a
/// Bloom filter.
pub trait SeenStore: Send + Sync + fmt::Debug {
    /// Adds items for `window`, and returns for each whether it was new. An item that is in the
    /// window stays as it is. Each item is one decision.
    fn first(&self, name: Name, items: Vec<Member>, window: Duration) -> Pending<'_, Vec<bool>>;

    /// Returns for each item whether it is in the window. Changes nothing.
    fn contains(&self, name: Name, items: Vec<Member>) -> Pending<'_, Vec<bool>>;

    /// Removes an item. Returns whether it was in the window.
    fn forget(&self, name: Name, item: Member) -> Pending<'_, bool>;
}
