//! Permissions in a file.

use std::sync::Arc;

use rusqlite::{Connection, OptionalExtension};

use super::File;
use windlass_core::error::Result;
use windlass_core::name::Name;
use windlass_core::permissions::Schema;
use windlass_core::rules::permissions as rules;
use windlass_core::store::page;
use windlass_core::store::{
    FieldRead, FieldWrite, Pending, PermissionStore, ScanCursor, SubjectPage,
};

/// `spaces`: the schema of each space. `permissions`: the bits of each subject, by the schema's id.
/// Rows of a removed space are recognised by their id.
pub(super) const TABLES: &str = "
    CREATE TABLE spaces (
        name   TEXT PRIMARY KEY,
        schema TEXT NOT NULL
    ) WITHOUT ROWID;
    CREATE TABLE permissions (
        space   TEXT NOT NULL,
        id      TEXT NOT NULL,
        subject TEXT NOT NULL,
        bits    BLOB NOT NULL,
        PRIMARY KEY (space, id, subject)
    ) WITHOUT ROWID;
";

/// The format has a new name; the rest of the text is unchanged.
pub(super) const RENAME_FORMAT: &str = "
    UPDATE spaces SET schema = 'windlass-perm-2' || substr(schema, 16)
    WHERE substr(schema, 1, 16) = 'windlass-perm-1 ';
";

/// Subjects on a page of a scan.
const PAGE: usize = 1_000;

fn stored(database: &Connection, space: &Name) -> rusqlite::Result<Option<Schema>> {
    let text: Option<String> = database
        .prepare_cached("SELECT schema FROM spaces WHERE name = ?1")?
        .query_row([space.as_str()], |row| row.get(0))
        .optional()?;
    text.map(|text| {
        text.parse().map_err(|()| {
            let message = "the schema of the space cannot be read";
            rusqlite::Error::ToSqlConversionFailure(message.into())
        })
    })
    .transpose()
}

/// The first id after this one under which bits are stored.
fn next_id(database: &Connection, space: &Name, after: &str) -> rusqlite::Result<Option<String>> {
    database
        .prepare_cached(
            "SELECT id FROM permissions WHERE space = ?1 AND id > ?2 ORDER BY id LIMIT 1",
        )?
        .query_row([space.as_str(), after], |row| row.get(0))
        .optional()
}

fn bits(database: &Connection, space: &Name, id: &str, subject: &str) -> rusqlite::Result<Vec<u8>> {
    let query = "SELECT bits FROM permissions WHERE space = ?1 AND id = ?2 AND subject = ?3";
    let found = database
        .prepare_cached(query)?
        .query_row((space.as_str(), id, subject), |row| row.get(0))
        .optional()?;
    Ok(found.unwrap_or_default())
}

impl File {
    /// Acts in the space, if its schema still has this id.
    fn in_space<T, A>(
        &self,
        space: Name,
        id: String,
        act: A,
    ) -> impl Future<Output = Result<Option<T>>> + use<T, A>
    where
        T: Send + 'static,
        A: FnOnce(&Connection, &Name, &str) -> rusqlite::Result<T> + Send + 'static,
    {
        self.worker.decide(move |tx| {
            let stored = stored(tx.database, &space)?;
            let answer = match rules::is_open(stored.as_ref(), &id) {
                true => Some(act(tx.database, &space, &id)?),
                false => None,
            };
            Ok(answer)
        })
    }
}

impl PermissionStore for File {
    fn schema(&self, space: Name) -> Pending<'_, Option<Schema>> {
        Box::pin(self.worker.decide(move |tx| stored(tx.database, &space)))
    }

    fn define(&self, space: Name, before: Option<Schema>, schema: Schema) -> Pending<'_, bool> {
        Box::pin(self.worker.decide(move |tx| {
            let known = stored(tx.database, &space)?;
            let left_over = known.is_none() && {
                let query = "SELECT 1 FROM permissions WHERE space = ?1 AND id = ?2";
                let mut query = tx.database.prepare_cached(query)?;
                query.exists([space.as_str(), &schema.id])?
            };
            let may = rules::may_define(known.as_ref(), before.as_ref(), left_over);
            if may {
                tx.database
                    .prepare_cached("INSERT OR REPLACE INTO spaces VALUES (?1, ?2)")?
                    .execute((space.as_str(), schema.to_text()))?;
            }
            Ok(may)
        }))
    }

    fn write(
        &self,
        space: Name,
        id: String,
        changes: Vec<FieldWrite>,
    ) -> Pending<'_, Option<Vec<Vec<u64>>>> {
        Box::pin(self.in_space(space, id, move |database, space, id| {
            let mut replace = database
                .prepare_cached("INSERT OR REPLACE INTO permissions VALUES (?1, ?2, ?3, ?4)")?;
            let mut before = Vec::with_capacity(changes.len());
            for change in changes {
                let mut bits = bits(database, space, id, &change.subject)?;
                let fields = change.fields.into_iter();
                let old = fields.map(|(field, value)| rules::set(&mut bits, field, value));
                before.push(old.collect());
                replace.execute((space.as_str(), id, &change.subject, &bits))?;
            }
            Ok(before)
        }))
    }

    fn read(
        &self,
        space: Name,
        schema: Arc<Schema>,
        wanted: Vec<FieldRead>,
    ) -> Pending<'_, Option<Vec<Vec<u64>>>> {
        let id = schema.id.clone();
        Box::pin(self.in_space(space, id, move |database, space, id| {
            let read = |wanted: FieldRead| {
                let bits = bits(database, space, id, &wanted.subject)?;
                let fields = wanted.fields.into_iter();
                Ok(fields.map(|field| rules::get(&bits, field)).collect())
            };
            wanted.into_iter().map(read).collect()
        }))
    }

    fn clear(
        &self,
        space: Name,
        id: String,
        subjects: Vec<String>,
    ) -> Pending<'_, Option<Vec<bool>>> {
        Box::pin(self.in_space(space, id, move |database, space, id| {
            let mut delete = database.prepare_cached(
                "DELETE FROM permissions WHERE space = ?1 AND id = ?2 AND subject = ?3",
            )?;
            let mut clear = |subject| Ok(delete.execute((space.as_str(), id, subject))? > 0);
            subjects.iter().map(&mut clear).collect()
        }))
    }

    fn scan(
        &self,
        space: Name,
        id: String,
        cursor: ScanCursor,
    ) -> Pending<'_, Option<SubjectPage>> {
        Box::pin(self.in_space(space, id, move |database, space, id| {
            let mut query = database.prepare_cached(
                "SELECT subject FROM permissions
                 WHERE space = ?1 AND id = ?2 AND subject > ?3 ORDER BY subject LIMIT ?4",
            )?;
            // Subjects are not empty, so all come after "".
            let after = cursor.after.unwrap_or_default();
            let rows = (space.as_str(), id, after, PAGE as i64);
            let subjects: rusqlite::Result<Vec<String>> =
                query.query_map(rows, |row| row.get(0))?.collect();
            let total: i64 = database
                .prepare_cached("SELECT count(*) FROM permissions WHERE space = ?1 AND id = ?2")?
                .query_row((space.as_str(), id), |row| row.get(0))?;
            Ok(page(subjects?, PAGE, total as u64))
        }))
    }

    fn memory(&self, space: Name, id: String, subjects: Vec<String>) -> Pending<'_, Vec<u64>> {
        let sizes = self.in_space(space, id, move |database, space, id| {
            let mut sizes = Vec::new();
            for subject in &subjects {
                let bits = bits(database, space, id, subject)?;
                if !bits.is_empty() {
                    // A row has the space's name and id as well.
                    let row = space.as_str().len() + id.len() + subject.len() + bits.len();
                    sizes.push(row as u64);
                }
            }
            Ok(sizes)
        });
        Box::pin(async { Ok(sizes.await?.unwrap_or_default()) })
    }

    fn remove(&self, space: Name, id: String) -> Pending<'_, bool> {
        let removed = self.in_space(space, id, |database, space, _id| {
            database.execute("DELETE FROM spaces WHERE name = ?1", [space.as_str()])
        });
        Box::pin(async { Ok(removed.await?.is_some()) })
    }

    fn leftovers(&self, space: Name) -> Pending<'_, Vec<String>> {
        Box::pin(self.worker.decide(move |tx| {
            let stored = stored(tx.database, &space)?;
            let (mut ids, mut last) = (Vec::new(), String::new());
            while let Some(id) = next_id(tx.database, &space, &last)? {
                last.clone_from(&id);
                if !rules::is_open(stored.as_ref(), &id) {
                    ids.push(id);
                }
            }
            Ok(ids)
        }))
    }

    fn sweep(
        &self,
        space: Name,
        id: String,
        _cursor: ScanCursor,
    ) -> Pending<'_, Option<ScanCursor>> {
        Box::pin(self.worker.decide(move |tx| {
            let stored = stored(tx.database, &space)?;
            if rules::is_open(stored.as_ref(), &id) {
                return Ok(None);
            }
            let swept = tx
                .database
                .prepare_cached(
                    "DELETE FROM permissions WHERE space = ?1 AND id = ?2 AND subject IN
                     (SELECT subject FROM permissions WHERE space = ?1 AND id = ?2 LIMIT ?3)",
                )?
                .execute((space.as_str(), &id, PAGE as i64))?;
            let next = (swept == PAGE).then(ScanCursor::default);
            Ok(next)
        }))
    }
}
