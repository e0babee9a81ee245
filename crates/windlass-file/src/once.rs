//! Records of idempotent execution (`once`) in a file.

use std::time::Duration;

use rusqlite::{OptionalExtension, Row};

use super::File;
use super::schema::nanos;
use super::transaction::StoreTransaction;
use windlass_core::Fence;
use windlass_core::error::Result;
use windlass_core::name::Name;
use windlass_core::rules::once as rules;
use windlass_core::store::{OnceFinish, OnceRecord, OnceStart, OnceStore, Pending};

/// `onces`: the record of each key, and until when it is kept, on the clock of windows.
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

fn read(
    tx: &StoreTransaction<'_>,
    key: &Name,
    now: Duration,
) -> rusqlite::Result<Option<OnceRecord>> {
    tx.database
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
        self.worker.decide(move |tx| {
            let now = tx.window_now()?;
            let before = read(tx, &key, now)?;
            let (answer, after) = decision(before.clone());
            if after != before {
                write(tx, &key, after, now + keep)?;
                tx.database
                    .prepare_cached(
                        "DELETE FROM onces WHERE name IN
                         (SELECT name FROM onces WHERE until <= ?1 ORDER BY until LIMIT 8)",
                    )?
                    .execute([nanos(now)])?;
            }
            Ok(answer)
        })
    }
}

fn write(
    tx: &StoreTransaction<'_>,
    key: &Name,
    record: Option<OnceRecord>,
    until: Duration,
) -> rusqlite::Result<()> {
    let Some(record) = record else {
        let delete = tx
            .database
            .prepare_cached("DELETE FROM onces WHERE name = ?1");
        return delete?.execute([key.as_str()]).map(drop);
    };
    tx.database
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
    fn get(&self, key: Name) -> Pending<'_, Option<OnceRecord>> {
        Box::pin(self.worker.decide(move |tx| {
            let now = tx.window_now()?;
            read(tx, &key, now)
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
