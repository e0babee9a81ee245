//! Latches in a file.

use rusqlite::{OptionalExtension, params};

use super::File;
use super::notifications::channel_key;
use super::notifier::AfterCommit;
use super::schema::{moment, nanos};
use super::transaction::StoreTransaction;
use windlass_core::name::Name;
use windlass_core::rules::latch::{self as rules, LatchChange};
use windlass_core::store::latch::{read_past, write_past};
use windlass_core::store::{
    Channel, CountedDown, LatchSpec, LatchState, LatchStore, Pending, Reset,
};

impl LatchStore for File {
    fn reset(&self, terms: LatchSpec, count: u32) -> Pending<'_, Reset> {
        Box::pin(self.worker.decide_and_notify(move |tx| {
            let latch = read(tx, &terms.name)?;
            let (outcome, change) = rules::reset(latch.as_ref(), &terms, count);
            Ok((outcome, write(tx, &terms, &change, None)?))
        }))
    }

    fn count_down(&self, terms: LatchSpec, by: u32, operation: u128) -> Pending<'_, CountedDown> {
        Box::pin(self.worker.decide_and_notify(move |tx| {
            let latch = read(tx, &terms.name)?;
            let known = tx
                .database
                .prepare_cached(
                    "SELECT 1 FROM latch_operations WHERE name = ?1 AND operation = ?2",
                )?
                .exists((terms.name.as_str(), operation.to_be_bytes()))?;
            let (outcome, change) = rules::count_down(latch.as_ref(), &terms, by, known);
            Ok((outcome, write(tx, &terms, &change, Some(operation))?))
        }))
    }

    fn inspect(&self, name: Name) -> Pending<'_, Option<LatchState>> {
        Box::pin(self.worker.decide(move |tx| read(tx, &name)))
    }
}

fn read(tx: &StoreTransaction<'_>, name: &Name) -> rusqlite::Result<Option<LatchState>> {
    let sql = "SELECT generation, count, remaining, past FROM latches
               WHERE name = ?1 AND until > ?2";
    let mut query = tx.database.prepare_cached(sql)?;
    query
        .query_row((name.as_str(), moment(tx.now)), |row| {
            Ok(LatchState::new(
                row.get(0)?,
                row.get(1)?,
                row.get(2)?,
                read_past(&row.get::<_, String>(3)?),
            ))
        })
        .optional()
}

fn write(
    tx: &StoreTransaction<'_>,
    terms: &LatchSpec,
    change: &LatchChange,
    operation: Option<u128>,
) -> rusqlite::Result<AfterCommit> {
    let name = terms.name.as_str();
    let state = match change {
        LatchChange::None => return Ok(AfterCommit::default()),
        LatchChange::Begin(state) => {
            let sql = "DELETE FROM latch_operations WHERE name = ?1";
            tx.database.prepare_cached(sql)?.execute([name])?;
            state
        }
        LatchChange::Count(state) => {
            let sql = "INSERT INTO latch_operations VALUES (?1, ?2)";
            let operation = operation.unwrap_or_default().to_be_bytes();
            tx.database
                .prepare_cached(sql)?
                .execute((name, operation))?;
            state
        }
    };
    let sql = "INSERT OR REPLACE INTO latches
               (name, generation, count, remaining, past, keep, until)
               VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)";
    tx.database.prepare_cached(sql)?.execute(params![
        name,
        state.generation,
        state.count,
        state.remaining,
        write_past(&state.past),
        nanos(terms.keep),
        moment(tx.now + terms.keep),
    ])?;
    let mut after_commit = AfterCommit::default();
    if change.is_notified() {
        let (kind, name) = (windlass_core::store::latch::CHANNEL, terms.name.clone());
        after_commit
            .channels
            .push(channel_key(&Channel { kind, name }));
    }
    Ok(after_commit)
}
