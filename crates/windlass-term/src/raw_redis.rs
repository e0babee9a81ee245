//! A plain Redis connection beside the store, to send commands that Windlass does not send.

use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, IntoConnectionInfo as _, ProtocolVersion, TlsCertificates};
use windlass::Options;

use crate::exit::Exit;
use crate::failure::{Advice, Failure};

/// Connects to one server as the library does: one socket for all tasks, RESP3, the same timeouts.
pub async fn connect(url: &str) -> Result<MultiplexedConnection, Failure> {
    let config = AsyncConnectionConfig::new()
        .set_connection_timeout(Some(Options::DEFAULT_CALL_TIMEOUT))
        .set_response_timeout(Some(Options::DEFAULT_CALL_TIMEOUT));
    let client = client(url)?;
    let connection = client.get_multiplexed_async_connection_with_config(&config);
    connection.await.map_err(failure)
}

fn client(url: &str) -> Result<redis::Client, Failure> {
    // `tls_ca` is a parameter of Windlass URLs that the client does not know.
    let (plain, ca) = match url.split_once("tls_ca=") {
        Some((front, rest)) => {
            let (path, others) = rest.split_once('&').unwrap_or((rest, ""));
            let plain = format!("{front}{others}");
            (plain.trim_end_matches(['?', '&']).to_owned(), Some(path))
        }
        None => (url.to_owned(), None),
    };
    let info = plain.as_str().into_connection_info().map_err(failure)?;
    let settings = info.redis_settings().clone();
    let info = info.set_redis_settings(settings.set_protocol(ProtocolVersion::RESP3));
    let Some(path) = ca else {
        return redis::Client::open(info).map_err(failure);
    };
    let root_cert = std::fs::read(path)
        .map_err(|e| Failure::internal(format!("cannot read the CA file {path}: {e}")))?;
    let certificates = TlsCertificates {
        client_tls: None,
        root_cert: Some(root_cert),
    };
    redis::Client::build_with_tls(info, certificates).map_err(failure)
}

/// A failure of the plain client.
pub fn failure(error: redis::RedisError) -> Failure {
    Failure {
        kind: "unreachable",
        name: None,
        message: format!("the plain Redis client failed: {error}"),
        advice: Advice::Doctor,
        exit: Exit::UNREACHABLE,
    }
}
