//! Opening the file: refusing what would not be safe, and starting a new boot.

use std::path::Path;
use std::time::{Duration, Instant};

use rusqlite::config::DbConfig;
use rusqlite::{Connection, ErrorCode, OpenFlags, TransactionBehavior};

use super::place::Place;
use super::schema::{APPLICATION_ID, STEPS, VERSION};
use windlass_core::Clock;
use windlass_core::error::{Error, ErrorKind, Result};

/// How long a process waits for another one's transaction, which takes microseconds.
const PATIENCE: Duration = Duration::from_secs(5);
/// Fences reserved on disk at a time. After a power cut the counter may have fallen back, but not
/// below the last ceiling that was synced: the next boot goes on from there.
pub(super) const FENCE_BLOCK: i64 = 1_000_000;

/// Opens the database, and tells which file that is.
pub(super) fn open(path: &Path) -> Result<(Connection, Place)> {
    check_place(path)?;
    let mut database = Connection::open_with_flags(
        path,
        OpenFlags::SQLITE_OPEN_READ_WRITE
            | OpenFlags::SQLITE_OPEN_CREATE
            | OpenFlags::SQLITE_OPEN_NO_MUTEX,
    )
    .map_err(|e| explain(e, path))?;
    set_up(&mut database).map_err(|e| match e {
        SetUp::Sqlite(e) => explain(e, path),
        SetUp::Foreign(message) => {
            Error::new(ErrorKind::WrongType, "connect", message).with_hint("choose another path")
        }
    })?;
    // Looked at after it was opened: if it was deleted in between, the first decision finds out.
    Ok((database, Place::of(path)))
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
    database.busy_timeout(PATIENCE)?;
    // Looked at before anything is written: a foreign file is left exactly as it was. In one
    // transaction, because another process may be creating the tables.
    let tx = database.transaction()?;
    let identity = identify(&tx)?;
    drop(tx);
    write_ahead(database)?;
    database.set_prepared_statement_cache_capacity(64);
    // Or SQLite plans a query anew whenever a bound value changes: that took a third of the time.
    database.set_db_config(DbConfig::SQLITE_DBCONFIG_ENABLE_QPSG, true)?;
    // This once, each commit is synced to disk: it may create the file, or start a new boot.
    database.pragma_update(None, "synchronous", "FULL")?;
    if identity != Identity::Known(VERSION) {
        let tx = database.transaction_with_behavior(TransactionBehavior::Immediate)?;
        // Another process may have been faster.
        let version = match identify(&tx)? {
            Identity::Empty => 0,
            Identity::Known(version) => version,
        };
        for tables in STEPS[version as usize..].iter().copied().flatten() {
            tx.execute_batch(tables)?;
        }
        tx.pragma_update(None, "application_id", APPLICATION_ID)?;
        tx.pragma_update(None, "user_version", VERSION)?;
        tx.commit()?;
    }
    start_boot(database)?;
    database.pragma_update(None, "synchronous", "NORMAL")?;
    database.busy_handler(Some(wait_for_the_other))?;
    Ok(())
}

/// Switches to the write-ahead log, for which nobody else may be using the file: SQLite does not
/// wait for them by itself.
fn write_ahead(database: &Connection) -> rusqlite::Result<()> {
    let deadline = Instant::now() + PATIENCE;
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
    /// Ours, in a format that this program knows, maybe an older one.
    Known(i32),
}

fn identify(database: &Connection) -> Result<Identity, SetUp> {
    let number = |pragma| database.pragma_query_value(None, pragma, |row| row.get::<_, i32>(0));
    match (number("application_id")?, number("user_version")?) {
        (APPLICATION_ID, version @ 1..=VERSION) => Ok(Identity::Known(version)),
        (APPLICATION_ID, version) => Err(SetUp::Foreign(format!(
            "the file has format {version}, and this program knows format {VERSION}"
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

/// After a reboot every claim is void: whoever held is gone, and the clock has started anew.
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

/// Which boot of the machine this is.
pub(super) fn boot_id() -> String {
    std::fs::read_to_string("/proc/sys/kernel/random/boot_id")
        .map(|id| id.trim().to_owned())
        .unwrap_or_else(|_| "unknown".to_owned())
}

/// SQLite's own way of waiting doubles up to 100 ms; transactions here take microseconds.
fn wait_for_the_other(tries: i32) -> bool {
    let pause = Duration::from_micros(20 << tries.clamp(0, 6));
    std::thread::sleep(pause);
    pause * u32::try_from(tries).unwrap_or(0) < PATIENCE
}

fn check_place(path: &Path) -> Result<()> {
    let folder = match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    if path.is_dir() {
        return Err(
            Error::invalid("connect", "the path is a folder").with_hint("name a file in it")
        );
    }
    if path.exists() && !path.is_file() {
        return Err(Error::invalid(
            "connect",
            "the path is no regular file, but a device or the like",
        )
        .with_hint("name a file of its own"));
    }
    if !folder.is_dir() {
        return Err(Error::new(
            ErrorKind::Unreachable,
            "connect",
            format!("the folder {} does not exist", folder.display()),
        )
        .with_hint("create it first"));
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

/// What a failure to open means.
fn explain(e: rusqlite::Error, path: &Path) -> Error {
    let shown = path.display();
    let (kind, message, hint) = match e.sqlite_error_code() {
        Some(ErrorCode::NotADatabase) => (
            ErrorKind::WrongType,
            format!("{shown} is not a database"),
            "choose another path: this file belongs to something else",
        ),
        Some(ErrorCode::ReadOnly | ErrorCode::CannotOpen | ErrorCode::PermissionDenied) => (
            ErrorKind::AccessDenied,
            format!("{shown} cannot be written"),
            "the folder must be writable too: SQLite keeps two more files beside the database",
        ),
        Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked) => (
            ErrorKind::Unreachable,
            format!("{shown} was kept locked by another process for {PATIENCE:?}"),
            "does a tool have the database open in a transaction?",
        ),
        _ => return translate(e).with_operation("connect"),
    };
    Error::new(kind, "connect", message)
        .with_hint(hint)
        .with_source(e)
}

/// What a failed transaction means: nothing of it happened.
pub(super) fn translate(e: rusqlite::Error) -> Error {
    let (kind, message) = meaning(&e);
    let error = Error::new(kind, "call", message);
    match is_damaged(&e) {
        true => error.with_hint(IF_DAMAGED).with_source(e),
        false => error.with_source(e),
    }
}

/// Once it was open, it was one of ours.
fn is_damaged(e: &rusqlite::Error) -> bool {
    let code = e.sqlite_error_code();
    matches!(
        code,
        Some(ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase)
    )
}

const IF_DAMAGED: &str = "stop all who use it, and move it away together with its -wal and -shm: a new \
                          one is made, with higher fences; what was held is free then, and what was kept is gone";

pub(super) fn meaning(e: &rusqlite::Error) -> (ErrorKind, &'static str) {
    match e.sqlite_error_code() {
        Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked) => (
            ErrorKind::Unreachable,
            "the database is kept locked by another process",
        ),
        Some(ErrorCode::DiskFull) => (ErrorKind::Store, "the disk is full"),
        _ if is_damaged(e) => (ErrorKind::Store, "the file is damaged"),
        Some(ErrorCode::ReadOnly) => (ErrorKind::AccessDenied, "the database cannot be written"),
        _ => (ErrorKind::Store, "the database failed"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cannot_be_written_is_refused_access() {
        let failed = |code| {
            let cause = rusqlite::ffi::Error::new(code);
            meaning(&rusqlite::Error::SqliteFailure(cause, None)).0
        };
        let denied = ErrorKind::AccessDenied;
        assert_eq!(failed(rusqlite::ffi::SQLITE_READONLY), denied);
        assert_eq!(failed(rusqlite::ffi::SQLITE_FULL), ErrorKind::Store);
        assert_eq!(failed(rusqlite::ffi::SQLITE_BUSY), ErrorKind::Unreachable);
    }

    #[test]
    fn a_device_is_no_store() {
        for path in ["/dev/null", "/dev/full", "/"] {
            let error = check_place(Path::new(path)).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidInput, "{path}: {error}");
        }
    }
}
