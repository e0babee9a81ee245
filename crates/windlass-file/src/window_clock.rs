//! The clock of deduplication windows, rotating Bloom filters, idempotency records and topics.
//!
//! Leases use the boot clock and end with the boot. A record that is kept for a day has to outlast
//! a reboot, so its clock is set from the wall clock once per boot and then runs with the boot
//! clock. It does not jump when the wall clock is set, and all processes of the machine agree on
//! it.

use std::sync::OnceLock;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rusqlite::OptionalExtension;

use super::boot_clock::boot_id;
use super::transaction::StoreTransaction;

/// `ages`: the boot, and how far this clock is ahead of its boot clock, in nanoseconds.
pub(super) const TABLES: &str = "
    CREATE TABLE ages (
        boot  TEXT NOT NULL,
        ahead INTEGER NOT NULL
    );
";

impl StoreTransaction<'_> {
    /// Now, on the clock of windows.
    pub(super) fn window_now(&self) -> rusqlite::Result<Duration> {
        static BOOT: OnceLock<String> = OnceLock::new();
        let boot = BOOT.get_or_init(boot_id);
        let known: Option<i64> = self
            .database
            .prepare_cached("SELECT ahead FROM ages WHERE boot = ?1")?
            .query_row([boot], |row| row.get(0))
            .optional()?;
        let now = self.now.as_nanos() as i64;
        let ahead = match known {
            Some(ahead) => ahead,
            None => {
                let wall = SystemTime::now()
                    .duration_since(UNIX_EPOCH)
                    .unwrap_or_default();
                let ahead = wall.as_nanos() as i64 - now;
                self.database.execute("DELETE FROM ages", [])?;
                self.database
                    .execute("INSERT INTO ages VALUES (?1, ?2)", (boot, ahead))?;
                ahead
            }
        };
        Ok(Duration::from_nanos(now.saturating_add(ahead).max(0) as u64))
    }
}
