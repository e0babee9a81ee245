//! How a member is connected to: host, timeouts, TLS.

use std::time::Duration;

use tonic::transport::{Certificate, ClientTlsConfig, Endpoint, Identity};

use super::address::Address;
use windlass_core::error::{Error, Result};

/// A connection is tested this often when nothing comes; etcd allows no less than 5 s.
const TEST_EVERY: Duration = Duration::from_secs(10);
const TEST_LIMIT: Duration = Duration::from_secs(5);

pub(super) fn endpoint(address: &Address, host: &str, call_timeout: Duration) -> Result<Endpoint> {
    let scheme = if address.tls.is_some() {
        "https"
    } else {
        "http"
    };
    let invalid = |what: &str| Error::invalid("connect", format!("{host:?} {what}"));
    let endpoint = Endpoint::from_shared(format!("{scheme}://{host}"))
        .map_err(|e| invalid("is not a host").with_source(e))?
        .connect_timeout(call_timeout)
        .http2_keep_alive_interval(TEST_EVERY)
        .keep_alive_timeout(TEST_LIMIT)
        .keep_alive_while_idle(true)
        .tcp_nodelay(true);
    let Some(tls) = &address.tls else {
        return Ok(endpoint);
    };
    let read = |path: &std::path::Path| {
        std::fs::read(path).map_err(|e| {
            let message = format!("{} cannot be read", path.display());
            Error::invalid("connect", message).with_source(e)
        })
    };
    let mut config = ClientTlsConfig::new();
    config = match &tls.ca {
        Some(path) => config.ca_certificate(Certificate::from_pem(read(path)?)),
        None => config.with_native_roots(),
    };
    if let (Some(certificate), Some(key)) = (&tls.certificate, &tls.key) {
        config = config.identity(Identity::from_pem(read(certificate)?, read(key)?));
    }
    if let Some(name) = &tls.server_name {
        config = config.domain_name(name.clone());
    }
    endpoint
        .tls_config(config)
        .map_err(|e| invalid("cannot be reached with these certificates").with_source(e))
}
