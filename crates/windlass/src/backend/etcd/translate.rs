//! From the driver's errors to ours: no type of the driver goes further up.

use tonic::{Code, Status};

use super::link::Changes;
use crate::error::{Error, ErrorKind};

/// What a failed call means. What went wrong on the way, or while the cluster had no leader, may have
/// happened all the same if it `changes` something.
pub(super) fn translate(status: Status, changes: Changes) -> Error {
    if let Some(error) = refused(&status) {
        return error;
    }
    let told = status.message().to_owned();
    let error = match status.code() {
        _ if is_unsent(&status) => unreachable(told.clone()),
        Code::Unavailable
        | Code::DeadlineExceeded
        | Code::Cancelled
        | Code::Unknown
        | Code::Internal
        | Code::Aborted => match changes {
            Changes::Nothing => unreachable(told.clone()),
            Changes::Something => Error::new(
                ErrorKind::OutcomeUnknown,
                "call",
                format!("no certain answer came; it may have happened ({told})"),
            ),
        },
        _ => Error::new(
            ErrorKind::Store,
            "call",
            format!("the server answered with an error: {told}"),
        ),
    };
    error.with_source(status)
}

pub(super) fn unreachable(why: String) -> Error {
    Error::new(
        ErrorKind::Unreachable,
        "call",
        format!("no member of the cluster can be used now: {why}"),
    )
    .with_hint("are the members running, do most of them reach each other, and are hosts, ports and TLS (etcds://) right?")
}

/// What the server's own words mean, where it refused before doing anything.
pub(super) fn refused(status: &Status) -> Option<Error> {
    let told = status.message();
    let (kind, message, hint) = if told.contains("no leader") || told.contains("not ready") {
        return Some(unreachable(told.to_owned()));
    } else if told.contains("authentication failed")
        || told.contains("user name is empty")
        || told.contains("permission denied")
        || told.contains("authentication is not enabled")
        || matches!(
            status.code(),
            Code::PermissionDenied | Code::Unauthenticated
        )
    {
        (
            ErrorKind::AccessDenied,
            format!("the server refused access: {told}"),
            "check user and password in the URL (etcd://USER:PASSWORD@HOST), and that the user may \
             read and write the keys NAME/ and windlass:",
        )
    } else if told.contains("database space exceeded") {
        (
            ErrorKind::Store,
            "the server's space is used up".to_owned(),
            "compact and defragment it, then disarm the alarm; see windlass doctor",
        )
    } else if told.contains("lease not found") {
        (ErrorKind::Unreachable, LEASE_GONE.to_owned(), "ask again")
    } else {
        return None;
    };
    Some(Error::new(kind, "call", message).with_hint(hint))
}

const LEASE_GONE: &str = "the lease has ended in the meantime";

/// Whether it failed because the lease was not there any more.
pub(super) fn is_without_lease(e: &Error) -> bool {
    e.kind() == ErrorKind::Unreachable && e.to_string().contains(LEASE_GONE)
}

/// Whether there was not even a connection to send it over.
fn is_unsent(status: &Status) -> bool {
    use std::io::ErrorKind::{ConnectionRefused, HostUnreachable, NetworkUnreachable, NotFound};
    let mut cause = std::error::Error::source(status);
    while let Some(e) = cause {
        if let Some(e) = e.downcast_ref::<std::io::Error>() {
            let unsent = [
                ConnectionRefused,
                HostUnreachable,
                NetworkUnreachable,
                NotFound,
            ];
            return unsent.contains(&e.kind());
        }
        cause = e.source();
    }
    false
}

/// An answer that is not of the shape it should have.
pub(super) fn strange_answer(what: &str) -> Error {
    Error::new(
        ErrorKind::Store,
        "call",
        format!("the server's answer makes no sense: {what}"),
    )
}
