//! Opens the file: checks that it is whole, brings the tables up to date, and voids the claims of
//! an earlier boot.

use std::cell::Cell;
use std::path::Path;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use rusqlite::config::DbConfig;
use rusqlite::{Connection, ErrorCode, OpenFlags, TransactionBehavior};

use super::address;
use super::boot_clock::{BootClock, boot_id};
use super::errors::{damaged, translate_open};
#[cfg(target_os = "linux")]
use super::file_identity::is_open_here;
use super::file_identity::{FileIdentity, side_files, wait_for_closed_side_files};
#[cfg(target_os = "linux")]
use super::log_check;
use super::schema::{APPLICATION_ID, DAMAGED, MIGRATIONS, VERSION};
use super::transaction::FENCE_BLOCK;
use windlass_core::error::{Error, ErrorKind, Result};

/// How long a call waits for another process's transaction, which takes microseconds. Shorter than
/// the call timeout, so that the caller gets the reason.
pub(super) const BUSY_TIMEOUT: Duration = Duration::from_millis(1500);
/// The same for opening the file.
pub(super) const OPEN_TIMEOUT: Duration = Duration::from_secs(3);

/// Opens the database, and says which file it is.
pub(super) fn open(path: &Path) -> Result<(Connection, FileIdentity)> {
    let path = &address::resolve(path)?;
    if !wait_for_closed_side_files(path) {
        let problem = "the -wal or -shm file was removed, and this process still uses it";
        return Err(Error::new(ErrorKind::Unreachable, "connect", problem)
            .with_hint("restart the programs that use the file"));
    }
    share_side_files(path);
    let (mut database, lost_frames) = open_checked(path).map_err(|e| translate_open(e, path))?;
    set_up(&mut database, lost_frames).map_err(|e| match e {
        SetUp::Sqlite(e) => translate_open(e, path),
        SetUp::Damaged => damaged(),
        SetUp::Foreign(message) => {
            Error::new(ErrorKind::WrongType, "connect", message).with_hint("choose another path")
        }
    })?;
    // Read after the open: if the file was deleted in between, the first decision finds out.
    Ok((database, FileIdentity::of(path)))
}

/// Held while the log is checked or its index discarded, until the file is open: that must not run
/// beside a connection of this process, whose locks it would drop.
static OPENING: Mutex<()> = Mutex::new(());

/// Opens the file, and says whether its log lost transactions before.
fn open_checked(path: &Path) -> rusqlite::Result<(Connection, bool)> {
    let _opening = OPENING.lock().unwrap_or_else(PoisonError::into_inner);
    let lost_frames = has_lost_frames(path);
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE
        | OpenFlags::SQLITE_OPEN_CREATE
        | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    Ok((Connection::open_with_flags(path, flags)?, lost_frames))
}

#[cfg(target_os = "linux")]
fn has_lost_frames(path: &Path) -> bool {
    match path.canonicalize() {
        // SQLite ignores and removes the log of an empty file.
        Ok(real) => !is_empty(&real) && !is_open_here(&real) && log_check::has_lost_frames(&real),
        Err(_) => false,
    }
}

#[cfg(not(target_os = "linux"))]
fn has_lost_frames(_path: &Path) -> bool {
    false
}

/// Whether SQLite takes the file for a new one. It writes a single byte into an empty file on some
/// systems, and so treats a file of one byte as empty.
fn is_empty(path: &Path) -> bool {
    std::fs::metadata(path).is_ok_and(|found| found.len() <= 1)
}

/// Gives the side files the permissions of the database, if this user may: they may be left from
/// before its permissions were changed. SQLite creates new ones with the permissions of the
/// database.
#[cfg(unix)]
fn share_side_files(path: &Path) {
    let Ok(real) = path.canonicalize() else {
        return;
    };
    let Ok(permissions) = std::fs::metadata(&real).map(|found| found.permissions()) else {
        return;
    };
    for file in side_files(&real) {
        let same = std::fs::metadata(&file).map(|found| found.permissions() == permissions);
        if same.is_ok_and(|same| !same) {
            // If it fails, opening fails, and the error names the file.
            let _ = std::fs::set_permissions(&file, permissions.clone());
        }
    }
}

#[cfg(not(unix))]
fn share_side_files(_path: &Path) {}

/// Closes a database whose files were removed, replaced or cut off. Without a checkpoint: it would
/// write into the file that has the name now.
pub(super) fn close_stale(database: Connection, path: &Path) {
    // As long as this connection is open, no other process can start to fill an emptied file.
    let emptied = is_empty(path);
    let no_checkpoint = DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE;
    if let Err(e) = database.set_db_config(no_checkpoint, true) {
        tracing::warn!(error = %e, "could not disable the checkpoint");
    }
    drop(database);
    if emptied {
        discard_index(path);
    }
}

/// Discards the index of an emptied file, if no process uses it. It counts frames of a log that
/// SQLite removes, which would look like damage.
#[cfg(target_os = "linux")]
fn discard_index(path: &Path) {
    let _opening = OPENING.lock().unwrap_or_else(PoisonError::into_inner);
    if let Ok(real) = path.canonicalize()
        && !is_open_here(&real)
        && let Err(e) = log_check::discard_unused_index(&real)
    {
        tracing::warn!(error = %e, "could not discard the index of the emptied file");
    }
}

#[cfg(not(target_os = "linux"))]
fn discard_index(_path: &Path) {}

enum SetUp {
    Sqlite(rusqlite::Error),
    Damaged,
    Foreign(String),
}

impl From<rusqlite::Error> for SetUp {
    fn from(e: rusqlite::Error) -> SetUp {
        SetUp::Sqlite(e)
    }
}

fn set_up(database: &mut Connection, lost_frames: bool) -> Result<(), SetUp> {
    database.busy_timeout(OPEN_TIMEOUT)?;
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
    // The first commit was synced to disk, so a log never loses it.
    if lost_frames && (identity == Identity::Empty || Boot::of(database)? != Boot::Earlier) {
        // For good: the index, which showed it, is being replaced.
        let tx = database.transaction_with_behavior(TransactionBehavior::Immediate)?;
        tx.pragma_update(None, "application_id", APPLICATION_ID)?;
        tx.pragma_update(None, "user_version", DAMAGED)?;
        tx.commit()?;
        return Err(SetUp::Damaged);
    }
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
    let deadline = Instant::now() + OPEN_TIMEOUT;
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
        (APPLICATION_ID, DAMAGED) => Err(SetUp::Damaged),
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

/// Which boot the claims in the file belong to.
#[derive(PartialEq)]
enum Boot {
    Earlier,
    /// The claims of the earlier boot are void, and this one has none yet.
    Starting,
    Current,
}

impl Boot {
    fn of(database: &Connection) -> rusqlite::Result<Boot> {
        let stored: String = database.query_row("SELECT boot FROM fences", [], |row| row.get(0))?;
        let current = boot_id();
        Ok(match stored.strip_prefix(STARTING) {
            Some(starting) if starting == current => Boot::Starting,
            None if stored == current => Boot::Current,
            _ => Boot::Earlier,
        })
    }
}

/// Precedes the identity of a boot that is starting.
const STARTING: &str = "starting ";

/// After a reboot every claim is void: its process is gone, and the boot clock has restarted.
/// Fences continue at the ceiling, which is above every fence ever taken.
///
/// The first claim of a boot is granted when the database itself has the boot, and the log has
/// nothing older. So a log that is cut off at any frame shows that it lost frames of this boot.
fn start_boot(database: &mut Connection) -> rusqlite::Result<()> {
    let now = BootClock::new().now().as_nanos() as i64;
    let tx = database.transaction_with_behavior(TransactionBehavior::Immediate)?;
    if Boot::of(&tx)? == Boot::Earlier {
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
            (FENCE_BLOCK, format!("{STARTING}{}", boot_id())),
        )?;
    }
    tx.commit()?;
    let deadline = Instant::now() + OPEN_TIMEOUT;
    while Boot::of(database)? != Boot::Current {
        if empty_log(database)? {
            database.execute("UPDATE fences SET boot = ?1", [boot_id()])?;
        } else if Instant::now() < deadline {
            // Another process empties it, or reads. SQLite does not wait for the first.
            std::thread::sleep(Duration::from_millis(5));
        } else {
            let busy = rusqlite::ffi::Error::new(rusqlite::ffi::SQLITE_BUSY);
            return Err(rusqlite::Error::SqliteFailure(busy, None));
        }
    }
    Ok(())
}

/// Moves all transactions from the log to the database; false if other processes prevent it.
fn empty_log(database: &Connection) -> rusqlite::Result<bool> {
    database.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |row| {
        row.get::<_, bool>(0).map(|busy| !busy)
    })
}

thread_local! {
    /// Until when this thread waits for other processes' transactions.
    static WAIT_UNTIL: Cell<Option<Instant>> = const { Cell::new(None) };
}

/// Sets until when statements of this thread wait for other processes: one limit for all that one
/// call takes.
pub(super) fn wait_for_others_until(deadline: Instant) {
    WAIT_UNTIL.set(Some(deadline));
}

/// SQLite's own busy handler waits up to 100 ms between two tries; transactions here take
/// microseconds.
fn wait_for_other_process(tries: i32) -> bool {
    std::thread::sleep(Duration::from_micros(20 << tries.clamp(0, 6)));
    WAIT_UNTIL.get().is_some_and(|end| Instant::now() < end)
}
