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
        let (message, hint) = explain_lock(path);
        return Error::new(kind, "call", message)
            .with_hint(hint)
            .with_source(e);
    }
    let error = Error::new(kind, "call", message);
    match is_damaged(&e) {
        true => error.with_hint(DAMAGED_HINT).with_source(e),
        false => error.with_source(e),
    }
}

pub(super) fn describe(e: &rusqlite::Error) -> (ErrorKind, &'static str) {
    match e.sqlite_error_code() {
        Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked) => (
            ErrorKind::Unreachable,
            "the database is locked by another process",
        ),
        Some(ErrorCode::DiskFull) => (ErrorKind::Store, "the disk is full"),
        _ if is_damaged(e) => (ErrorKind::Store, "the file is damaged"),
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
}
