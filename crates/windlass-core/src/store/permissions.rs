//! What a store decides about permissions.

use std::fmt;
use std::sync::Arc;

use super::Pending;
use crate::name::Name;
use crate::permissions::Schema;

/// Permissions: a few bits for each subject and resource.
///
/// Whoever reads or writes says by which schema. If that is not the space's any more, because the space was
/// removed or defined anew, the answer is `None`: this is part of the same step, so that what was removed
/// is denied from the first moment on, however long it takes to clear it away.
pub trait PermissionStore: Send + Sync + fmt::Debug {
    /// The schema of a space.
    fn schema(&self, space: Name) -> Pending<'_, Option<Schema>>;

    /// Stores a schema, if what is stored is still `before`, and nothing of a removed space is left under
    /// the schema's id. Tells whether it did.
    fn define(&self, space: Name, before: Option<Schema>, schema: Schema) -> Pending<'_, bool>;

    /// Writes fields, all of one subject in one step, and gives what they were. With `None`, nothing was
    /// written.
    fn write(
        &self,
        space: Name,
        id: String,
        changes: Vec<FieldWrite>,
    ) -> Pending<'_, Option<Vec<Vec<u64>>>>;

    /// Reads fields, all of one subject in one step. Changes nothing.
    fn read(
        &self,
        space: Name,
        schema: Arc<Schema>,
        wanted: Vec<FieldRead>,
    ) -> Pending<'_, Option<Vec<Vec<u64>>>>;

    /// Forgets subjects. Tells for each whether anything was known of it.
    fn clear(
        &self,
        space: Name,
        id: String,
        subjects: Vec<String>,
    ) -> Pending<'_, Option<Vec<bool>>>;

    /// The next subjects from `cursor` on; the default begins. A subject may come twice.
    fn scan(&self, space: Name, id: String, cursor: ScanCursor)
    -> Pending<'_, Option<SubjectPage>>;

    /// How many bytes each of these subjects takes, all included.
    fn memory(&self, space: Name, id: String, subjects: Vec<String>) -> Pending<'_, Vec<u64>>;

    /// Removes the schema, so that the space is gone. Tells whether it was there. What its subjects had may
    /// be left over: it is to be swept, and its id is remembered until it is.
    fn remove(&self, space: Name, id: String) -> Pending<'_, bool>;

    /// The ids under which something may be left over.
    fn leftovers(&self, space: Name) -> Pending<'_, Vec<String>>;

    /// Clears away some of what is left over under an id; of a space that is there, nothing. Gives where to
    /// go on, or `None` when nothing is left.
    fn sweep(&self, space: Name, id: String, cursor: ScanCursor)
    -> Pending<'_, Option<ScanCursor>>;
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
pub struct FieldWrite {
    /// Whose.
    pub subject: String,
    /// What, in this order.
    pub fields: Vec<(Field, u64)>,
}

/// Fields of one subject to read.
#[derive(Clone, Debug)]
pub struct FieldRead {
    /// Whose.
    pub subject: String,
    /// Which.
    pub fields: Vec<Field>,
}

/// How far a scan has come.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ScanCursor {
    /// Where a numbered scan goes on.
    pub number: u64,
    /// The last subject seen, where subjects are in order.
    pub after: Option<String>,
}

/// Some subjects of a space.
#[derive(Clone, Debug)]
pub struct SubjectPage {
    /// Who.
    pub subjects: Vec<String>,
    /// Where to go on; `None` at the end.
    pub next: Option<ScanCursor>,
    /// How much was looked at for this page, and how much there is in all, in units of the store.
    pub looked_at: u64,
    /// See `looked_at`.
    pub total: u64,
}

/// A page of subjects that come in order.
pub fn page(subjects: Vec<String>, full: usize, total: u64) -> SubjectPage {
    let next = subjects.last().filter(|_| subjects.len() == full);
    SubjectPage {
        next: next.map(|last| ScanCursor {
            number: 0,
            after: Some(last.clone()),
        }),
        looked_at: subjects.len() as u64,
        total,
        subjects,
    }
}
