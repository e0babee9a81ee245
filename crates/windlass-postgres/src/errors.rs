//! Errors of the driver, translated to Windlass errors. No driver type leaves this crate.

use tokio_postgres::error::SqlState;

use windlass_core::error::{Error, ErrorKind};

/// What it means for a statement that no reply arrives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LostReply {
    /// Nothing: the statement reads.
    Harmless,
    /// The statement may have been executed.
    OutcomeUnknown,
}

const PERMISSIONS: &str = "grant USAGE on the schema to the role (and CREATE on the database to the \
                           role that creates the schema), or let an administrator run the output of \
                           windlass postgres migrations";

/// The error for a statement that was sent.
pub(super) fn from_reply(e: tokio_postgres::Error, lost_reply: LostReply) -> Error {
    match rejection(&e) {
        Some(error) => error,
        None => no_reply(describe(&e), lost_reply),
    }
}

/// The error for a statement whose connection ended, or took too long.
pub(super) fn no_reply(reason: impl Into<String>, lost_reply: LostReply) -> Error {
    let reason = reason.into();
    match lost_reply {
        LostReply::Harmless => unreachable(reason),
        LostReply::OutcomeUnknown => Error::new(
            ErrorKind::OutcomeUnknown,
            "call",
            format!("no definite reply; the statement may have been executed ({reason})"),
        ),
    }
}

/// The error for a connection that could not be opened.
pub(super) fn not_connected(e: &tokio_postgres::Error) -> Error {
    let Some(db) = e.as_db_error() else {
        return unreachable(describe(e));
    };
    let message = db.message().to_owned();
    match db.code() {
        code if *code == SqlState::INVALID_PASSWORD
            || *code == SqlState::INVALID_AUTHORIZATION_SPECIFICATION =>
        {
            let hint = "check user and password in the URL (postgres://USER:PASSWORD@HOST/DATABASE), \
                        and the server's pg_hba.conf";
            Error::new(ErrorKind::AccessDenied, "connect", denied(&message)).with_hint(hint)
        }
        code if *code == SqlState::INSUFFICIENT_PRIVILEGE => {
            let hint = "grant CONNECT on the database to the role";
            Error::new(ErrorKind::AccessDenied, "connect", denied(&message)).with_hint(hint)
        }
        code if *code == SqlState::INVALID_CATALOG_NAME => {
            let hint = "create the database, or name another one in the URL";
            Error::new(ErrorKind::Store, "connect", message).with_hint(hint)
        }
        code if *code == SqlState::TOO_MANY_CONNECTIONS => {
            let hint = "raise max_connections, close idle connections, use a pooler, or lower \
                        ?connections= in the URL";
            Error::new(ErrorKind::Unreachable, "connect", message).with_hint(hint)
        }
        _ => unreachable(message),
    }
}

pub(super) fn unreachable(reason: impl Into<String>) -> Error {
    let message = format!("the server cannot be used: {}", reason.into());
    Error::new(ErrorKind::Unreachable, "call", message).with_hint(
        "check that the server runs and that host, port and database in the URL are right",
    )
}

fn denied(message: &str) -> String {
    format!("PostgreSQL denied access: {message}")
}

/// The error for a statement that the server refused or rolled back: it has changed nothing.
fn rejection(e: &tokio_postgres::Error) -> Option<Error> {
    let db = e.as_db_error()?;
    let (code, message) = (db.code(), db.message());
    let is = |codes: &[&SqlState]| codes.contains(&code);
    if code.code().starts_with("08")
        || is(&[
            &SqlState::ADMIN_SHUTDOWN,
            &SqlState::CRASH_SHUTDOWN,
            &SqlState::CANNOT_CONNECT_NOW,
        ])
    {
        // It ends the session, perhaps between the commit and the reply.
        return None;
    }
    let refused =
        |kind, message: String, hint: &str| Some(Error::new(kind, "call", message).with_hint(hint));
    if is(&[&SqlState::QUERY_CANCELED]) {
        return refused(
            ErrorKind::Unreachable,
            format!("the statement was cancelled and rolled back: {message}"),
            "statement_timeout of the role or database is too short, or an administrator cancelled it",
        );
    }
    if is(&[&SqlState::LOCK_NOT_AVAILABLE]) {
        return refused(
            ErrorKind::Unreachable,
            format!("the statement was rolled back: {message}"),
            "lock_timeout of the role or database is too short, or a transaction holds a row of the \
             schema for a long time",
        );
    }
    if is(&[
        &SqlState::T_R_SERIALIZATION_FAILURE,
        &SqlState::T_R_DEADLOCK_DETECTED,
    ]) {
        return refused(
            ErrorKind::Unreachable,
            format!("the statement was rolled back: {message}"),
            "retry; the role's default_transaction_isolation should be read committed",
        );
    }
    if is(&[&SqlState::READ_ONLY_SQL_TRANSACTION]) {
        return refused(
            ErrorKind::Unreachable,
            format!("the server is read-only: {message}"),
            "name the primary in the URL; with several hosts, add target_session_attrs=read-write",
        );
    }
    if is(&[&SqlState::INSUFFICIENT_PRIVILEGE]) {
        return refused(ErrorKind::AccessDenied, denied(message), PERMISSIONS);
    }
    if is(&[&SqlState::SEQUENCE_GENERATOR_LIMIT_EXCEEDED]) {
        return refused(
            ErrorKind::Store,
            "the store has issued its highest fence: none above it is granted".to_owned(),
            "use another schema (?schema=), and reset the gates that compare fences",
        );
    }
    if is_missing_object(code) {
        return refused(
            ErrorKind::Store,
            format!("the schema of the store is incomplete: {message}"),
            "it may have been dropped while clients were connected: connect again to create it",
        );
    }
    if code.code().starts_with("53") {
        return refused(
            ErrorKind::Store,
            format!("the server lacks a resource: {message}"),
            "free disk space or memory of the server",
        );
    }
    let message = format!(
        "PostgreSQL returned an error: {message} (SQLSTATE {})",
        code.code()
    );
    Some(Error::new(ErrorKind::Store, "call", message))
}

/// Whether a schema, table or function does not exist.
pub(super) fn is_missing_object(code: &SqlState) -> bool {
    [
        SqlState::INVALID_SCHEMA_NAME,
        SqlState::UNDEFINED_TABLE,
        SqlState::UNDEFINED_FUNCTION,
        SqlState::UNDEFINED_OBJECT,
    ]
    .contains(code)
}

/// Whether the server refused the whole batch and changed nothing.
pub(super) fn is_definite(e: &tokio_postgres::Error) -> bool {
    rejection(e).is_some()
}

/// Whether another server should be tried: this one takes no writes.
pub(super) fn is_read_only(e: &tokio_postgres::Error) -> bool {
    e.code() == Some(&SqlState::READ_ONLY_SQL_TRANSACTION)
}

/// A reply of the wrong shape.
pub(super) fn malformed_reply(what: impl std::fmt::Display) -> Error {
    let message = format!("the server's reply is malformed: {what}");
    Error::new(ErrorKind::Store, "call", message)
}

/// An error's message, followed by those of its causes.
fn describe(e: &(dyn std::error::Error + 'static)) -> String {
    let mut messages = vec![e.to_string()];
    let mut cause = e.source();
    while let Some(e) = cause {
        let next = e.to_string();
        if !messages.iter().any(|said| said.contains(&next)) {
            messages.push(next);
        }
        cause = e.source();
    }
    messages.join(": ")
}
