//! One write transaction, and the fence counter.
//!
//! A fence is the wall clock in microseconds, or one more than the last fence if that is higher.
//! So fences grow even if the file is lost, emptied or replaced by an older copy, unless the clock
//! was set back in between.
//!
//! Commits are not synced to disk one by one, so a power cut may undo the last ones, and the clock
//! may be wrong after it. Fences do not go backwards for that: they stay below a ceiling that *was*
//! synced, and the next boot starts at the ceiling (see [`connection`](super::connection)).

use std::cell::Cell;
use std::time::{SystemTime, UNIX_EPOCH};

use rusqlite::Connection;

use windlass_core::{Fence, Moment};

/// Fences reserved on disk at a time: as many as the clock counts in a minute. After a reboot,
/// fences are ahead of the clock by this at most.
pub(super) const FENCE_BLOCK: i64 = 60_000_000;

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
        let next = clock_fence().max(last + 1);
        self.last_fence.set(Some(next));
        Ok(Fence::new(next as u64))
    }

    /// Writes the fence counter back. Fails above the ceiling: after a power cut, such a fence
    /// could be taken twice.
    pub(super) fn finish(&self) -> rusqlite::Result<()> {
        let Some(last) = self.last_fence.get() else {
            return Ok(());
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
        Ok(())
    }
}

/// The lowest fence that may be taken now: the wall clock, in microseconds since 1970.
pub(super) fn clock_fence() -> i64 {
    let wall = SystemTime::now().duration_since(UNIX_EPOCH);
    wall.map_or(0, |wall| wall.as_micros() as i64)
}

/// The fences that are known to be reserved on disk.
#[derive(Debug, Default)]
pub(super) struct FenceReserve {
    ceiling: i64,
}

impl FenceReserve {
    /// Raises the ceiling if less than half a block is left, and syncs that to disk. Other
    /// processes take fences from the other half in the meantime.
    pub(super) fn refill(&mut self, database: &Connection) -> rusqlite::Result<()> {
        if self.ceiling - clock_fence() > FENCE_BLOCK / 2 {
            return Ok(());
        }
        self.refill_from_file(database)
    }

    /// The same where `last` may be ahead of the clock, or the ceiling may have changed.
    pub(super) fn refill_from_file(&mut self, database: &Connection) -> rusqlite::Result<()> {
        let fences = "SELECT max(last, ?1), ceiling FROM fences";
        let (next, ceiling): (i64, i64) = database.query_row(fences, [clock_fence()], |row| {
            Ok((row.get(0)?, row.get(1)?))
        })?;
        self.ceiling = ceiling;
        if ceiling - next > FENCE_BLOCK / 2 {
            return Ok(());
        }
        database.pragma_update(None, "synchronous", "FULL")?;
        let raised = next + FENCE_BLOCK;
        let reserved = database.execute("UPDATE fences SET ceiling = max(ceiling, ?1)", [raised]);
        database.pragma_update(None, "synchronous", "NORMAL")?;
        reserved?;
        self.ceiling = raised;
        Ok(())
    }
}
