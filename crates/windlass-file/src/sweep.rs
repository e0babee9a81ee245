//! Removes rows that nothing refers to any more: expired claims, gates, latches, limiters,
//! counters, and the watchers of processes that were killed.

use rusqlite::Connection;

use super::{counter, limit, notifier};
use windlass_core::Moment;

/// Claims that expired this long ago are removed even if their name is not used again.
const KEEP_EXPIRED_NANOS: u64 = 3600 * 1_000_000_000;

pub(super) fn sweep(database: &Connection, now: Moment) {
    if let Err(e) = try_sweep(database, now) {
        tracing::debug!(error = %e, "could not sweep");
    }
}

fn try_sweep(database: &Connection, now: Moment) -> rusqlite::Result<()> {
    let long_expired = now.as_nanos().saturating_sub(KEEP_EXPIRED_NANOS) as i64;
    let now = now.as_nanos() as i64;
    database.execute("DELETE FROM claims WHERE expires < ?1", [long_expired])?;
    let waiters = "DELETE FROM shares WHERE expires < ?1 AND NOT held";
    database.execute(waiters, [long_expired])?;
    // A row of `rooms` counts the claims of its name in `shares`: it goes with all of them, or not
    // at all.
    database.execute(
        "DELETE FROM rooms WHERE until < ?1 AND NOT EXISTS
         (SELECT 1 FROM shares WHERE shares.name = rooms.name AND expires > ?1)",
        [now],
    )?;
    database.execute(
        "DELETE FROM shares
         WHERE NOT EXISTS (SELECT 1 FROM rooms WHERE rooms.name = shares.name)",
        [],
    )?;
    database.execute("DELETE FROM gates WHERE until < ?1", [now])?;
    database.execute("DELETE FROM latches WHERE until < ?1", [now])?;
    database.execute(
        "DELETE FROM latch_operations WHERE name NOT IN (SELECT name FROM latches)",
        [],
    )?;
    for sql in limit::SWEEPS.iter().chain(&counter::SWEEPS) {
        database.execute(sql, [now / 1_000])?;
    }
    notifier::remove_ended_watchers(database)
}
