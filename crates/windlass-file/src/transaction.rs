//! One write transaction, and the fence counter.
//!
//! Commits are not synced to disk one by one, so a power cut may undo the last ones. Fences must
//! not go backwards for that: they are taken from a block whose upper end, the ceiling, *was*
//! synced. The next boot starts at the ceiling (see [`connection`](super::connection)).

use std::cell::Cell;

use rusqlite::Connection;

use windlass_core::{Fence, Moment};

/// Fences reserved on disk at a time.
pub(super) const FENCE_BLOCK: i64 = 1_000_000;

/// What a decision reads and writes: the database within a transaction, and one time for all
/// decisions of it.
pub(super) struct StoreTransaction<'a> {
    pub(super) database: &'a Connection,
    pub(super) now: Moment,
    /// The last fence taken, once it has been read; written back before the commit.
    last_fence: Cell<Option<i64>>,
}

impl<'a> StoreTransaction<'a> {
    pub(super) fn new(database: &'a Connection, now: Moment) -> StoreTransaction<'a> {
        StoreTransaction {
            database,
            now,
            last_fence: Cell::new(None),
        }
    }

    pub(super) fn now_micros(&self) -> u64 {
        self.now.as_nanos() / 1_000
    }

    /// The next fence: higher than all before, for every name.
    pub(super) fn next_fence(&self) -> rusqlite::Result<Fence> {
        let last = match self.last_fence.get() {
            Some(last) => last,
            None => self
                .database
                .prepare_cached("SELECT last FROM fences")?
                .query_row([], |row| row.get(0))?,
        };
        self.last_fence.set(Some(last + 1));
        Ok(Fence::new(last as u64 + 1))
    }

    /// Writes the fence counter back. Fails above the ceiling: after a power cut, such a fence
    /// could be taken twice.
    pub(super) fn finish(&self) -> rusqlite::Result<FenceReserve> {
        let Some(last) = self.last_fence.get() else {
            return Ok(FenceReserve::Ample);
        };
        self.database
            .prepare_cached("UPDATE fences SET last = ?1")?
            .execute([last])?;
        let left: i64 = self
            .database
            .prepare_cached("SELECT ceiling - last FROM fences")?
            .query_row([], |row| row.get(0))?;
        if left < 0 {
            let problem = "no fences are left, because no more could be reserved on disk";
            return Err(rusqlite::Error::ToSqlConversionFailure(problem.into()));
        }
        Ok(match left < FENCE_BLOCK / 2 {
            true => FenceReserve::Low,
            false => FenceReserve::Ample,
        })
    }
}

/// How many fences are left below the ceiling.
#[derive(PartialEq)]
pub(super) enum FenceReserve {
    Ample,
    Low,
}

/// Raises the ceiling if less than half a block is left, and syncs that to disk. Other processes
/// take fences from the other half in the meantime.
pub(super) fn reserve_fences(database: &Connection) -> rusqlite::Result<()> {
    let low = "SELECT ceiling - last < ?1 FROM fences";
    if !database.query_row(low, [FENCE_BLOCK / 2], |row| row.get(0))? {
        return Ok(());
    }
    database.pragma_update(None, "synchronous", "FULL")?;
    let raised = database.execute("UPDATE fences SET ceiling = last + ?1", [FENCE_BLOCK]);
    database.pragma_update(None, "synchronous", "NORMAL")?;
    raised.map(drop)
}
