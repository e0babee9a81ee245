//! Permissions in a file.

use rusqlite::{Connection, OptionalExtension};

use super::File;
use super::worker::Notices;
use crate::backend::memory::permissions::page;
use crate::backend::rules::permissions as rules;
use crate::backend::{Change, Cursor, Page, Pending, PermissionStore, Wanted};
use crate::name::Name;
use crate::permissions::Schema;

/// `spaces`: the schema of each space. `permissions`: the bits of each subject, by the schema's id.
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

/// Subjects on a page of a scan.
const PAGE: usize = 1_000;

fn stored(database: &Connection, space: &Name) -> rusqlite::Result<Option<String>> {
    database
        .prepare_cached("SELECT schema FROM spaces WHERE name = ?1")?
        .query_row([space.as_str()], |row| row.get(0))
        .optional()
}

fn parsed(text: Option<String>) -> rusqlite::Result<Option<Schema>> {
    text.map(|text| {
        text.parse().map_err(|()| {
            let message = "the schema of the space makes no sense";
            rusqlite::Error::ToSqlConversionFailure(message.into())
        })
    })
    .transpose()
}

fn bits(database: &Connection, space: &Name, id: &str, subject: &str) -> rusqlite::Result<Vec<u8>> {
    let query = "SELECT bits FROM permissions WHERE space = ?1 AND id = ?2 AND subject = ?3";
    let found = database
        .prepare_cached(query)?
        .query_row((space.as_str(), id, subject), |row| row.get(0))
        .optional()?;
    Ok(found.unwrap_or_default())
}

impl PermissionStore for File {
    fn schema(&self, space: Name) -> Pending<'_, Option<Schema>> {
        Box::pin(self.worker.decide(move |scope| {
            Ok((parsed(stored(scope.database, &space)?)?, Notices::default()))
        }))
    }

    fn define(&self, space: Name, before: Option<Schema>, schema: Schema) -> Pending<'_, bool> {
        Box::pin(self.worker.decide(move |scope| {
            let known = stored(scope.database, &space)?;
            let same = known == before.map(|schema| schema.to_text());
            if same {
                scope
                    .database
                    .prepare_cached("INSERT OR REPLACE INTO spaces VALUES (?1, ?2)")?
                    .execute((space.as_str(), schema.to_text()))?;
            }
            Ok((same, Notices::default()))
        }))
    }

    fn write(
        &self,
        space: Name,
        id: String,
        changes: Vec<Change>,
    ) -> Pending<'_, Option<Vec<Vec<u64>>>> {
        Box::pin(self.worker.decide(move |scope| {
            let schema = parsed(stored(scope.database, &space)?)?;
            if schema.is_none_or(|schema| schema.id != id) {
                return Ok((None, Notices::default()));
            }
            let mut replace = scope
                .database
                .prepare_cached("INSERT OR REPLACE INTO permissions VALUES (?1, ?2, ?3, ?4)")?;
            let mut before = Vec::with_capacity(changes.len());
            for change in changes {
                let mut bits = bits(scope.database, &space, &id, &change.subject)?;
                let fields = change.fields.into_iter();
                let old = fields.map(|(field, value)| rules::set(&mut bits, field, value));
                before.push(old.collect());
                replace.execute((space.as_str(), &id, &change.subject, &bits))?;
            }
            Ok((Some(before), Notices::default()))
        }))
    }

    fn read(&self, space: Name, id: String, wanted: Vec<Wanted>) -> Pending<'_, Vec<Vec<u64>>> {
        Box::pin(self.worker.decide(move |scope| {
            let read = |wanted: Wanted| {
                let bits = bits(scope.database, &space, &id, &wanted.subject)?;
                let fields = wanted.fields.into_iter();
                Ok(fields.map(|field| rules::get(&bits, field)).collect())
            };
            let values: rusqlite::Result<_> = wanted.into_iter().map(read).collect();
            Ok((values?, Notices::default()))
        }))
    }

    fn clear(&self, space: Name, id: String, subjects: Vec<String>) -> Pending<'_, Vec<bool>> {
        Box::pin(self.worker.decide(move |scope| {
            let mut delete = scope.database.prepare_cached(
                "DELETE FROM permissions WHERE space = ?1 AND id = ?2 AND subject = ?3",
            )?;
            let mut clear = |subject| Ok(delete.execute((space.as_str(), &id, subject))? > 0);
            let cleared: rusqlite::Result<_> = subjects.iter().map(&mut clear).collect();
            Ok((cleared?, Notices::default()))
        }))
    }

    fn scan(&self, space: Name, id: String, cursor: Cursor) -> Pending<'_, Page> {
        Box::pin(self.worker.decide(move |scope| {
            let mut query = scope.database.prepare_cached(
                "SELECT subject FROM permissions
                 WHERE space = ?1 AND id = ?2 AND subject > ?3 ORDER BY subject LIMIT ?4",
            )?;
            // Nobody is called "": subjects are not empty.
            let after = cursor.after.unwrap_or_default();
            let rows = (space.as_str(), &id, after, PAGE as i64);
            let subjects: rusqlite::Result<Vec<String>> =
                query.query_map(rows, |row| row.get(0))?.collect();
            let total: i64 = scope
                .database
                .prepare_cached("SELECT count(*) FROM permissions WHERE space = ?1 AND id = ?2")?
                .query_row((space.as_str(), &id), |row| row.get(0))?;
            Ok((page(subjects?, PAGE, total as u64), Notices::default()))
        }))
    }

    fn memory(&self, space: Name, id: String, subjects: Vec<String>) -> Pending<'_, Vec<u64>> {
        Box::pin(self.worker.decide(move |scope| {
            let mut sizes = Vec::new();
            for subject in &subjects {
                let bits = bits(scope.database, &space, &id, subject)?;
                if !bits.is_empty() {
                    // A row has the space's name and id, too.
                    let row = space.as_str().len() + id.len() + subject.len() + bits.len();
                    sizes.push(row as u64);
                }
            }
            Ok((sizes, Notices::default()))
        }))
    }

    fn remove(&self, space: Name, id: String) -> Pending<'_, bool> {
        Box::pin(self.worker.decide(move |scope| {
            let schema = parsed(stored(scope.database, &space)?)?;
            let there = schema.is_some_and(|schema| schema.id == id);
            if there {
                scope
                    .database
                    .execute("DELETE FROM spaces WHERE name = ?1", [space.as_str()])?;
            }
            Ok((there, Notices::default()))
        }))
    }
}
