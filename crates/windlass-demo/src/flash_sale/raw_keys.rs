//! The commands of home-made locks: SETNX, EXPIRE, SET NX PX, GET and DEL.
//!
//! On Redis these commands are sent as they are. For other stores, a small SQLite table imitates them, one row per key
//! and one transaction per command: the flaws of those guards lie in the commands they choose, not in the server.

use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use redis::aio::MultiplexedConnection;
use rusqlite::{Connection, OptionalExtension as _, TransactionBehavior};
use windlass_term::{Failure, raw_redis};

const COMPARE_AND_DELETE: &str =
    "if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end return 0";

#[derive(Clone)]
pub(super) enum RawKeys {
    Redis(MultiplexedConnection),
    Table(Arc<Mutex<Connection>>),
}

impl RawKeys {
    pub(super) async fn on_redis(url: &str) -> Result<RawKeys, Failure> {
        Ok(RawKeys::Redis(raw_redis::connect(url).await?))
    }

    /// A table in this file, which all shops share.
    pub(super) fn in_file(path: &Path) -> Result<RawKeys, Failure> {
        let open = || {
            let db = Connection::open(path)?;
            db.busy_timeout(Duration::from_secs(5))?;
            // It need not survive a crash of the machine.
            db.execute_batch(
                "PRAGMA journal_mode = WAL; PRAGMA synchronous = OFF;
                 CREATE TABLE IF NOT EXISTS key (name TEXT PRIMARY KEY, value TEXT, ends INTEGER);",
            )?;
            Ok(db)
        };
        let db = open().map_err(failure)?;
        Ok(RawKeys::Table(Arc::new(Mutex::new(db))))
    }

    /// `SETNX name value`, or `SET name value NX PX ttl`. Returns whether it was set.
    pub(super) async fn set_if_absent(
        &self,
        name: &str,
        value: &str,
        ttl: Option<Duration>,
    ) -> Result<bool, Failure> {
        let command = match ttl {
            None => {
                let mut command = redis::cmd("SETNX");
                command.arg(name).arg(value);
                command
            }
            Some(ttl) => {
                let mut command = redis::cmd("SET");
                let ttl = ttl.as_millis() as u64;
                command.arg(name).arg(value).arg("NX").arg("PX").arg(ttl);
                command
            }
        };
        let (name, value) = (name.to_owned(), value.to_owned());
        self.execute(command, move |db, now| {
            let insert = "INSERT INTO key (name, value, ends) VALUES (?1, ?2, ?3)
                          ON CONFLICT (name) DO UPDATE SET value = ?2, ends = ?3 WHERE ends <= ?4";
            let ends = ttl.map(|ttl| now + ttl.as_millis() as i64);
            Ok(db.execute(insert, (name, value, ends, now))? == 1)
        })
        .await
    }

    /// `PEXPIRE name ttl`.
    pub(super) async fn expire(&self, name: &str, ttl: Duration) -> Result<bool, Failure> {
        let mut command = redis::cmd("PEXPIRE");
        command.arg(name).arg(ttl.as_millis() as u64);
        let name = name.to_owned();
        self.execute(command, move |db, now| {
            let update = "UPDATE key SET ends = ?2 WHERE name = ?1 AND (ends IS NULL OR ends > ?3)";
            let ends = now + ttl.as_millis() as i64;
            Ok(db.execute(update, (name, ends, now))? == 1)
        })
        .await
    }

    /// `DEL name`, whatever its value.
    pub(super) async fn delete(&self, name: &str) -> Result<bool, Failure> {
        let mut command = redis::cmd("DEL");
        command.arg(name);
        let name = name.to_owned();
        self.execute(command, move |db, now| {
            let delete = "DELETE FROM key WHERE name = ?1 AND (ends IS NULL OR ends > ?2)";
            Ok(db.execute(delete, (name, now))? == 1)
        })
        .await
    }

    /// Deletes the key if it has this value, atomically.
    pub(super) async fn delete_if(&self, name: &str, value: &str) -> Result<bool, Failure> {
        let mut command = redis::cmd("EVAL");
        command.arg(COMPARE_AND_DELETE).arg(1).arg(name).arg(value);
        let (name, value) = (name.to_owned(), value.to_owned());
        self.execute(command, move |db, now| {
            let find = "SELECT value FROM key WHERE name = ?1 AND (ends IS NULL OR ends > ?2)";
            let found: Option<String> = db
                .query_row(find, (&name, now), |row| row.get(0))
                .optional()?;
            if found.as_deref() != Some(value.as_str()) {
                return Ok(false);
            }
            Ok(db.execute("DELETE FROM key WHERE name = ?1", (&name,))? == 1)
        })
        .await
    }

    async fn execute(
        &self,
        command: redis::Cmd,
        in_table: impl FnOnce(&Connection, i64) -> rusqlite::Result<bool> + Send + 'static,
    ) -> Result<bool, Failure> {
        match self {
            RawKeys::Redis(connection) => command
                .query_async(&mut connection.clone())
                .await
                .map_err(raw_redis::failure),
            RawKeys::Table(db) => {
                let db = Arc::clone(db);
                let work = move || {
                    let mut db = db.lock().unwrap_or_else(PoisonError::into_inner);
                    let step = db.transaction_with_behavior(TransactionBehavior::Immediate)?;
                    let answer = in_table(&step, now())?;
                    step.commit()?;
                    Ok(answer)
                };
                let done = tokio::task::spawn_blocking(work).await;
                done.map_err(|e| Failure::internal(format!("the key table failed: {e}")))?
                    .map_err(failure)
            }
        }
    }
}

/// A clock that all processes of the machine share, in place of a server's clock.
fn now() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |since| since.as_millis() as i64)
}

fn failure(error: rusqlite::Error) -> Failure {
    Failure::internal(format!("the key table failed: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn table_behaves_like_the_redis_commands() {
        let folder = tempfile::tempdir().unwrap();
        let keys = RawKeys::in_file(&folder.path().join("keys.db")).unwrap();
        let short = Duration::from_millis(1);
        let long = Duration::from_secs(60);
        let yes = |answer: Result<bool, Failure>| answer.unwrap();
        assert!(yes(keys.set_if_absent("k", "ann", None).await));
        assert!(!yes(keys.set_if_absent("k", "ben", None).await));
        assert!(!yes(keys.set_if_absent("k", "ben", Some(long)).await));
        assert!(!yes(keys.delete_if("k", "ben").await));
        assert!(yes(keys.delete("k").await));
        assert!(yes(keys.set_if_absent("k", "ben", Some(short)).await));
        tokio::time::sleep(Duration::from_millis(20)).await; // longer than the TTL
        assert!(!yes(keys.delete_if("k", "ben").await));
        assert!(!yes(keys.expire("k", long).await));
        assert!(yes(keys.set_if_absent("k", "cleo", None).await));
        assert!(yes(keys.expire("k", short).await));
        tokio::time::sleep(Duration::from_millis(20)).await; // as above
        assert!(yes(keys.set_if_absent("k", "ann", Some(long)).await));
        assert!(yes(keys.delete_if("k", "ann").await));
    }
}
