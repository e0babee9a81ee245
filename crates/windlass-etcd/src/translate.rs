//! From the driver's errors to ours: no type of the driver goes further up.

use tonic::{Code, Status};

use super::link::Changes;
use windlass_core::error::{Error, ErrorKind};

/// What a failed call means. What went wrong on the way, or while the cluster had no leader, may have
/// happened all the same if it `changes` something.
pub(super) fn translate(status: Status, changes: Changes) -> Error {
    if let Some(error) = refused(&status) {
        return error;
    }
    let told = status.message().to_owned();
    let error = if is_unsent(&status) {
        unreachable(told)
    } else if is_uncertain(&status) {
        match changes {
            Changes::Nothing => unreachable(told),
            Changes::Something => Error::new(
                ErrorKind::OutcomeUnknown,
                "call",
                format!("no certain answer came; it may have happened ({told})"),
            ),
        }
    } else {
        let message = format!("the server answered with an error: {told}");
        Error::new(ErrorKind::Store, "call", message)
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
    if is_of_the_connection(status) {
        return None;
    }
    let told = status.message();
    let (kind, message, hint) = if told.contains("no leader")
        || told.contains("not ready")
        || told.contains("not supported for learner")
    {
        return Some(unreachable(told.to_owned()));
    } else if told.contains("too many requests") {
        // It has not even begun with it: it lags behind with what it has accepted before.
        (
            ErrorKind::Unreachable,
            format!("the server has more to do than it can: {told}"),
            "ask again later; if that comes often, its disk is too slow, or it has too many clients",
        )
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
            format!("the server's space is used up: {told}"),
            "it takes no more writes, but locks can be released; compact it (etcdctl compact), defragment \
             each member (etcdctl defrag), then disarm the alarm (etcdctl alarm disarm); windlass doctor \
             shows how much is used",
        )
    } else if told.contains("too many operations") {
        (
            ErrorKind::Store,
            format!("the server does not take as much at once: {told}"),
            "start it with --max-txn-ops=128, as it is unless told otherwise, or more",
        )
    } else if told.contains("request is too large") {
        (
            ErrorKind::Store,
            format!("the server does not take as much at once: {told}"),
            "make the note or the value shorter, or start it with a higher --max-request-bytes",
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

/// Whether it may have been carried out although it failed.
fn is_uncertain(status: &Status) -> bool {
    let by_code = matches!(
        status.code(),
        Code::Unavailable
            | Code::DeadlineExceeded
            | Code::Cancelled
            | Code::Unknown
            | Code::Internal
            | Code::Aborted
    );
    by_code || is_of_the_connection(status)
}

/// Whether that is about a member, so that another one may do better.
pub(super) fn is_about_the_member(status: &Status) -> bool {
    let by_code = matches!(
        status.code(),
        Code::Unavailable
            | Code::DeadlineExceeded
            | Code::Unknown
            | Code::Cancelled
            | Code::Internal
    );
    by_code
        || is_of_the_connection(status)
        || status.message().contains("not supported for learner")
}

/// Whether a server has said that this user may not.
pub(super) fn is_denied(status: &Status) -> bool {
    status.code() == Code::PermissionDenied && !is_of_the_connection(status)
}

/// Whether the server has not said that, but what came of the connection: what a server says has no cause. A
/// peer that wants to be left alone, say, ends it with a code that sounds like an answer.
fn is_of_the_connection(status: &Status) -> bool {
    std::error::Error::source(status).is_some()
}

/// Whether logging in again helps: tokens end, and do not outlive their member.
pub(super) fn is_stale_login(status: &Status) -> bool {
    let told = status.message();
    status.code() == Code::Unauthenticated && told.contains("invalid auth token")
        || told.contains("revision of auth store is old")
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

/// A failure after something was written: whatever its kind, that must be taken back.
pub(super) fn after_a_write(e: Error) -> Error {
    e.with_part_done(true)
}

/// An answer that is not of the shape it should have.
pub(super) fn strange_answer(what: &str) -> Error {
    Error::new(
        ErrorKind::Store,
        "call",
        format!("the server's answer makes no sense: {what}"),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_etcd_says_is_asked_again_or_told_with_what_to_do() {
        use Code::{
            DataLoss, FailedPrecondition, InvalidArgument, NotFound, PermissionDenied,
            ResourceExhausted, Unauthenticated, Unavailable,
        };
        use ErrorKind::{AccessDenied, OutcomeUnknown, Store, Unreachable};
        // As etcd's own list of errors has them, and what they come to if something was to be changed.
        for (code, told, kind, about_the_member) in [
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
            let status = Status::new(code, format!("etcdserver: {told}"));
            assert_eq!(is_about_the_member(&status), about_the_member, "{told}");
            let e = translate(status, Changes::Something);
            assert_eq!(e.kind(), kind, "{told}: {e}");
            let is_transient = matches!(kind, Unreachable | OutcomeUnknown);
            assert_eq!(e.is_retryable(), is_transient, "{told}: {e}");
        }
        let full = Status::new(
            ResourceExhausted,
            "etcdserver: mvcc: database space exceeded",
        );
        let hint = translate(full, Changes::Something);
        assert!(
            hint.hint()
                .is_some_and(|hint| hint.contains("alarm disarm"))
        );
    }

    #[test]
    fn what_ends_a_connection_is_no_answer() {
        let cause = std::io::Error::other("too_many_pings");
        let mut status = Status::from_error(Box::new(cause));
        assert!(is_about_the_member(&status));
        let e = translate(status.clone(), Changes::Something);
        assert_eq!(e.kind(), ErrorKind::OutcomeUnknown, "{e}");
        status = Status::resource_exhausted("grpc: received message larger than max");
        assert_eq!(
            translate(status, Changes::Something).kind(),
            ErrorKind::Store
        );
    }

    #[test]
    fn a_connection_that_ended_with_the_code_of_a_refusal_was_none() {
        // What HTTP/2 calls "inadequate security" comes with this code.
        for code in [Code::PermissionDenied, Code::Unauthenticated] {
            let mut status = Status::new(code, "h2 protocol error: permission denied");
            assert_eq!(is_denied(&status), code == Code::PermissionDenied);
            assert!(refused(&status).is_some());
            let cause = std::io::Error::other("inadequate security");
            status.set_source(std::sync::Arc::new(cause));
            assert!(is_about_the_member(&status) && !is_denied(&status));
            assert!(refused(&status).is_none());
            let e = translate(status, Changes::Something);
            assert_eq!(e.kind(), ErrorKind::OutcomeUnknown, "{e}");
        }
    }

    #[test]
    fn logging_in_again_helps_against_old_tokens_alone() {
        let stale = |code, told: &str| is_stale_login(&Status::new(code, told));
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
