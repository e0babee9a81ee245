//! One lock's claims, as rows of a table.

use std::sync::Arc;
use std::time::Duration;

use rusqlite::{OptionalExtension, Row, params};

use super::worker::Scope;
use crate::backend::WakeAddress;
use crate::backend::rules::line::{Line, Record};
use crate::error::Error;
use crate::lease::{Fence, Moment, Owner};
use crate::name::Name;

/// The line of one name, within a transaction.
pub(super) struct Rows<'a> {
    pub(super) scope: &'a Scope<'a>,
    pub(super) name: &'a Name,
}

impl Rows<'_> {
    /// The first row that is held, or not held.
    ///
    /// The holder's place is lower than any waiter's, so two rows are all that need to be looked at,
    /// however long the line.
    fn front(&self, held: bool) -> rusqlite::Result<Option<Record>> {
        let mut query = self.scope.database.prepare_cached(
            "SELECT place, owner, ttl, expires, since, note, wake_client, wake_claim, held
             FROM claims WHERE name = ?1 ORDER BY place LIMIT 2",
        )?;
        let mut rows = query.query((self.name.as_str(),))?;
        while let Some(row) = rows.next()? {
            if row.get::<_, bool>(8)? == held {
                return record(row).map(Some);
            }
        }
        Ok(None)
    }

    fn remove(&self, record: &Record) -> rusqlite::Result<()> {
        let mut query = self
            .scope
            .database
            .prepare_cached("DELETE FROM claims WHERE name = ?1 AND place = ?2")?;
        query
            .execute((self.name.as_str(), record.fence.get() as i64))
            .map(drop)
    }

    fn put(&self, record: Record, held: bool) -> rusqlite::Result<()> {
        let mut query = self.scope.database.prepare_cached(
            "INSERT OR REPLACE INTO claims
                (name, held, place, owner, ttl, expires, since, note, wake_client, wake_claim)
             VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10)",
        )?;
        query.execute(params![
            self.name.as_str(),
            held,
            record.fence.get() as i64,
            record.owner.as_str(),
            nanos(record.ttl),
            record.expires.as_nanos().min(i64::MAX as u64) as i64,
            record.since.as_nanos() as i64,
            record.note.as_deref(),
            record.wake.client as i64,
            record.wake.claim as i64,
        ])?;
        Ok(())
    }
}

impl Line for Rows<'_> {
    type Error = rusqlite::Error;

    fn holder(&mut self) -> rusqlite::Result<Option<Record>> {
        self.front(true)
    }

    fn first(&mut self) -> rusqlite::Result<Option<Record>> {
        self.front(false)
    }

    fn waiter(&mut self, owner: &Owner) -> rusqlite::Result<Option<Record>> {
        let mut query = self.scope.database.prepare_cached(
            "SELECT place, owner, ttl, expires, since, note, wake_client, wake_claim
             FROM claims WHERE name = ?1 AND owner = ?2 AND NOT held",
        )?;
        query
            .query_row((self.name.as_str(), owner.as_str()), record)
            .optional()
    }

    fn set_holder(&mut self, record: Record) -> rusqlite::Result<()> {
        self.put(record, true)
    }

    fn set_waiter(&mut self, record: Record) -> rusqlite::Result<()> {
        self.put(record, false)
    }

    fn remove_holder(&mut self, holder: &Record) -> rusqlite::Result<()> {
        self.remove(holder)
    }

    fn remove_waiter(&mut self, waiter: &Record) -> rusqlite::Result<()> {
        self.remove(waiter)
    }

    fn waiters(&mut self) -> rusqlite::Result<u64> {
        let mut query = self
            .scope
            .database
            .prepare_cached("SELECT count(*) FROM claims WHERE name = ?1 AND NOT held")?;
        query.query_row([self.name.as_str()], |row| {
            row.get::<_, i64>(0).map(|n| n as u64)
        })
    }

    fn next_fence(&mut self) -> rusqlite::Result<Fence> {
        self.scope.next_fence()
    }
}

fn record(row: &Row<'_>) -> rusqlite::Result<Record> {
    let number = |column| row.get::<_, i64>(column).map(|n| n as u64);
    let owner: String = row.get(1)?;
    Ok(Record {
        fence: Fence::new(number(0)?),
        owner: Owner::new(&owner).map_err(unreadable)?,
        ttl: Duration::from_nanos(number(2)?),
        expires: Moment::from_nanos(number(3)?),
        since: Moment::from_nanos(number(4)?),
        note: row.get::<_, Option<String>>(5)?.map(Arc::from),
        wake: WakeAddress {
            client: number(6)?,
            claim: number(7)?,
        },
    })
}

fn unreadable(e: Error) -> rusqlite::Error {
    rusqlite::Error::FromSqlConversionFailure(1, rusqlite::types::Type::Text, e.into())
}

pub(super) fn nanos(d: Duration) -> i64 {
    i64::try_from(d.as_nanos()).unwrap_or(i64::MAX)
}
