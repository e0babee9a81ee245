//! Errors of the gRPC driver, translated to Windlass errors. No driver type leaves this crate.

use std::error::Error as StdError;
use std::fmt;

use tonic::{Code, Status};

use windlass_core::error::{Error, ErrorKind};

/// What it means for a request that no reply arrives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LostReply {
    /// Nothing that matters: the request reads, or what it writes expires unused.
    Harmless,
    /// The request may have been applied.
    OutcomeUnknown,
}

/// The Windlass error for a failed call.
pub(super) fn from_status(status: Status, lost_reply: LostReply) -> Error {
    if let Some(error) = rejection(&status) {
        return error;
    }
    let message = status.message().to_owned();
    let error = if was_not_sent(&status) {
        unreachable(message)
    } else if may_have_been_applied(&status) {
        match lost_reply {
            LostReply::Harmless => unreachable(message),
            LostReply::OutcomeUnknown => Error::new(
                ErrorKind::OutcomeUnknown,
                "call",
                format!("no definite reply; the request may have been applied ({message})"),
            ),
        }
    } else {
        let message = format!("etcd returned an error: {message}");
        Error::new(ErrorKind::Store, "call", message)
    };
    error.with_source(status)
}

pub(super) fn unreachable(reason: impl fmt::Display) -> Error {
    Error::new(
        ErrorKind::Unreachable,
        "call",
        format!("no etcd member is usable: {reason}"),
    )
    .with_hint(
        "check that the members run, that a majority of them reach each other, and that hosts, ports \
         and TLS (etcds://) in the URL are right",
    )
}

/// The error for a request that the server refused before applying anything.
pub(super) fn rejection(status: &Status) -> Option<Error> {
    if is_connection_failure(status) {
        return None;
    }
    let message = status.message();
    let (kind, message, hint) = if message.contains("no leader")
        || message.contains("not ready")
        || message.contains("not supported for learner")
    {
        return Some(unreachable(message));
    } else if message.contains("too many requests") {
        // The server has not started on it: it lags behind with requests it accepted before.
        (
            ErrorKind::Unreachable,
            format!("the server is overloaded: {message}"),
            "retry later; if this happens often, the server's disk is too slow or it has too many clients",
        )
    } else if message.contains("authentication failed")
        || message.contains("user name is empty")
        || message.contains("permission denied")
        || message.contains("authentication is not enabled")
        || matches!(
            status.code(),
            Code::PermissionDenied | Code::Unauthenticated
        )
    {
        (
            ErrorKind::AccessDenied,
            format!("etcd denied access: {message}"),
            "check user and password in the URL (etcd://USER:PASSWORD@HOST), and that the user may \
             read and write the keys NAME/ and windlass:",
        )
    } else if message.contains("database space exceeded") {
        (
            ErrorKind::Store,
            format!("the server's database space is used up: {message}"),
            "etcd accepts no more writes, but locks can be released; compact it (etcdctl compact), \
             defragment each member (etcdctl defrag), then disarm the alarm (etcdctl alarm disarm); \
             windlass doctor shows how much space is used",
        )
    } else if message.contains("too many operations") {
        (
            ErrorKind::Store,
            format!("the transaction exceeds the server's limit: {message}"),
            "start etcd with --max-txn-ops=128 (the default) or more",
        )
    } else if message.contains("request is too large") {
        (
            ErrorKind::Store,
            format!("the request exceeds the server's limit: {message}"),
            "shorten the note or the value, or start etcd with a higher --max-request-bytes",
        )
    } else if message.contains("lease not found") {
        let error = Error::new(ErrorKind::Unreachable, "call", "the claim's lease is gone")
            .with_hint("retry: the next attempt uses a new lease");
        return Some(error.with_source(LeaseNotFound));
    } else {
        return None;
    };
    Some(Error::new(kind, "call", message).with_hint(hint))
}

/// The cause of an error for a request that names a lease which has expired or was revoked.
#[derive(Debug)]
struct LeaseNotFound;

impl fmt::Display for LeaseNotFound {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("it expired or was revoked before the request arrived")
    }
}

impl StdError for LeaseNotFound {}

pub(super) fn is_lease_not_found(e: &Error) -> bool {
    e.source().is_some_and(|cause| cause.is::<LeaseNotFound>())
}

/// Whether the read failed because its revision has been compacted away.
pub(super) fn is_compacted(e: &Error) -> bool {
    let status = e.source().and_then(|cause| cause.downcast_ref::<Status>());
    status.is_some_and(|status| status.code() == Code::OutOfRange)
}

fn may_have_been_applied(status: &Status) -> bool {
    let by_code = matches!(
        status.code(),
        Code::Unavailable
            | Code::DeadlineExceeded
            | Code::Cancelled
            | Code::Unknown
            | Code::Internal
            | Code::Aborted
    );
    by_code || is_connection_failure(status)
}

/// Whether another member may succeed where this one failed.
pub(super) fn is_member_failure(status: &Status) -> bool {
    let by_code = matches!(
        status.code(),
        Code::Unavailable
            | Code::DeadlineExceeded
            | Code::Unknown
            | Code::Cancelled
            | Code::Internal
    );
    by_code
        || is_connection_failure(status)
        || status.message().contains("not supported for learner")
}

/// Whether the server itself denied permission.
pub(super) fn is_permission_denied(status: &Status) -> bool {
    status.code() == Code::PermissionDenied && !is_connection_failure(status)
}

/// Whether the status describes the end of the connection, not a reply: a reply has no cause. HTTP/2 error
/// codes map to gRPC codes that look like replies of the server.
fn is_connection_failure(status: &Status) -> bool {
    StdError::source(status).is_some()
}

/// Whether a new login helps: tokens expire, and end with the member that issued them.
pub(super) fn is_stale_token(status: &Status) -> bool {
    let message = status.message();
    status.code() == Code::Unauthenticated && message.contains("invalid auth token")
        || message.contains("revision of auth store is old")
}

/// Whether there was no connection to send the request over.
fn was_not_sent(status: &Status) -> bool {
    use std::io::ErrorKind::{ConnectionRefused, HostUnreachable, NetworkUnreachable, NotFound};
    let mut cause = StdError::source(status);
    while let Some(e) = cause {
        if let Some(e) = e.downcast_ref::<std::io::Error>() {
            let not_sent = [
                ConnectionRefused,
                HostUnreachable,
                NetworkUnreachable,
                NotFound,
            ];
            return not_sent.contains(&e.kind());
        }
        cause = e.source();
    }
    false
}

/// Marks an error that came after a write: whatever its kind, that write must be undone.
pub(super) fn after_write(e: Error) -> Error {
    e.with_part_done(true)
}

/// A reply of the wrong shape.
pub(super) fn malformed_reply(what: impl fmt::Display) -> Error {
    let message = format!("etcd's reply is malformed: {what}");
    Error::new(ErrorKind::Store, "call", message)
}

/// A key under a lock's name that no lock client wrote.
pub(super) fn foreign_key(key: &[u8]) -> Error {
    let key = String::from_utf8_lossy(key);
    Error::new(
        ErrorKind::WrongType,
        "call",
        format!("the key {key:?} under this name was not written by a lock"),
    )
    .with_hint("another program stores data there; choose another name, or a namespace")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn server_errors_are_retryable_or_have_a_hint() {
        use Code::{
            DataLoss, FailedPrecondition, InvalidArgument, NotFound, PermissionDenied,
            ResourceExhausted, Unauthenticated, Unavailable,
        };
        use ErrorKind::{AccessDenied, OutcomeUnknown, Store, Unreachable};
        // From etcd's list of errors, with the kind for a request that writes.
        for (code, message, kind, member_failure) in [
            (ResourceExhausted, "too many requests", Unreachable, false),
            (Unavailable, "leader changed", OutcomeUnknown, true),
            (Unavailable, "request timed out", OutcomeUnknown, true),
            (
                Unavailable,
                "request timed out, possibly due to previous leader failure",
                OutcomeUnknown,
                true,
            ),
            (Unavailable, "server stopped", OutcomeUnknown, true),
            (Unavailable, "no leader", Unreachable, true),
            (
                Unavailable,
                "rpc not supported for learner",
                Unreachable,
                true,
            ),
            (
                FailedPrecondition,
                "rpc not supported for learner",
                Unreachable,
                true,
            ),
            (Unauthenticated, "invalid auth token", AccessDenied, false),
            (PermissionDenied, "permission denied", AccessDenied, false),
            (
                ResourceExhausted,
                "mvcc: database space exceeded",
                Store,
                false,
            ),
            (
                InvalidArgument,
                "too many operations in txn request",
                Store,
                false,
            ),
            (InvalidArgument, "request is too large", Store, false),
            (NotFound, "requested lease not found", Unreachable, false),
            (DataLoss, "corrupt cluster", Store, false),
        ] {
            let status = Status::new(code, format!("etcdserver: {message}"));
            assert_eq!(is_member_failure(&status), member_failure, "{message}");
            let e = from_status(status, LostReply::OutcomeUnknown);
            assert_eq!(e.kind(), kind, "{message}: {e}");
            let is_transient = matches!(kind, Unreachable | OutcomeUnknown);
            assert_eq!(e.is_retryable(), is_transient, "{message}: {e}");
        }
        let full = Status::new(
            ResourceExhausted,
            "etcdserver: mvcc: database space exceeded",
        );
        let hint = from_status(full, LostReply::OutcomeUnknown);
        assert!(
            hint.hint()
                .is_some_and(|hint| hint.contains("alarm disarm"))
        );
    }

    #[test]
    fn end_of_a_connection_is_not_a_reply() {
        let cause = std::io::Error::other("too_many_pings");
        let mut status = Status::from_error(Box::new(cause));
        assert!(is_member_failure(&status));
        let e = from_status(status.clone(), LostReply::OutcomeUnknown);
        assert_eq!(e.kind(), ErrorKind::OutcomeUnknown, "{e}");
        status = Status::resource_exhausted("grpc: received message larger than max");
        assert_eq!(
            from_status(status, LostReply::OutcomeUnknown).kind(),
            ErrorKind::Store
        );
    }

    #[test]
    fn connection_failure_with_a_permission_code_is_not_a_denial() {
        // HTTP/2's INADEQUATE_SECURITY maps to this code.
        for code in [Code::PermissionDenied, Code::Unauthenticated] {
            let mut status = Status::new(code, "h2 protocol error: permission denied");
            assert_eq!(
                is_permission_denied(&status),
                code == Code::PermissionDenied
            );
            assert!(rejection(&status).is_some());
            let cause = std::io::Error::other("inadequate security");
            status.set_source(std::sync::Arc::new(cause));
            assert!(is_member_failure(&status) && !is_permission_denied(&status));
            assert!(rejection(&status).is_none());
            let e = from_status(status, LostReply::OutcomeUnknown);
            assert_eq!(e.kind(), ErrorKind::OutcomeUnknown, "{e}");
        }
    }

    #[test]
    fn only_stale_tokens_need_a_new_login() {
        let stale = |code, message: &str| is_stale_token(&Status::new(code, message));
        assert!(stale(
            Code::Unauthenticated,
            "etcdserver: invalid auth token"
        ));
        assert!(stale(
            Code::InvalidArgument,
            "etcdserver: revision of auth store is old"
        ));
        assert!(!stale(
            Code::PermissionDenied,
            "etcdserver: permission denied"
        ));
    }
}
