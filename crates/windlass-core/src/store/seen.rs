//! What a store decides about what was seen before.

use std::fmt;
use std::time::Duration;

use super::Pending;
use crate::name::Name;
use crate::seen::Member;

/// What was seen, exactly, for a while.
pub trait SeenStore: Send + Sync + fmt::Debug {
    /// Remembers items for `window`, and tells for each whether it was new. An item that is remembered
    /// already is left as it is. Each item is one decision.
    fn first(&self, name: Name, items: Vec<Member>, window: Duration) -> Pending<'_, Vec<bool>>;

    /// Whether each item is remembered. Changes nothing.
    fn contains(&self, name: Name, items: Vec<Member>) -> Pending<'_, Vec<bool>>;

    /// Forgets an item. Tells whether it was remembered.
    fn forget(&self, name: Name, item: Member) -> Pending<'_, bool>;
}
