//! Connecting to the ensemble, and finding out why that failed, which the client does not report.

use std::io::ErrorKind::{BrokenPipe, ConnectionReset};
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::time::{Instant, timeout_at};
use zookeeper_client::{Client, Connector, Error as ZkError};

use super::address::{EnsembleAddress, TlsPaths};
use super::errors::from_client;
use super::four_letter::four_letter_word;
#[cfg(feature = "tls")]
use super::tls;
use windlass_core::error::{Error, ErrorKind, Result};

/// The client passes over its list of servers again and again while it has no connection, and pauses
/// twice as long after each pass: in the end, as long as the outage has lasted. In a long list, which
/// names each server several times, passes take longer, and the pauses within a pass stay short. So an
/// outage of half a minute is followed by a pause of 2 s, a longer one by a third of its duration.
const LONG_LIST: usize = 24;
/// A session that is shorter than this ends before the pauses grow.
const LONG_SESSION: Duration = Duration::from_secs(10);

/// Opens a session of this timeout with this connector, within the call timeout.
pub(super) async fn connect(
    address: &EnsembleAddress,
    mut connector: Connector,
    session_timeout: Duration,
    call_timeout: Duration,
) -> Result<Client> {
    let deadline = Instant::now() + call_timeout * 9 / 10;
    // A single server is not probed: it may accept only one more connection.
    let hosts = match address.hosts.as_slice() {
        [_] => address.hosts.clone(),
        _ => reachable(address, call_timeout / 3).await?,
    };
    if let Some(digest) = &address.digest {
        connector = connector.with_auth("digest", digest.as_bytes());
    }
    let mut servers = connect_string(&hosts, address)?;
    if session_timeout >= LONG_SESSION {
        let repeated = vec![servers.as_str(); LONG_LIST.div_ceil(hosts.len())];
        servers = repeated.join(",");
    }
    if let Some(files) = &address.tls {
        connector = with_tls(connector, files)?;
    }
    match timeout_at(deadline, connector.connect(&servers)).await {
        Ok(Ok(client)) => Ok(client),
        Ok(Err(ZkError::AuthFailed)) => Err(from_client(ZkError::AuthFailed)),
        Ok(Err(error)) => {
            let cause = async {
                let reached = reachable(address, call_timeout / 2).await;
                reached.err().or(explain_failure(address, &hosts).await)
            };
            let cause = timeout_at(deadline, cause).await.ok().flatten();
            Err(cause.unwrap_or_else(|| no_session(&hosts, &error.to_string())))
        }
        Err(_) => Err(no_session(&hosts, "no reply in time")),
    }
}

/// The servers that answer; if none does in time, those that accept connections. The client tries one
/// server after the other, and would spend the whole call timeout on one that does not answer.
async fn reachable(address: &EnsembleAddress, limit: Duration) -> Result<Vec<String>> {
    let is_plain = address.tls.is_none();
    let probes: Vec<_> = address
        .hosts
        .iter()
        .cloned()
        .map(|host| {
            tokio::spawn(async move {
                let probed = probe(&host, is_plain, limit).await;
                (host, probed)
            })
        })
        .collect();
    let (mut answering, mut silent, mut problems) = (Vec::new(), Vec::new(), Vec::new());
    for probe in probes {
        match probe.await {
            Ok((host, Probed::Answers)) => answering.push(host),
            Ok((host, Probed::Silent)) => silent.push(host),
            Ok((host, Probed::Unreachable(problem))) => problems.push(format!("{host}: {problem}")),
            Err(error) => problems.push(error.to_string()),
        }
    }
    match (answering.is_empty(), silent.is_empty()) {
        (false, _) => Ok(answering),
        (true, false) => Ok(silent),
        (true, true) => Err(
            Error::new(ErrorKind::Unreachable, "connect", problems.join("; "))
                .with_hint("is ZooKeeper running there?"),
        ),
    }
}

/// What a server does with a new connection.
enum Probed {
    Answers,
    /// It accepts the connection, and no more: a process that is frozen, or very busy.
    Silent,
    Unreachable(String),
}

/// Connects to a server and, unless it expects TLS, asks for its status. Any reply will do, also that
/// the command is not allowed.
async fn probe(host: &str, is_plain: bool, limit: Duration) -> Probed {
    let deadline = Instant::now() + limit;
    let mut stream = match timeout_at(deadline, TcpStream::connect(host)).await {
        Ok(Ok(stream)) => stream,
        // It accepted the connection, and closed it at once.
        Ok(Err(e)) if matches!(e.kind(), BrokenPipe | ConnectionReset) => return Probed::Answers,
        Ok(Err(error)) => return Probed::Unreachable(error.to_string()),
        Err(_) => return Probed::Unreachable(format!("no answer within {limit:?}")),
    };
    if !is_plain {
        return Probed::Answers;
    }
    let exchange = async {
        stream.write_all(b"srvr").await?;
        stream.read(&mut [0]).await
    };
    match timeout_at(deadline, exchange).await {
        Ok(_) => Probed::Answers,
        Err(_) => Probed::Silent,
    }
}

/// The servers accept connections, but open no session.
fn no_session(hosts: &[String], reason: &str) -> Error {
    let hosts = hosts.join(", ");
    Error::new(
        ErrorKind::Unreachable,
        "connect",
        format!("{hosts} opens no session: {reason}"),
    )
    .with_hint(
        "check that it is a ZooKeeper server, that a majority of the servers is up, that the limit of \
         connections (maxClientCnxns) is not reached, and that the port does not expect TLS",
    )
}

/// The servers in the client's notation.
fn connect_string(hosts: &[String], address: &EnsembleAddress) -> Result<String> {
    if address.tls.is_none() {
        return Ok(hosts.join(","));
    }
    let secure = hosts.iter().map(|host| {
        // The client panics on a name that no certificate can contain.
        #[cfg(feature = "tls")]
        tls::server_name(host)?;
        Ok(format!("tcp+tls://{host}"))
    });
    Ok(secure.collect::<Result<Vec<_>>>()?.join(","))
}

/// Reads the files for each session, so that a new session uses new certificates.
#[cfg(feature = "tls")]
fn with_tls(connector: Connector, files: &TlsPaths) -> Result<Connector> {
    Ok(connector.with_tls(tls::TlsMaterial::read(files)?.client_options()?))
}

#[cfg(not(feature = "tls"))]
fn with_tls(_: Connector, _: &TlsPaths) -> Result<Connector> {
    Err(windlass_core::store::unsupported::not_in_this_build(
        "zookeeper+tls",
        "zookeeper-tls",
    ))
}

/// Why none of these servers opened a session, where the cause can be found: a mismatch of TLS.
async fn explain_failure(address: &EnsembleAddress, hosts: &[String]) -> Option<Error> {
    for host in hosts {
        #[cfg(feature = "tls")]
        if address.tls.is_none() {
            if tls::server_speaks_tls(host).await {
                return Some(tls::expected(host));
            }
            continue;
        }
        if address.tls.is_some()
            && let Err(error) = four_letter_word(address, host, "srvr").await
        {
            return Some(error);
        }
    }
    None
}
