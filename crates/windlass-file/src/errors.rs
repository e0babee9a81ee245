//! What SQLite's errors mean to a caller.

use std::path::Path;

use rusqlite::ErrorCode;

use super::connection::BUSY_TIMEOUT;
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
            "choose another path: this file belongs to another program",
        ),
        Some(ErrorCode::ReadOnly | ErrorCode::CannotOpen | ErrorCode::PermissionDenied) => (
            ErrorKind::AccessDenied,
            format!("{shown} cannot be written"),
            "the folder must be writable too: SQLite keeps two more files beside the database",
        ),
        Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked) => (
            ErrorKind::Unreachable,
            format!("{shown} was locked by another process for {BUSY_TIMEOUT:?}"),
            "does a tool have the database open in a transaction?",
        ),
        _ => return translate(e).with_operation("connect"),
    };
    Error::new(kind, "connect", message)
        .with_hint(hint)
        .with_source(e)
}

/// Why a transaction failed: nothing of it happened.
pub(super) fn translate(e: rusqlite::Error) -> Error {
    let (kind, message) = describe(&e);
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
