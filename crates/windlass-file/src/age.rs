//! The time that windows are measured in.
//!
//! Leases end with the boot they were granted in, and live by the boot clock. What is remembered for
//! a day has to outlast a reboot: so it lives by a clock that is set by the wall clock once a boot,
//! and runs with the boot clock from then on. It does not jump when somebody sets the wall
//! clock, and it is the same for all processes of the machine.

use std::sync::OnceLock;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rusqlite::OptionalExtension;

use super::open::boot_id;
use super::worker::Scope;

pub(super) const TABLES: &str = "
    CREATE TABLE ages (
        boot  TEXT NOT NULL,
        ahead INTEGER NOT NULL
    );
";

impl Scope<'_> {
    /// Now, by the clock of windows.
    pub(super) fn age(&self) -> rusqlite::Result<Duration> {
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
