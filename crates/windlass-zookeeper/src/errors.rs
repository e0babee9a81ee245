//! From the client's errors to ours.

use zookeeper_client::Error as ZkError;

use windlass_core::error::{Error, ErrorKind};

/// Whether the connection broke before the answer came. The client says so in several ways: what the
/// system told it is one of them.
pub(super) fn is_lost(error: &ZkError) -> bool {
    matches!(error, ZkError::ConnectionLoss | ZkError::Custom(_))
}

/// Says in our words what the client or the server said.
pub(super) fn translate(error: ZkError) -> Error {
    let new = |kind, message: &str| Error::new(kind, "use the store", message);
    match error {
        ZkError::ConnectionLoss | ZkError::Custom(_) | ZkError::Timeout => new(
            ErrorKind::OutcomeUnknown,
            "the connection broke before the answer came; it may have happened",
        ),
        ZkError::SessionExpired | ZkError::SessionMoved => new(
            ErrorKind::OutcomeUnknown,
            "the session ended before the answer came",
        ),
        ZkError::ClientClosed | ZkError::NoHosts => {
            new(ErrorKind::Unreachable, "no server can be reached")
        }
        ZkError::NoAuth => new(
            ErrorKind::AccessDenied,
            "the server refuses: the node's access list does not name us",
        )
        .with_hint(
            "connect with the user and password that created it: zookeeper://user:password@host",
        ),
        ZkError::AuthFailed => new(ErrorKind::AccessDenied, "the server refuses who we are")
            .with_hint("check user and password, and which authentication the server wants"),
        ZkError::NotReadOnly => new(
            ErrorKind::Unreachable,
            "this server is cut off from the others and answers reads only",
        ),
        ZkError::NoChildrenForEphemerals => new(
            ErrorKind::WrongType,
            "a part of its path is an ephemeral node, which can have no children",
        )
        .with_hint("choose another name, or another chroot"),
        ZkError::QuotaExceeded => new(ErrorKind::Store, "the quota of the path is exceeded"),
        ZkError::Throttled => new(ErrorKind::Unreachable, "the server is too busy to answer"),
        other => new(ErrorKind::Store, &other.to_string()),
    }
}

/// What failed came after something had been written: whoever asked must undo that, though the failure
/// itself would say that nothing was done.
pub(super) fn after_writing(error: Error) -> Error {
    match error.kind() {
        ErrorKind::Unreachable => {
            let message = "it was begun, and what became of it is not known";
            Error::new(ErrorKind::OutcomeUnknown, "use the store", message).with_source(error)
        }
        _ => error.with_part_done(true),
    }
}
