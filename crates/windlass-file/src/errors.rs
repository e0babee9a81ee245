//! What SQLite's errors mean to a caller.

use std::path::{Path, PathBuf};

use rusqlite::ErrorCode;

use super::connection::OPEN_TIMEOUT;
use super::file_identity::side_files;
use super::lock_holder::LockHolder;
use windlass_core::error::{Error, ErrorKind};

const DAMAGED_HINT: &str = "stop all programs that use it, and move it away together with its \
                            -wal and -shm files: a new file is created, with higher fences; held \
                            locks are free then, and stored data is gone";

/// Why the database could not be opened.
pub(super) fn translate_open(e: rusqlite::Error, path: &Path) -> Error {
    let shown = path.display();
    let (kind, message, hint) = match e.sqlite_error_code() {
        Some(ErrorCode::NotADatabase) if is_cut_off_header(path) => {
            return translate(e, path).with_operation("connect");
        }
        Some(ErrorCode::NotADatabase) => (
            ErrorKind::WrongType,
            format!("{shown} is not a database"),
            "choose another path: this file belongs to another program".to_owned(),
        ),
        Some(ErrorCode::ReadOnly | ErrorCode::CannotOpen | ErrorCode::PermissionDenied) => {
            match unwritable_side_file(path) {
                Some(file) => (
                    ErrorKind::AccessDenied,
                    format!("{} cannot be written", file.display()),
                    format!(
                        "it must have the owner and the permissions of {shown}: chown and chmod \
                         it, or remove it while no program uses the store"
                    ),
                ),
                None => (
                    ErrorKind::AccessDenied,
                    format!("{shown} cannot be written"),
                    "the folder must be writable too: SQLite keeps two more files beside the \
                     database"
                        .to_owned(),
                ),
            }
        }
        Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked) => {
            let (message, hint) = explain_lock(path);
            let message = format!("{message}; waited for {OPEN_TIMEOUT:?}");
            (ErrorKind::Unreachable, message, hint)
        }
        _ => return translate(e, path).with_operation("connect"),
    };
    Error::new(kind, "connect", message)
        .with_hint(hint)
        .with_source(e)
}

/// Whether the file ends within the header of a database.
fn is_cut_off_header(path: &Path) -> bool {
    const MAGIC: &[u8] = b"SQLite format 3\0";
    // Not one that a client may use: to close a file drops the locks of this process.
    std::fs::metadata(path).is_ok_and(|found| found.len() < 100)
        && std::fs::read(path).is_ok_and(|found| {
            let known = found.len().min(MAGIC.len());
            found[..known] == MAGIC[..known]
        })
}

/// The log or its index, if this user may not write to it.
fn unwritable_side_file(path: &Path) -> Option<PathBuf> {
    let real = path.canonicalize().ok()?;
    side_files(&real)
        .into_iter()
        .find(|file| is_read_only(file))
}

#[cfg(unix)]
fn is_read_only(file: &Path) -> bool {
    use rustix::fs::{Access, access};
    // Not by opening it: to close the index drops the locks of this process.
    file.exists() && access(file, Access::READ_OK | Access::WRITE_OK).is_err()
}

#[cfg(not(unix))]
fn is_read_only(_file: &Path) -> bool {
    false
}

/// Another process keeps the database locked.
pub(super) fn locked(path: &Path) -> Error {
    let (message, hint) = explain_lock(path);
    Error::new(ErrorKind::Unreachable, "call", message).with_hint(hint)
}

/// Which process has locked the database, and what can be done.
fn explain_lock(path: &Path) -> (String, String) {
    match LockHolder::find(path) {
        Some(holder) => (
            format!("{holder} keeps the database locked"),
            format!(
                "it may be stopped (kill -CONT {pid} resumes it) or in a long transaction; the \
                 lock ends with the process",
                pid = holder.pid
            ),
        ),
        None => (
            "another process keeps the database locked".to_owned(),
            "a process may be stopped within a transaction, or a tool has one open".to_owned(),
        ),
    }
}

/// A file that lost committed transactions.
pub(super) fn damaged() -> Error {
    let problem = "the file is damaged: committed transactions are missing in its log";
    Error::new(ErrorKind::Store, "connect", problem).with_hint(DAMAGED_HINT)
}

/// Why a transaction failed: nothing of it happened.
pub(super) fn translate(e: rusqlite::Error, path: &Path) -> Error {
    let (kind, message) = describe(&e);
    if kind == ErrorKind::Unreachable {
        return locked(path).with_source(e);
    }
    with_hint(Error::new(kind, "call", message), &e).with_source(e)
}

/// The same for several callers: `rusqlite::Error` cannot be cloned.
pub(super) fn translate_shared(e: &rusqlite::Error) -> Error {
    let (kind, message) = describe(e);
    with_hint(Error::new(kind, "call", format!("{message}: {e}")), e)
}

fn with_hint(error: Error, cause: &rusqlite::Error) -> Error {
    match is_damaged(cause) || is_log_cut_off(cause) {
        true => error.with_hint(DAMAGED_HINT),
        false => error,
    }
}

fn describe(e: &rusqlite::Error) -> (ErrorKind, &'static str) {
    match e.sqlite_error_code() {
        Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked) => (
            ErrorKind::Unreachable,
            "the database is locked by another process",
        ),
        Some(ErrorCode::DiskFull) => (ErrorKind::Store, "the disk is full"),
        _ if is_damaged(e) => (ErrorKind::Store, "the file is damaged"),
        _ if is_log_cut_off(e) => (
            ErrorKind::Store,
            "another program cut off or removed the log (-wal) while the file is in use",
        ),
        Some(ErrorCode::ReadOnly) => (ErrorKind::AccessDenied, "the database cannot be written"),
        _ => (ErrorKind::Store, "the database failed"),
    }
}

/// `NotADatabase` after a successful open means that the header was overwritten since.
fn is_damaged(e: &rusqlite::Error) -> bool {
    let code = e.sqlite_error_code();
    matches!(
        code,
        Some(ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase)
    )
}

/// The log ends before a frame that its index has. A database that is too short gives no such error.
fn is_log_cut_off(e: &rusqlite::Error) -> bool {
    let code = e.sqlite_error().map(|e| e.extended_code);
    code == Some(rusqlite::ffi::SQLITE_IOERR_SHORT_READ)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn read_only_is_access_denied() {
        let failed = |code| {
            let cause = rusqlite::ffi::Error::new(code);
            describe(&rusqlite::Error::SqliteFailure(cause, None)).0
        };
        let denied = ErrorKind::AccessDenied;
        assert_eq!(failed(rusqlite::ffi::SQLITE_READONLY), denied);
        assert_eq!(failed(rusqlite::ffi::SQLITE_FULL), ErrorKind::Store);
        assert_eq!(failed(rusqlite::ffi::SQLITE_BUSY), ErrorKind::Unreachable);
    }

    #[test]
    fn cut_off_log_is_explained() {
        let failed = |code| {
            let cause = rusqlite::ffi::Error::new(code);
            translate_shared(&rusqlite::Error::SqliteFailure(cause, None))
        };
        let e = failed(rusqlite::ffi::SQLITE_IOERR_SHORT_READ);
        assert!(e.to_string().contains("the log (-wal)"), "{e}");
        assert_eq!(e.hint(), Some(DAMAGED_HINT));
        assert_eq!(failed(rusqlite::ffi::SQLITE_IOERR_WRITE).hint(), None);
    }
}
