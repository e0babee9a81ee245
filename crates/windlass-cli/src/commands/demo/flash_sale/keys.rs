//! Bare keys, for the guards that people build by themselves: SETNX, EXPIRE, SET NX PX, GET and DEL.
//!
//! On Redis these are the very commands. No other store has them, so there a small table takes their
//! place, one row a key, each command one transaction: what is flawed about those guards is what they ask for, and
//! not who answers.

use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use redis::aio::MultiplexedConnection;
use rusqlite::{Connection, OptionalExtension as _, TransactionBehavior};

use crate::commands::bench::bare;
use crate::failure::Failure;

const COMPARE_AND_DELETE: &str =
    "if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end return 0";

#[derive(Clone)]
pub(super) enum Keys {
    Redis(MultiplexedConnection),
    Table(Arc<Mutex<Connection>>),
}

impl Keys {
    pub(super) async fn on_redis(url: &str) -> Result<Keys, Failure> {
        Ok(Keys::Redis(bare::connect(url).await?))
    }

    /// A table in that file, which all shops share.
    pub(super) fn in_file(path: &Path) -> Result<Keys, Failure> {
        let open = || {
            let db = Connection::open(path)?;
            db.busy_timeout(Duration::from_secs(5))?;
            // Nobody needs it after the sale.
            db.execute_batch(
                "PRAGMA journal_mode = WAL; PRAGMA synchronous = OFF;
                 CREATE TABLE IF NOT EXISTS key (name TEXT PRIMARY KEY, value TEXT, ends INTEGER);",
            )?;
            Ok(db)
        };
        let db = open().map_err(failure)?;
        Ok(Keys::Table(Arc::new(Mutex::new(db))))
    }

    /// `SETNX name value`, or `SET name value NX PX ttl`. Whether it was set.
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
        self.either(command, move |db, now| {
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
        self.either(command, move |db, now| {
            let update = "UPDATE key SET ends = ?2 WHERE name = ?1 AND (ends IS NULL OR ends > ?3)";
            let ends = now + ttl.as_millis() as i64;
            Ok(db.execute(update, (name, ends, now))? == 1)
        })
        .await
    }

    /// `DEL name`, whoever has set it.
    pub(super) async fn delete(&self, name: &str) -> Result<bool, Failure> {
        let mut command = redis::cmd("DEL");
        command.arg(name);
        let name = name.to_owned();
        self.either(command, move |db, now| {
            let delete = "DELETE FROM key WHERE name = ?1 AND (ends IS NULL OR ends > ?2)";
            Ok(db.execute(delete, (name, now))? == 1)
        })
        .await
    }

    /// Deletes it if this is its value, in one step.
    pub(super) async fn delete_if(&self, name: &str, value: &str) -> Result<bool, Failure> {
        let mut command = redis::cmd("EVAL");
        command.arg(COMPARE_AND_DELETE).arg(1).arg(name).arg(value);
        let (name, value) = (name.to_owned(), value.to_owned());
        self.either(command, move |db, now| {
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

    async fn either(
        &self,
        command: redis::Cmd,
        otherwise: impl FnOnce(&Connection, i64) -> rusqlite::Result<bool> + Send + 'static,
    ) -> Result<bool, Failure> {
        match self {
            Keys::Redis(connection) => command
                .query_async(&mut connection.clone())
                .await
                .map_err(bare::failure),
            Keys::Table(db) => {
                let db = Arc::clone(db);
                let work = move || {
                    let mut db = db.lock().unwrap_or_else(PoisonError::into_inner);
                    let step = db.transaction_with_behavior(TransactionBehavior::Immediate)?;
                    let answer = otherwise(&step, now())?;
                    step.commit()?;
                    Ok(answer)
                };
                let done = tokio::task::spawn_blocking(work).await;
                done.map_err(|e| Failure::internal(format!("the table of keys failed: {e}")))?
                    .map_err(failure)
            }
        }
    }
}

/// The clock that the processes of one machine share, as a server's would be.
fn now() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |since| since.as_millis() as i64)
}

fn failure(error: rusqlite::Error) -> Failure {
    Failure::internal(format!("the table of keys failed: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_table_does_as_the_commands_do() {
        let folder = tempfile::tempdir().unwrap();
        let keys = Keys::in_file(&folder.path().join("keys.db")).unwrap();
        let short = Duration::from_millis(1);
        let long = Duration::from_secs(60);
        let yes = |answer: Result<bool, Failure>| answer.unwrap();
        assert!(yes(keys.set_if_absent("k", "ann", None).await));
        assert!(!yes(keys.set_if_absent("k", "ben", None).await));
        assert!(!yes(keys.set_if_absent("k", "ben", Some(long)).await));
        assert!(!yes(keys.delete_if("k", "ben").await));
        assert!(yes(keys.delete("k").await));
        assert!(yes(keys.set_if_absent("k", "ben", Some(short)).await));
        tokio::time::sleep(Duration::from_millis(20)).await; // longer than it lives
        assert!(!yes(keys.delete_if("k", "ben").await));
        assert!(!yes(keys.expire("k", long).await));
        assert!(yes(keys.set_if_absent("k", "cleo", None).await));
        assert!(yes(keys.expire("k", short).await));
        tokio::time::sleep(Duration::from_millis(20)).await; // as above
        assert!(yes(keys.set_if_absent("k", "ann", Some(long)).await));
        assert!(yes(keys.delete_if("k", "ann").await));
    }
}
