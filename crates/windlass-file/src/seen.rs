//! Deduplication windows (`seen`) in a file.

use std::time::Duration;

use rusqlite::{Connection, OptionalExtension};

use super::File;
use super::schema::nanos;
use windlass_core::name::Name;
use windlass_core::rules::seen as rules;
use windlass_core::seen::Member;
use windlass_core::store::{Pending, SeenStore};

/// `seen`: the items of each window, and until when each is kept, on the clock of windows.
pub(super) const TABLES: &str = "
    CREATE TABLE seen (
        name  TEXT NOT NULL,
        item  BLOB NOT NULL,
        until INTEGER NOT NULL,
        PRIMARY KEY (name, item)
    ) WITHOUT ROWID;
    CREATE INDEX seen_by_end ON seen (until);
";

fn until(database: &Connection, name: &Name, item: &Member) -> rusqlite::Result<Option<Duration>> {
    let found: Option<i64> = database
        .prepare_cached("SELECT until FROM seen WHERE name = ?1 AND item = ?2")?
        .query_row((name.as_str(), item.as_bytes()), |row| row.get(0))
        .optional()?;
    Ok(found.map(|nanos| Duration::from_nanos(nanos as u64)))
}

impl SeenStore for File {
    fn first(&self, name: Name, items: Vec<Member>, window: Duration) -> Pending<'_, Vec<bool>> {
        Box::pin(self.worker.decide(move |tx| {
            let now = tx.window_now()?;
            let mut replace = tx
                .database
                .prepare_cached("INSERT OR REPLACE INTO seen VALUES (?1, ?2, ?3)")?;
            let mut answers = Vec::with_capacity(items.len());
            for item in &items {
                let known = until(tx.database, &name, item)?;
                let (new, until) = rules::first(known, now, window);
                if new {
                    replace.execute((name.as_str(), item.as_bytes(), nanos(until)))?;
                }
                answers.push(new);
            }
            // Removes more expired items than this call adds, so that they do not pile up.
            tx.database
                .prepare_cached(
                    "DELETE FROM seen WHERE (name, item) IN
                     (SELECT name, item FROM seen WHERE until <= ?1 ORDER BY until LIMIT ?2)",
                )?
                .execute((nanos(now), items.len() as i64 + 8))?;
            Ok(answers)
        }))
    }

    fn contains(&self, name: Name, items: Vec<Member>) -> Pending<'_, Vec<bool>> {
        Box::pin(self.worker.decide(move |tx| {
            let now = tx.window_now()?;
            let known = |item| Ok(rules::is_known(until(tx.database, &name, item)?, now));
            let answers: rusqlite::Result<_> = items.iter().map(known).collect();
            answers
        }))
    }

    fn forget(&self, name: Name, item: Member) -> Pending<'_, bool> {
        Box::pin(self.worker.decide(move |tx| {
            let known = rules::is_known(until(tx.database, &name, &item)?, tx.window_now()?);
            tx.database
                .prepare_cached("DELETE FROM seen WHERE name = ?1 AND item = ?2")?
                .execute((name.as_str(), item.as_bytes()))?;
            Ok(known)
        }))
    }
}
