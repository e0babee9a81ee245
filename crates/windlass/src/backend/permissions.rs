//! What a store decides about permissions.

use std::fmt;

use super::Pending;
use crate::name::Name;
use crate::permissions::Schema;

/// Permissions: a few bits for each subject and resource.
pub trait PermissionStore: Send + Sync + fmt::Debug {
    /// The schema of a space.
    fn schema(&self, space: Name) -> Pending<'_, Option<Schema>>;

    /// Stores a schema, if what is stored is still `before`. Tells whether it was.
    fn define(&self, space: Name, before: Option<Schema>, schema: Schema) -> Pending<'_, bool>;

    /// Writes fields, all of one subject in one step, and gives what they were. `None`, and nothing is
    /// written, if the space is gone or was defined anew.
    fn write(
        &self,
        space: Name,
        id: String,
        changes: Vec<Change>,
    ) -> Pending<'_, Option<Vec<Vec<u64>>>>;

    /// Reads fields, all of one subject in one step. Changes nothing.
    fn read(&self, space: Name, id: String, wanted: Vec<Wanted>) -> Pending<'_, Vec<Vec<u64>>>;

    /// Forgets subjects. Tells for each whether anything was known of it.
    fn clear(&self, space: Name, id: String, subjects: Vec<String>) -> Pending<'_, Vec<bool>>;

    /// The next subjects from `cursor` on; 0 begins. A subject may come twice.
    fn scan(&self, space: Name, id: String, cursor: Cursor) -> Pending<'_, Page>;

    /// How many bytes each of these subjects takes, all included.
    fn memory(&self, space: Name, id: String, subjects: Vec<String>) -> Pending<'_, Vec<u64>>;

    /// Removes the schema, so that the space is gone. Tells whether it was there. Its subjects are to be
    /// cleared by whoever removes it.
    fn remove(&self, space: Name, id: String) -> Pending<'_, bool>;
}

/// Some bits, as `BITFIELD` counts them: the first is the highest of the first byte.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Field {
    /// Where they begin.
    pub offset: u64,
    /// How many.
    pub width: u32,
}

/// Fields of one subject to write.
#[derive(Clone, Debug)]
pub struct Change {
    /// Whose.
    pub subject: String,
    /// What, in this order.
    pub fields: Vec<(Field, u64)>,
}

/// Fields of one subject to read.
#[derive(Clone, Debug)]
pub struct Wanted {
    /// Whose.
    pub subject: String,
    /// Which.
    pub fields: Vec<Field>,
}

/// How far a scan has come.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Cursor {
    /// Where a numbered scan goes on.
    pub number: u64,
    /// The last subject seen, where subjects are in order.
    pub after: Option<String>,
}

/// Some subjects of a space.
#[derive(Clone, Debug)]
pub struct Page {
    /// Who.
    pub subjects: Vec<String>,
    /// Where to go on; `None` at the end.
    pub next: Option<Cursor>,
    /// How much was looked at for this page, and how much there is in all, in units of the store.
    pub looked_at: u64,
    /// See `looked_at`.
    pub total: u64,
}
