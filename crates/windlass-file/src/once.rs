//! What was done once, in a file.

use std::time::Duration;

use rusqlite::{OptionalExtension, Row};

use super::File;
use super::line::nanos;
use super::worker::{Notices, Scope};
use windlass_core::Fence;
use windlass_core::error::Result;
use windlass_core::name::Name;
use windlass_core::rules::once as rules;
use windlass_core::store::{OnceFinish, OnceRecord, OnceStart, OnceStore, Pending};

/// `onces`: what was begun and done, and until when that is kept, by the clock of windows.
pub(super) const TABLES: &str = "
    CREATE TABLE onces (
        name    TEXT PRIMARY KEY,
        fence   INTEGER NOT NULL,
        payload BLOB NOT NULL,
        result  BLOB,
        until   INTEGER NOT NULL
    );
    CREATE INDEX onces_by_end ON onces (until);
";

fn record(row: &Row<'_>) -> rusqlite::Result<OnceRecord> {
    Ok(OnceRecord {
        fence: Fence::new(row.get::<_, i64>(0)? as u64),
        payload: row.get(1)?,
        result: row.get(2)?,
    })
}

fn known(scope: &Scope<'_>, key: &Name, now: Duration) -> rusqlite::Result<Option<OnceRecord>> {
    scope
        .database
        .prepare_cached("SELECT fence, payload, result FROM onces WHERE name = ?1 AND until > ?2")?
        .query_row((key.as_str(), nanos(now)), record)
        .optional()
}

impl File {
    fn decide_once<T, D>(
        &self,
        key: Name,
        keep: Duration,
        decision: D,
    ) -> impl Future<Output = Result<T>> + use<T, D>
    where
        T: Send + 'static,
        D: FnOnce(Option<OnceRecord>) -> (T, Option<OnceRecord>) + Send + 'static,
    {
        self.worker.decide(move |scope| {
            let now = scope.age()?;
            let before = known(scope, &key, now)?;
            let (answer, after) = decision(before.clone());
            if after != before {
                write(scope, &key, after, now + keep)?;
                scope
                    .database
                    .prepare_cached(
                        "DELETE FROM onces WHERE name IN
                         (SELECT name FROM onces WHERE until <= ?1 ORDER BY until LIMIT 8)",
                    )?
                    .execute([nanos(now)])?;
            }
            Ok((answer, Notices::default()))
        })
    }
}

fn write(
    scope: &Scope<'_>,
    key: &Name,
    record: Option<OnceRecord>,
    until: Duration,
) -> rusqlite::Result<()> {
    let Some(record) = record else {
        let delete = scope
            .database
            .prepare_cached("DELETE FROM onces WHERE name = ?1");
        return delete?.execute([key.as_str()]).map(drop);
    };
    scope
        .database
        .prepare_cached("INSERT OR REPLACE INTO onces VALUES (?1, ?2, ?3, ?4, ?5)")?
        .execute((
            key.as_str(),
            record.fence.get() as i64,
            record.payload,
            record.result,
            nanos(until),
        ))
        .map(drop)
}

impl OnceStore for File {
    fn look(&self, key: Name) -> Pending<'_, Option<OnceRecord>> {
        Box::pin(self.worker.decide(move |scope| {
            let now = scope.age()?;
            Ok((known(scope, &key, now)?, Notices::default()))
        }))
    }

    fn start(
        &self,
        key: Name,
        fence: Fence,
        payload: [u8; 32],
        keep: Duration,
    ) -> Pending<'_, OnceStart> {
        Box::pin(self.decide_once(key, keep, move |known| rules::start(known, fence, payload)))
    }

    fn finish(
        &self,
        key: Name,
        fence: Fence,
        result: Vec<u8>,
        keep: Duration,
    ) -> Pending<'_, OnceFinish> {
        Box::pin(self.decide_once(key, keep, move |known| rules::finish(known, fence, result)))
    }

    fn forget(&self, key: Name, fence: Option<Fence>) -> Pending<'_, bool> {
        Box::pin(self.decide_once(key, Duration::ZERO, move |known| {
            let forget = rules::forget(known.as_ref(), fence);
            (forget, known.filter(|_| !forget))
        }))
    }
}
