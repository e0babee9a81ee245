//! Opens the file: rejects paths on which SQLite is not safe, brings the tables up to date, and
//! voids the claims of an earlier boot.

use std::path::Path;
use std::time::{Duration, Instant};

use rusqlite::config::DbConfig;
use rusqlite::{Connection, ErrorCode, OpenFlags, TransactionBehavior};

use super::errors::translate_open;
use super::file_identity::FileIdentity;
use super::schema::{APPLICATION_ID, MIGRATIONS, VERSION};
use super::transaction::FENCE_BLOCK;
use windlass_core::Clock;
use windlass_core::error::{Error, ErrorKind, Result};

/// How long a process waits for another one's transaction, which takes microseconds.
pub(super) const BUSY_TIMEOUT: Duration = Duration::from_secs(5);

/// Opens the database, and says which file it is.
pub(super) fn open(path: &Path) -> Result<(Connection, FileIdentity)> {
    check_path(path)?;
    let mut database = Connection::open_with_flags(
        path,
        OpenFlags::SQLITE_OPEN_READ_WRITE
            | OpenFlags::SQLITE_OPEN_CREATE
            | OpenFlags::SQLITE_OPEN_NO_MUTEX,
    )
    .map_err(|e| translate_open(e, path))?;
    set_up(&mut database).map_err(|e| match e {
        SetUp::Sqlite(e) => translate_open(e, path),
        SetUp::Foreign(message) => {
            Error::new(ErrorKind::WrongType, "connect", message).with_hint("choose another path")
        }
    })?;
    // Read after the open: if the file was deleted in between, the first decision finds out.
    Ok((database, FileIdentity::of(path)))
}

enum SetUp {
    Sqlite(rusqlite::Error),
    Foreign(String),
}

impl From<rusqlite::Error> for SetUp {
    fn from(e: rusqlite::Error) -> SetUp {
        SetUp::Sqlite(e)
    }
}

fn set_up(database: &mut Connection) -> Result<(), SetUp> {
    database.busy_timeout(BUSY_TIMEOUT)?;
    // Checked before anything is written: a foreign file is left exactly as it was. In one
    // transaction, because another process may be creating the tables.
    let tx = database.transaction()?;
    let identity = identify(&tx)?;
    drop(tx);
    enable_wal(database)?;
    database.set_prepared_statement_cache_capacity(64);
    // Without it, SQLite plans a query again whenever a bound value changes: that took a third of
    // the time.
    database.set_db_config(DbConfig::SQLITE_DBCONFIG_ENABLE_QPSG, true)?;
    // These commits are synced to disk: they may create the file, or start a new boot.
    database.pragma_update(None, "synchronous", "FULL")?;
    if identity != Identity::Known(VERSION) {
        let tx = database.transaction_with_behavior(TransactionBehavior::Immediate)?;
        // Another process may have been faster.
        let version = match identify(&tx)? {
            Identity::Empty => 0,
            Identity::Known(version) => version,
        };
        for tables in MIGRATIONS[version as usize..].iter().copied().flatten() {
            tx.execute_batch(tables)?;
        }
        tx.pragma_update(None, "application_id", APPLICATION_ID)?;
        tx.pragma_update(None, "user_version", VERSION)?;
        tx.commit()?;
    }
    start_boot(database)?;
    database.pragma_update(None, "synchronous", "NORMAL")?;
    database.busy_handler(Some(wait_for_other_process))?;
    Ok(())
}

/// Switches to the write-ahead log. No other process may use the file meanwhile, and SQLite does
/// not wait for that by itself.
fn enable_wal(database: &Connection) -> rusqlite::Result<()> {
    let deadline = Instant::now() + BUSY_TIMEOUT;
    loop {
        match database.pragma_update(None, "journal_mode", "WAL") {
            Err(e)
                if e.sqlite_error_code() == Some(ErrorCode::DatabaseBusy)
                    && Instant::now() < deadline =>
            {
                std::thread::sleep(Duration::from_millis(5));
            }
            other => return other,
        }
    }
}

#[derive(PartialEq)]
enum Identity {
    Empty,
    /// A Windlass database of this version, which may be an older one.
    Known(i32),
}

fn identify(database: &Connection) -> Result<Identity, SetUp> {
    let number = |pragma| database.pragma_query_value(None, pragma, |row| row.get::<_, i32>(0));
    match (number("application_id")?, number("user_version")?) {
        (APPLICATION_ID, version @ 1..=VERSION) => Ok(Identity::Known(version)),
        (APPLICATION_ID, version) => Err(SetUp::Foreign(format!(
            "the file has format {version}; this program supports formats up to {VERSION}"
        ))),
        _ => {
            let tables: i64 =
                database.query_row("SELECT count(*) FROM sqlite_schema", [], |row| row.get(0))?;
            if tables == 0 {
                return Ok(Identity::Empty);
            }
            Err(SetUp::Foreign(
                "the file is another program's database".to_owned(),
            ))
        }
    }
}

/// After a reboot every claim is void: its process is gone, and the boot clock has restarted.
/// Fences continue at the ceiling, which is above every fence ever taken.
fn start_boot(database: &mut Connection) -> rusqlite::Result<()> {
    let boot = boot_id();
    let now = Clock::system().now().as_nanos() as i64;
    let tx = database.transaction_with_behavior(TransactionBehavior::Immediate)?;
    let known: String = tx.query_row("SELECT boot FROM fences", [], |row| row.get(0))?;
    if known != boot {
        tx.execute_batch(
            "DELETE FROM claims; DELETE FROM shares; DELETE FROM rooms; DELETE FROM watchers;",
        )?;
        super::limit::start_boot(&tx, now as u64 / 1_000)?;
        super::counter::start_boot(&tx, now as u64 / 1_000)?;
        tx.execute(
            "UPDATE gates SET until = min(remember, 9223372036854775807 - ?1) + ?1",
            [now],
        )?;
        tx.execute(
            "UPDATE latches SET until = min(keep, 9223372036854775807 - ?1) + ?1",
            [now],
        )?;
        tx.execute(
            "UPDATE fences SET last = ceiling, ceiling = ceiling + ?1, boot = ?2",
            (FENCE_BLOCK, boot),
        )?;
    }
    tx.commit()
}

/// Identifies the current boot of the machine.
pub(super) fn boot_id() -> String {
    std::fs::read_to_string("/proc/sys/kernel/random/boot_id")
        .map(|id| id.trim().to_owned())
        .unwrap_or_else(|_| "unknown".to_owned())
}

/// SQLite's own busy handler waits up to 100 ms between two tries; transactions here take
/// microseconds.
fn wait_for_other_process(tries: i32) -> bool {
    let pause = Duration::from_micros(20 << tries.clamp(0, 6));
    std::thread::sleep(pause);
    pause * u32::try_from(tries).unwrap_or(0) < BUSY_TIMEOUT
}

fn check_path(path: &Path) -> Result<()> {
    let folder = match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    if path.is_dir() {
        return Err(Error::invalid("connect", "the path is a folder")
            .with_hint("give the path of a file in it"));
    }
    if path.exists() && !path.is_file() {
        return Err(Error::invalid("connect", "the path is not a regular file")
            .with_hint("choose the path of a regular file, or of one to create"));
    }
    if !folder.is_dir() {
        return Err(Error::new(
            ErrorKind::Unreachable,
            "connect",
            format!("the folder {} does not exist", folder.display()),
        )
        .with_hint("create the folder first"));
    }
    match network_file_system(folder) {
        None => Ok(()),
        Some(kind) => Err(Error::new(
            ErrorKind::Unsupported,
            "connect",
            format!("{} is on a network file system ({kind})", folder.display()),
        )
        .with_hint(
            "SQLite's locking and shared memory are not safe there: use a local disk, or a \
             server such as redis://",
        )),
    }
}

/// The name of the network file system that `folder` is on, if it is.
#[cfg(target_os = "linux")]
fn network_file_system(folder: &Path) -> Option<&'static str> {
    // Magic numbers from statfs(2).
    let known = [
        (0x6969, "NFS"),
        (0x517b, "SMB"),
        (0xff53_4d42, "CIFS"),
        (0xfe53_4d42, "SMB2"),
        (0x0102_1997, "9P"),
        (0x5346_414f, "AFS"),
        (0x00c3_6400, "Ceph"),
        (0x0bd0_0bd0, "Lustre"),
        (0x7461_636f, "OCFS2"),
        (0x0116_1970, "GFS2"),
    ];
    let kind = rustix::fs::statfs(folder).ok()?.f_type as u64 & 0xffff_ffff;
    known.iter().find(|(magic, _)| *magic == kind).map(|k| k.1)
}

#[cfg(not(target_os = "linux"))]
fn network_file_system(_folder: &Path) -> Option<&'static str> {
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_is_rejected() {
        for path in ["/dev/null", "/dev/full", "/"] {
            let error = check_path(Path::new(path)).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidInput, "{path}: {error}");
        }
    }
}
