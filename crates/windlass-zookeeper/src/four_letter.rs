//! Four-letter words: ZooKeeper's commands for operators, each on a connection of its own.

use std::io;

use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::TcpStream;

use super::address::EnsembleAddress;
#[cfg(feature = "tls")]
use super::tls;
use windlass_core::error::{Error, ErrorKind, Result};

trait ServerStream: AsyncRead + AsyncWrite + Send + Unpin {}
impl<S: AsyncRead + AsyncWrite + Send + Unpin> ServerStream for S {}

/// Sends a four-letter word to one server, and returns the reply.
pub(super) async fn four_letter_word(
    address: &EnsembleAddress,
    host: &str,
    word: &str,
) -> Result<String> {
    let mut stream = open(address, host).await?;
    let mut reply = String::new();
    let exchange = async {
        stream.write_all(word.as_bytes()).await?;
        stream.read_to_string(&mut reply).await
    };
    match exchange.await {
        // The server closes the connection without a TLS close_notify.
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof && !reply.is_empty() => {}
        outcome => drop(outcome.map_err(|error| connection_error(host, &error))?),
    }
    Ok(reply)
}

async fn open(address: &EnsembleAddress, host: &str) -> Result<Box<dyn ServerStream>> {
    let stream = TcpStream::connect(host)
        .await
        .map_err(|error| connection_error(host, &error))?;
    match &address.tls {
        None => Ok(Box::new(stream)),
        #[cfg(feature = "tls")]
        Some(files) => Ok(Box::new(
            tls::TlsMaterial::read(files)?
                .handshake(host, stream)
                .await?,
        )),
        #[cfg(not(feature = "tls"))]
        Some(_) => Err(windlass_core::store::unsupported::not_in_this_build(
            "zookeeper+tls",
            "zookeeper-tls",
        )),
    }
}

fn connection_error(host: &str, error: &io::Error) -> Error {
    #[cfg(feature = "tls")]
    if let Some(alert) = tls::alert(host, error) {
        return alert;
    }
    Error::new(
        ErrorKind::Unreachable,
        "connect",
        format!("{host}: {error}"),
    )
}
