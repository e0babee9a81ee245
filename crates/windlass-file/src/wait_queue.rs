//! [`WaitQueue`] in SQL: the holders and waiters of one name are rows of a table.
//!
//! A lock's claims are in `claims`, all others in `shares`, with their pool in `rooms`. They stay
//! apart because a program of an earlier version may have the same file open: it knows only locks,
//! and sweeps rows that it takes for expired locks.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Duration;

use rusqlite::{OptionalExtension, Row, params};

use super::schema::{moment, nanos};
use super::transaction::StoreTransaction;
use windlass_core::error::Error;
use windlass_core::name::Name;
use windlass_core::rules::wait_queue::{ClaimRecord, Pool, WaitQueue};
use windlass_core::store::{Kind, WakeAddress};
use windlass_core::{Fence, Moment, Owner};

/// The wait queue of one name, within a transaction.
pub(super) struct SqlQueue<'a> {
    tx: &'a StoreTransaction<'a>,
    kind: Kind,
    key: Cow<'a, str>,
    /// For a lock: its holder and its first waiter, once they have been read. The rules read them
    /// several times.
    front: Option<Front>,
}

#[derive(Clone, Debug, Default)]
struct Front {
    holder: Option<ClaimRecord>,
    waiter: Option<ClaimRecord>,
}

/// The name's key in its table.
fn key(kind: Kind, name: &Name) -> Cow<'_, str> {
    match kind {
        Kind::Lock => Cow::Borrowed(name.as_str()),
        _ => Cow::Owned(format!("{kind}:{name}")),
    }
}

/// The kind and the name of a key in `shares`.
pub(super) fn parse_key(key: &str) -> Option<(Kind, &str)> {
    let (word, name) = key.split_once(':')?;
    let kind = Kind::ALL.into_iter().find(|kind| kind.word() == word)?;
    Some((kind, name))
}

/// A statement on the table of this kind of claim.
macro_rules! on_claims {
    ($rows:expr, $before:literal, $after:literal) => {
        match $rows.kind {
            Kind::Lock => concat!($before, " claims ", $after),
            _ => concat!($before, " shares ", $after),
        }
    };
}

/// A query for records, with the columns in the order in which `record` reads them. A lock's claims
/// weigh one.
macro_rules! select {
    ($rows:expr, $rest:literal) => {
        match $rows.kind {
            Kind::Lock => concat!(
                "SELECT place, owner, ttl, expires, since, note, wake_client, wake_claim, 1, held ",
                "FROM claims WHERE name = ?1 ",
                $rest
            ),
            _ => concat!(
                "SELECT place, owner, ttl, expires, since, note, wake_client, wake_claim, weight, ",
                "held FROM shares WHERE name = ?1 ",
                $rest
            ),
        }
    };
}

impl<'a> SqlQueue<'a> {
    pub(super) fn new(tx: &'a StoreTransaction<'a>, kind: Kind, name: &'a Name) -> SqlQueue<'a> {
        SqlQueue {
            tx,
            kind,
            key: key(kind, name),
            front: None,
        }
    }

    /// A lock's holder and first waiter. The holder's fence is lower than any ticket, so two rows
    /// are enough, however long the queue.
    fn front(&mut self) -> rusqlite::Result<&mut Front> {
        if self.front.is_none() {
            let mut front = Front::default();
            let sql = select!(self, "ORDER BY place LIMIT 2");
            let mut query = self.tx.database.prepare_cached(sql)?;
            let mut rows = query.query([&self.key])?;
            while let Some(row) = rows.next()? {
                let slot = match row.get::<_, bool>(9)? {
                    true => &mut front.holder,
                    false => &mut front.waiter,
                };
                if slot.is_none() {
                    *slot = Some(record(row)?);
                }
            }
            self.front = Some(front);
        }
        Ok(self.front.get_or_insert_default())
    }

    fn is_lock(&self) -> bool {
        self.kind == Kind::Lock
    }

    fn one(
        &self,
        sql: &str,
        params: impl rusqlite::Params,
    ) -> rusqlite::Result<Option<ClaimRecord>> {
        let mut query = self.tx.database.prepare_cached(sql)?;
        query.query_row(params, record).optional()
    }

    fn remove(&self, record: &ClaimRecord) -> rusqlite::Result<()> {
        let sql = on_claims!(self, "DELETE FROM", "WHERE name = ?1 AND place = ?2");
        let mut query = self.tx.database.prepare_cached(sql)?;
        query
            .execute((&self.key, record.fence.get() as i64))
            .map(drop)
    }

    fn put(&mut self, record: &ClaimRecord, held: bool) -> rusqlite::Result<()> {
        self.front = None;
        let sql = match self.kind {
            Kind::Lock => {
                "INSERT OR REPLACE INTO claims
                 (name, held, place, owner, ttl, expires, since, note, wake_client, wake_claim)
                 VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10)"
            }
            _ => {
                "INSERT OR REPLACE INTO shares
                 (name, held, place, owner, ttl, expires, since, note, wake_client, wake_claim,
                  weight)
                 VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11)"
            }
        };
        let mut query = self.tx.database.prepare_cached(sql)?;
        let common = params![
            self.key,
            held,
            record.fence.get() as i64,
            record.owner.as_str(),
            nanos(record.ttl),
            moment(record.expires),
            moment(record.since),
            record.note.as_deref(),
            record.wake.client as i64,
            record.wake.claim as i64,
            record.weight,
        ];
        let columns = if self.is_lock() { 10 } else { 11 };
        query.execute(&common[..columns])?;
        Ok(())
    }
}

impl WaitQueue for SqlQueue<'_> {
    type Error = rusqlite::Error;

    fn pool(&mut self) -> rusqlite::Result<Pool> {
        if self.is_lock() {
            let used = self.front()?.holder.as_ref().map_or(0, |h| h.weight.into());
            return Ok(Pool {
                size: 1,
                used,
                ..Pool::UNKNOWN
            });
        }
        let sql = "SELECT size, used, overtook, open, until FROM rooms WHERE name = ?1";
        let mut query = self.tx.database.prepare_cached(sql)?;
        let number = |row: &Row<'_>, column| row.get::<_, i64>(column).map(|n| n as u64);
        let pool = query.query_row([&self.key], |row| {
            Ok(Pool {
                size: row.get(0)?,
                used: number(row, 1)?,
                overtook: Fence::new(number(row, 2)?),
                open: row
                    .get::<_, Option<i64>>(3)?
                    .map(|open| Fence::new(open as u64)),
                until: Moment::from_nanos(number(row, 4)?),
            })
        });
        Ok(pool.optional()?.unwrap_or(Pool::UNKNOWN))
    }

    fn set_pool(&mut self, pool: Pool) -> rusqlite::Result<()> {
        if self.is_lock() {
            return Ok(()); // a lock's pool follows from its holder
        }
        let sql = "INSERT OR REPLACE INTO rooms (name, size, used, overtook, open, until)
                   VALUES (?1, ?2, ?3, ?4, ?5, ?6)";
        let mut query = self.tx.database.prepare_cached(sql)?;
        query.execute(params![
            self.key,
            pool.size,
            pool.used as i64,
            pool.overtook.get() as i64,
            pool.open.map(|open| open.get() as i64),
            moment(pool.until),
        ])?;
        Ok(())
    }

    fn holder(&mut self, owner: &Owner) -> rusqlite::Result<Option<ClaimRecord>> {
        if self.is_lock() {
            let holder = self.front()?.holder.as_ref();
            return Ok(holder.filter(|h| h.owner == *owner).cloned());
        }
        self.one(
            select!(self, "AND owner = ?2 AND held"),
            (&self.key, owner.as_str()),
        )
    }

    fn first_to_expire(&mut self) -> rusqlite::Result<Option<ClaimRecord>> {
        if self.is_lock() {
            return Ok(self.front()?.holder.clone());
        }
        let sql = select!(self, "AND held ORDER BY expires LIMIT 1");
        self.one(sql, [&self.key])
    }

    fn holders(&mut self, now: Moment, most: usize) -> rusqlite::Result<Vec<ClaimRecord>> {
        if self.is_lock() {
            let holder = self.front()?.holder.clone().filter(|h| h.expires > now);
            return Ok(holder.into_iter().take(most).collect());
        }
        let sql = select!(self, "AND held AND expires > ?2 ORDER BY expires LIMIT ?3");
        let mut query = self.tx.database.prepare_cached(sql)?;
        let most = i64::try_from(most).unwrap_or(i64::MAX);
        let rows = query.query_map((&self.key, moment(now), most), record)?;
        rows.collect()
    }

    fn expired_weight(&mut self, now: Moment) -> rusqlite::Result<u64> {
        if self.is_lock() {
            let dead = self.front()?.holder.as_ref().filter(|h| h.expires <= now);
            return Ok(dead.map_or(0, |h| h.weight.into()));
        }
        let sql = "SELECT coalesce(sum(weight), 0) FROM shares
                   WHERE name = ?1 AND held AND expires <= ?2";
        let mut query = self.tx.database.prepare_cached(sql)?;
        let weight = query.query_row((&self.key, moment(now)), |row| row.get::<_, i64>(0));
        weight.map(|weight| weight as u64)
    }

    fn first_waiter(&mut self) -> rusqlite::Result<Option<ClaimRecord>> {
        if self.is_lock() {
            return Ok(self.front()?.waiter.clone());
        }
        self.one(
            select!(self, "AND NOT held ORDER BY place LIMIT 1"),
            [&self.key],
        )
    }

    fn waiter(&mut self, owner: &Owner) -> rusqlite::Result<Option<ClaimRecord>> {
        if self.is_lock() && self.front()?.waiter.is_none() {
            return Ok(None);
        }
        self.one(
            select!(self, "AND owner = ?2 AND NOT held"),
            (&self.key, owner.as_str()),
        )
    }

    fn set_holder(&mut self, record: ClaimRecord) -> rusqlite::Result<()> {
        self.put(&record, true)
    }

    fn set_waiter(&mut self, record: ClaimRecord) -> rusqlite::Result<()> {
        self.put(&record, false)
    }

    fn remove_holder(&mut self, holder: &ClaimRecord) -> rusqlite::Result<()> {
        if let Some(front) = &mut self.front {
            front.holder = None; // the first waiter stays the first
        }
        self.remove(holder)
    }

    fn remove_waiter(&mut self, waiter: &ClaimRecord) -> rusqlite::Result<()> {
        self.front = None;
        self.remove(waiter)
    }

    fn waiter_count(&mut self, now: Moment) -> rusqlite::Result<u64> {
        let sql = on_claims!(
            self,
            "SELECT count(*) FROM",
            "WHERE name = ?1 AND NOT held AND expires > ?2"
        );
        let mut query = self.tx.database.prepare_cached(sql)?;
        let count = query.query_row(params![self.key, now.as_nanos() as i64], |row| {
            row.get::<_, i64>(0)
        });
        Ok(count? as u64)
    }

    fn next_fence(&mut self) -> rusqlite::Result<Fence> {
        self.tx.next_fence()
    }
}

fn record(row: &Row<'_>) -> rusqlite::Result<ClaimRecord> {
    let number = |column| row.get::<_, i64>(column).map(|n| n as u64);
    let owner: String = row.get(1)?;
    Ok(ClaimRecord {
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
        weight: row.get(8)?,
    })
}

fn unreadable(e: Error) -> rusqlite::Error {
    rusqlite::Error::FromSqlConversionFailure(1, rusqlite::types::Type::Text, e.into())
}
