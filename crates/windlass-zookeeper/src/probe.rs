//! Which servers can be reached, and why not.

use std::io::ErrorKind::{BrokenPipe, ConnectionReset};
use std::time::Duration;

use tokio::net::TcpStream;

use super::address::Address;
use windlass_core::error::{Error, ErrorKind, Result};

/// The servers that take connections. The client tries one after the other, and would spend all the
/// time there is on one that does not answer.
pub(super) async fn reachable(address: &Address, limit: Duration) -> Result<Vec<String>> {
    let tries: Vec<_> = address
        .hosts
        .iter()
        .cloned()
        .map(|host| {
            tokio::spawn(async move {
                let outcome = tokio::time::timeout(limit, TcpStream::connect(&host)).await;
                let problem = match outcome {
                    Ok(Ok(_)) => None,
                    // It took the connection, and closed it at once.
                    Ok(Err(e)) if matches!(e.kind(), BrokenPipe | ConnectionReset) => None,
                    Ok(Err(error)) => Some(format!("{host}: {error}")),
                    Err(_) => Some(format!("{host}: no answer within {limit:?}")),
                };
                (host, problem)
            })
        })
        .collect();
    let (mut reached, mut problems) = (Vec::new(), Vec::new());
    for attempt in tries {
        match attempt.await {
            Ok((host, None)) => reached.push(host),
            Ok((_, Some(problem))) => problems.push(problem),
            Err(error) => problems.push(error.to_string()),
        }
    }
    if reached.is_empty() {
        return Err(
            Error::new(ErrorKind::Unreachable, "connect", problems.join("; "))
                .with_hint("is ZooKeeper running there?"),
        );
    }
    Ok(reached)
}

/// They take connections, but do not open a session.
pub(super) fn no_session(hosts: &[String], reason: &str) -> Error {
    let hosts = hosts.join(", ");
    Error::new(
        ErrorKind::Unreachable,
        "connect",
        format!("{hosts} opens no session: {reason}"),
    )
    .with_hint(
        "is it ZooKeeper, with a majority of its servers up, room for another connection \
         (maxClientCnxns), and not a port that expects TLS?",
    )
}
