//! Connections to servers beside the client's own: to ask one server how it is, and to find out why the
//! client opened no session, which it does not tell.

use std::io;

use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::TcpStream;
use zookeeper_client::Connector;

use super::address::{Address, TlsFiles};
#[cfg(feature = "tls")]
use super::tls;
use windlass_core::error::{Error, Result};

trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}
impl<S: AsyncRead + AsyncWrite + Send + Unpin> Stream for S {}

/// The servers, as the client wants them named.
pub(super) fn servers(hosts: &[String], address: &Address) -> Result<String> {
    if address.tls.is_none() {
        return Ok(hosts.join(","));
    }
    let secure = hosts.iter().map(|host| {
        // The client would panic.
        #[cfg(feature = "tls")]
        tls::server_name(host)?;
        Ok(format!("tcp+tls://{host}"))
    });
    Ok(secure.collect::<Result<Vec<_>>>()?.join(","))
}

/// The files are read each time, so that a new session has new certificates.
#[cfg(feature = "tls")]
pub(super) fn with_tls(connector: Connector, files: &TlsFiles) -> Result<Connector> {
    Ok(connector.with_tls(tls::Trust::read(files)?.for_client()?))
}

#[cfg(not(feature = "tls"))]
pub(super) fn with_tls(_: Connector, _: &TlsFiles) -> Result<Connector> {
    Err(not_in_this_build())
}

/// What a server answers to a four-letter word.
pub(super) async fn four_letters(address: &Address, host: &str, word: &str) -> Result<String> {
    let mut stream = open(address, host).await?;
    let mut answer = String::new();
    let told = async {
        stream.write_all(word.as_bytes()).await?;
        stream.read_to_string(&mut answer).await
    };
    match told.await {
        // A server does not say goodbye in TLS's way.
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof && !answer.is_empty() => {}
        outcome => drop(outcome.map_err(|error| refused(host, &error))?),
    }
    Ok(answer)
}

async fn open(address: &Address, host: &str) -> Result<Box<dyn Stream>> {
    let stream = TcpStream::connect(host)
        .await
        .map_err(|error| refused(host, &error))?;
    match &address.tls {
        None => Ok(Box::new(stream)),
        #[cfg(feature = "tls")]
        Some(files) => Ok(Box::new(
            tls::Trust::read(files)?.greet(host, stream).await?,
        )),
        #[cfg(not(feature = "tls"))]
        Some(_) => Err(not_in_this_build()),
    }
}

fn refused(host: &str, error: &io::Error) -> Error {
    #[cfg(feature = "tls")]
    if let Some(told) = tls::alert(host, error) {
        return told;
    }
    let message = format!("{host}: {error}");
    Error::new(
        windlass_core::error::ErrorKind::Unreachable,
        "connect",
        message,
    )
}

/// Why none of these servers has opened a session, where that can be found out.
pub(super) async fn explain(address: &Address, hosts: &[String]) -> Option<Error> {
    for host in hosts {
        #[cfg(feature = "tls")]
        if address.tls.is_none() {
            if tls::is_spoken_by(host).await {
                return Some(tls::expected(host));
            }
            continue;
        }
        if address.tls.is_some()
            && let Err(error) = four_letters(address, host, "srvr").await
        {
            return Some(error);
        }
    }
    None
}

#[cfg(not(feature = "tls"))]
fn not_in_this_build() -> Error {
    windlass_core::store::unsupported::not_in_this_build("zookeeper+tls", "zookeeper-tls")
}
