//! Permissions: a level or a set of flags for each pair of subject and resource.

use std::fmt;
use std::sync::Arc;

use super::Pending;
use crate::name::Name;
use crate::permissions::Schema;

/// Stores permission spaces: a schema, and a bit field for each pair of subject and resource.
///
/// Every read and write names the id of the schema that the client knows. If the space has another
/// one, because it was removed or defined again, the answer is `None`. The check is part of the
/// same atomic step, so a removed space denies everything at once, however long it takes to delete
/// its data.
pub trait PermissionStore: Send + Sync + fmt::Debug {
    /// The schema of a space.
    fn schema(&self, space: Name) -> Pending<'_, Option<Schema>>;

    /// Stores a schema, if the stored one is still `before`, and no data of a removed space is left
    /// under the schema's id. Returns whether it did.
    fn define(&self, space: Name, before: Option<Schema>, schema: Schema) -> Pending<'_, bool>;

    /// Writes fields, all fields of one subject in one step, and returns their values before. With
    /// `None`, nothing was written.
    fn write(
        &self,
        space: Name,
        id: String,
        changes: Vec<FieldWrite>,
    ) -> Pending<'_, Option<Vec<Vec<u64>>>>;

    /// Reads fields, all fields of one subject in one step.
    fn read(
        &self,
        space: Name,
        schema: Arc<Schema>,
        wanted: Vec<FieldRead>,
    ) -> Pending<'_, Option<Vec<Vec<u64>>>>;

    /// Removes subjects. Returns for each whether it had any fields.
    fn clear(
        &self,
        space: Name,
        id: String,
        subjects: Vec<String>,
    ) -> Pending<'_, Option<Vec<bool>>>;

    /// The next page of subjects after `cursor`; the default cursor starts. A subject may be
    /// returned twice.
    fn scan(&self, space: Name, id: String, cursor: ScanCursor)
    -> Pending<'_, Option<SubjectPage>>;

    /// The bytes that each of these subjects takes in the store, with overhead.
    fn memory(&self, space: Name, id: String, subjects: Vec<String>) -> Pending<'_, Vec<u64>>;

    /// Removes the schema, and with it the space. Returns whether it existed. The data of its
    /// subjects may be left over: it is removed by [`sweep`](PermissionStore::sweep), and the id is
    /// kept until then.
    fn remove(&self, space: Name, id: String) -> Pending<'_, bool>;

    /// The ids of removed schemas whose data may be left over.
    fn leftovers(&self, space: Name) -> Pending<'_, Vec<String>>;

    /// Deletes some of the data left over under an id; does nothing to a space that exists. Returns
    /// where to continue, or `None` when nothing is left.
    fn sweep(&self, space: Name, id: String, cursor: ScanCursor)
    -> Pending<'_, Option<ScanCursor>>;
}

/// A bit field, numbered as by Redis' `BITFIELD`: bit 0 is the highest of the first byte.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Field {
    /// Its first bit.
    pub offset: u64,
    /// The number of bits.
    pub width: u32,
}

/// Fields of one subject to write.
#[derive(Clone, Debug)]
pub struct FieldWrite {
    /// The subject.
    pub subject: String,
    /// The fields and their values, written in this order.
    pub fields: Vec<(Field, u64)>,
}

/// Fields of one subject to read.
#[derive(Clone, Debug)]
pub struct FieldRead {
    /// The subject.
    pub subject: String,
    /// The fields.
    pub fields: Vec<Field>,
}

/// Where a scan continues.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ScanCursor {
    /// The cursor of a store that numbers its scans.
    pub number: u64,
    /// The last subject returned, in a store that orders subjects.
    pub after: Option<String>,
}

/// A page of subjects.
#[derive(Clone, Debug)]
pub struct SubjectPage {
    /// The subjects.
    pub subjects: Vec<String>,
    /// Where to continue; `None` at the end.
    pub next: Option<ScanCursor>,
    /// How much was scanned for this page, in units of the store.
    pub scanned: u64,
    /// How much there is to scan in all, in the same units.
    pub total: u64,
}

/// A page of at most `full` subjects, from a store that orders them.
pub fn page(subjects: Vec<String>, full: usize, total: u64) -> SubjectPage {
    let next = subjects.last().filter(|_| subjects.len() == full);
    SubjectPage {
        next: next.map(|last| ScanCursor {
            number: 0,
            after: Some(last.clone()),
        }),
        scanned: subjects.len() as u64,
        total,
        subjects,
    }
}
