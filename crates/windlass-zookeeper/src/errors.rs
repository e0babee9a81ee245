//! Errors of the ZooKeeper client as Windlass errors.

use zookeeper_client::Error as ZkError;

use windlass_core::error::{Error, ErrorKind};

/// Whether the connection broke before the reply arrived. The client reports an I/O error as `Custom`.
pub(super) fn is_connection_loss(error: &ZkError) -> bool {
    matches!(error, ZkError::ConnectionLoss | ZkError::Custom(_))
}

/// Maps an error of the client or the server.
pub(super) fn from_client(error: ZkError) -> Error {
    let new = |kind, message: &str| Error::new(kind, "use the store", message);
    match error {
        ZkError::ConnectionLoss | ZkError::Custom(_) | ZkError::Timeout => new(
            ErrorKind::OutcomeUnknown,
            "the connection broke before the reply arrived; the request may have been applied",
        ),
        ZkError::SessionExpired | ZkError::SessionMoved => new(
            ErrorKind::OutcomeUnknown,
            "the session ended before the reply arrived",
        ),
        ZkError::ClientClosed | ZkError::NoHosts => {
            new(ErrorKind::Unreachable, "no server can be reached")
        }
        ZkError::NoAuth => new(
            ErrorKind::AccessDenied,
            "the node's ACL does not allow this client",
        )
        .with_hint("connect as the user that created the node: zookeeper://user:password@host"),
        ZkError::AuthFailed => new(
            ErrorKind::AccessDenied,
            "the server rejects the credentials",
        )
        .with_hint("check user and password, and which authentication the server requires"),
        ZkError::NotReadOnly => new(
            ErrorKind::Unreachable,
            "this server is cut off from the ensemble and answers reads only",
        ),
        ZkError::NoChildrenForEphemerals => new(
            ErrorKind::WrongType,
            "a part of the path is an ephemeral node, which cannot have children",
        )
        .with_hint("choose another name, or another chroot"),
        ZkError::QuotaExceeded => new(ErrorKind::Store, "the quota of the path is exceeded"),
        ZkError::Throttled => new(ErrorKind::Unreachable, "the server is too busy to answer"),
        other => new(ErrorKind::Store, &other.to_string()),
    }
}

/// Marks an error of a request that had already written something: the caller must undo the write,
/// though the failure of the last step alone would mean that nothing was written.
pub(super) fn after_write(error: Error) -> Error {
    match error.kind() {
        ErrorKind::Unreachable => {
            let message = "the connection was lost after the first write; the outcome is unknown";
            Error::new(ErrorKind::OutcomeUnknown, "use the store", message).with_source(error)
        }
        _ => error.with_part_done(true),
    }
}
