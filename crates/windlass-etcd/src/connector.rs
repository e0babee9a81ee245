//! Connecting to a member: TLS, login, and a check that the member is usable.

use std::path::Path;
use std::time::Duration;

use tonic::metadata::{Ascii, MetadataValue};
use tonic::transport::{Certificate, Channel, ClientTlsConfig, Endpoint, Identity};

use super::address::{EtcdAddress, Login};
use super::connection::MemberConnection;
use super::errors::{LostReply, is_permission_denied, rejection};
use super::proto::{AuthenticateRequest, AuthenticateResponse, StatusRequest, StatusResponse};
use windlass_core::error::{Error, ErrorKind, Result};

/// How often an idle connection is pinged. etcd closes connections that ping more often than every 5 s.
const PING_INTERVAL: Duration = Duration::from_secs(10);
const PING_TIMEOUT: Duration = Duration::from_secs(5);

pub(super) const STATUS: &str = "/etcdserverpb.Maintenance/Status";
const AUTHENTICATE: &str = "/etcdserverpb.Auth/Authenticate";

/// Opens connections to the members that the URL names.
pub(super) struct EtcdConnector {
    pub(super) hosts: Vec<String>,
    endpoints: Vec<Endpoint>,
    login: Option<Login>,
    pub(super) call_timeout: Duration,
}

impl EtcdConnector {
    pub(super) fn new(address: &EtcdAddress, call_timeout: Duration) -> Result<EtcdConnector> {
        let endpoints = address
            .hosts
            .iter()
            .map(|host| endpoint(address, host, call_timeout))
            .collect::<Result<Vec<Endpoint>>>()?;
        Ok(EtcdConnector {
            hosts: address.hosts.clone(),
            endpoints,
            login: address.login.clone(),
            call_timeout,
        })
    }

    pub(super) fn has_login(&self) -> bool {
        self.login.is_some()
    }

    /// Connects to one host and logs in. Fails if the member has no leader.
    pub(super) async fn connect(&self, host: usize) -> Result<MemberConnection> {
        let share = self.call_timeout / self.hosts.len().max(1) as u32;
        let limit = share.max(Duration::from_millis(100));
        let connected = tokio::time::timeout(limit, async {
            let channel = self.endpoints[host]
                .connect()
                .await
                .map_err(|e| failed(causes(&e)))?;
            let token = match &self.login {
                Some(login) => Some(self.authenticate(&channel, login).await?),
                None => None,
            };
            let member = MemberConnection::new(channel, token, self.call_timeout);
            let status = member.send(STATUS, StatusRequest {}, LostReply::Harmless);
            match status.await {
                Ok(StatusResponse { leader: 0, .. }) => Err(failed("this member has no leader")),
                Ok(_) => Ok(member),
                // The user may not read the status, but an etcd member replied.
                Err(e) if is_permission_denied(&e) => Ok(member),
                Err(e) => Err(rejection(&e)
                    .unwrap_or_else(|| failed(format!("{} ({})", e.message(), causes(&e))))),
            }
        });
        let elapsed = |_| Err(failed(format!("no reply within {limit:?}")));
        connected.await.unwrap_or_else(elapsed)
    }

    async fn authenticate(&self, channel: &Channel, login: &Login) -> Result<MetadataValue<Ascii>> {
        let member = MemberConnection::new(channel.clone(), None, self.call_timeout);
        let request = AuthenticateRequest {
            name: login.user.clone(),
            password: login.password.clone(),
        };
        let reply = member.send(AUTHENTICATE, request, LostReply::Harmless);
        let reply: AuthenticateResponse = reply
            .await
            .map_err(|e| rejection(&e).unwrap_or_else(|| failed(causes(&e))))?;
        reply.token.parse().map_err(|_| {
            let message = "the server's authentication token is not valid ASCII";
            Error::new(ErrorKind::Store, "connect", message)
        })
    }
}

fn failed(message: impl Into<String>) -> Error {
    Error::new(ErrorKind::Unreachable, "connect", message)
}

/// An error's message, followed by those of its causes.
fn causes(e: &(dyn std::error::Error + 'static)) -> String {
    let mut messages = vec![e.to_string()];
    let mut cause = e.source();
    while let Some(e) = cause {
        let next = e.to_string();
        if messages.last() != Some(&next) {
            messages.push(next);
        }
        cause = e.source();
    }
    messages.join(": ")
}

fn endpoint(address: &EtcdAddress, host: &str, call_timeout: Duration) -> Result<Endpoint> {
    let scheme = match address.tls {
        Some(_) => "https",
        None => "http",
    };
    let invalid = |what: &str| Error::invalid("connect", format!("{host:?} {what}"));
    let endpoint = Endpoint::from_shared(format!("{scheme}://{host}"))
        .map_err(|e| invalid("is not a host").with_source(e))?
        .connect_timeout(call_timeout)
        .http2_keep_alive_interval(PING_INTERVAL)
        .keep_alive_timeout(PING_TIMEOUT)
        .keep_alive_while_idle(true)
        .tcp_nodelay(true);
    let Some(tls) = &address.tls else {
        return Ok(endpoint);
    };
    let read = |path: &Path| {
        std::fs::read(path).map_err(|e| {
            let message = format!("cannot read {}", path.display());
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
        .map_err(|e| invalid("cannot be used with these certificates").with_source(e))
}
