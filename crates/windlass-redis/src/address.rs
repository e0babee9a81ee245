//! Store URLs: which servers to connect to, and with which options.
//!
//! | URL | parsed by |
//! |---|---|
//! | `redis://`, `rediss://`, `redis+unix://` | [`single_server`] |
//! | `redis+sentinel://`, `redis+cluster://` | [`MultiHostUrl`] |
//!
//! An unknown or repeated parameter is an error: a misspelt one must not be ignored.

mod multi_host;
mod replicas;

use redis::{
    ConnectionAddr, ConnectionInfo, IntoConnectionInfo as _, ProtocolVersion, RedisConnectionInfo,
    TlsCertificates,
};

pub(super) use self::multi_host::MultiHostUrl;
use super::keys::Keys;
use windlass_core::error::{Error, Result};
use windlass_core::store::{Replicas, WakeUpPolicy};

/// The query parameters that Windlass reads itself; the driver never sees them.
const OWN_PARAMETERS: [&str; 6] = [
    "tls_ca",
    "prefix",
    "replicas",
    "replicas_timeout",
    "replicas_on_disk",
    "wake_ups",
];

/// For the hint of an error about a parameter.
const KNOWN_PARAMETERS: &str =
    "known parameters: tls_ca, prefix, replicas, replicas_timeout, replicas_on_disk, wake_ups";

/// What a URL says about the store, besides its servers.
#[derive(Debug)]
pub(super) struct StoreOptions {
    pub(super) keys: Keys,
    pub(super) grants: GrantOptions,
}

/// When a grant counts.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct GrantOptions {
    /// The replicas that it waits for.
    pub(super) replicas: Option<Replicas>,
    /// Whether a wake-up has to be confirmed.
    pub(super) wake_ups: WakeUpPolicy,
}

/// A host and its port.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct HostPort {
    pub(super) host: String,
    pub(super) port: u16,
}

impl std::fmt::Display for HostPort {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.host.contains(':') {
            true => write!(f, "[{}]:{}", self.host, self.port),
            false => write!(f, "{}:{}", self.host, self.port),
        }
    }
}

impl HostPort {
    /// Reads the `HOST:PORT` of a redirection. The host may be an IPv6 address, or missing, which
    /// means `same_host`.
    pub(super) fn parse(text: &str, same_host: &str) -> Option<HostPort> {
        let (host, port) = text.rsplit_once(':')?;
        let host = host.trim_start_matches('[').trim_end_matches(']');
        Some(HostPort {
            host: if host.is_empty() { same_host } else { host }.to_owned(),
            port: port.parse().ok()?,
        })
    }
}

/// How to connect to any of the servers of a Sentinel service or a cluster: credentials, database
/// and TLS.
#[derive(Clone)]
pub(super) struct ServerOptions {
    pub(super) user: Option<String>,
    pub(super) password: Option<String>,
    pub(super) database: i64,
    pub(super) tls: bool,
    /// The CA to trust, in PEM.
    pub(super) ca: Option<Vec<u8>>,
}

impl ServerOptions {
    pub(super) fn client(&self, to: &HostPort) -> redis::RedisResult<redis::Client> {
        let (host, port) = (to.host.clone(), to.port);
        let address = match self.tls {
            false => ConnectionAddr::Tcp(host, port),
            true => ConnectionAddr::TcpTls {
                host,
                port,
                insecure: false,
                tls_params: None,
            },
        };
        let mut settings = RedisConnectionInfo::default()
            .set_protocol(ProtocolVersion::RESP3)
            .set_db(self.database);
        if let Some(user) = &self.user {
            settings = settings.set_username(user);
        }
        if let Some(password) = &self.password {
            settings = settings.set_password(password);
        }
        let info: ConnectionInfo = address.into_connection_info()?;
        let info = info.set_redis_settings(settings);
        match self.tls {
            false => redis::Client::open(info),
            true => tls_client(info, self.ca.clone()),
        }
    }
}

fn tls_client(info: ConnectionInfo, ca: Option<Vec<u8>>) -> redis::RedisResult<redis::Client> {
    // Fails only if a provider is installed already, which serves as well.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let certificates = TlsCertificates {
        client_tls: None,
        root_cert: ca,
    };
    redis::Client::build_with_tls(info, certificates)
}

fn read_ca(path: &str) -> Result<Vec<u8>> {
    std::fs::read(path).map_err(|e| {
        let unreadable = format!("the CA file {path:?} cannot be read: {e}");
        Error::invalid("connect", unreadable)
            .with_hint("tls_ca is the path of a PEM file with the CA certificate to trust")
    })
}

/// The server of a `redis://`, `rediss://` or `redis+unix://` URL.
pub(super) fn single_server(url: &str) -> Result<(redis::Client, StoreOptions)> {
    let malformed = |e: redis::RedisError| {
        Error::invalid("connect", format!("the URL is malformed: {e}")).with_hint(
            "redis://USER:PASSWORD@HOST:PORT/DB, rediss://… for TLS, redis+unix:///SOCKET?db=DB",
        )
    };
    let (url, ca) = take_parameter(url, "tls_ca");
    let (url, prefix) = take_parameter(&url, "prefix");
    let (url, count) = take_parameter(&url, "replicas");
    let (url, timeout) = take_parameter(&url, "replicas_timeout");
    let (url, on_disk) = take_parameter(&url, "replicas_on_disk");
    let (url, wake_ups) = take_parameter(&url, "wake_ups");
    let options = StoreOptions {
        keys: Keys::with_prefix(prefix.as_deref())?,
        grants: GrantOptions {
            replicas: replicas::from_parameters(count, timeout, on_disk)?,
            wake_ups: wake_up_policy(wake_ups.as_deref())?,
        },
    };
    check_remaining_parameters(&url)?;
    let tls = url.starts_with("rediss:");
    if ca.is_some() && !tls {
        return Err(
            Error::invalid("connect", "tls_ca needs TLS, and this URL does not use it")
                .with_hint("write rediss:// for TLS"),
        );
    }
    let info: ConnectionInfo = url.as_str().into_connection_info().map_err(malformed)?;
    let settings = info
        .redis_settings()
        .clone()
        .set_protocol(ProtocolVersion::RESP3);
    let info = info.set_redis_settings(settings);
    let client = match tls {
        false => redis::Client::open(info),
        true => tls_client(info, ca.as_deref().map(read_ca).transpose()?),
    };
    Ok((client.map_err(malformed)?, options))
}

/// Rejects the parameters that are left after Windlass took its own.
fn check_remaining_parameters(url: &str) -> Result<()> {
    let query = url.split_once('?').map_or("", |(_, query)| query);
    let query = query.split_once('#').map_or(query, |(query, _)| query);
    // The driver reads these from the query of a socket's URL.
    let known: &[&str] = match url.starts_with("redis+unix:") || url.starts_with("unix:") {
        true => &["db", "user", "pass"],
        false => &[],
    };
    let mut seen = Vec::new();
    for pair in query.split('&').filter(|pair| !pair.is_empty()) {
        let key = pair.split('=').next().unwrap_or(pair);
        if !known.contains(&key) || seen.contains(&key) {
            let message = match seen.contains(&key) || OWN_PARAMETERS.contains(&key) {
                true => format!("the URL has the parameter {key:?} twice"),
                false => format!("the URL has an unknown parameter {key:?}"),
            };
            return Err(Error::invalid("connect", message).with_hint(match key {
                "db" => "the database is part of the path: redis://HOST/3",
                _ => KNOWN_PARAMETERS,
            }));
        }
        seen.push(key);
    }
    Ok(())
}

/// The value of the parameter `wake_ups`.
fn wake_up_policy(value: Option<&str>) -> Result<WakeUpPolicy> {
    match value {
        None | Some("trust") => Ok(WakeUpPolicy::Trust),
        Some("confirm") => Ok(WakeUpPolicy::Confirm),
        Some(other) => {
            let message = format!("wake_ups={other} is neither trust nor confirm");
            let hint = "?wake_ups=confirm if other users of the server may forge wake-ups";
            Err(Error::invalid("connect", message).with_hint(hint))
        }
    }
}

/// Removes the first parameter of that name from the query of a URL. A second one stays, and is
/// rejected with the unknown ones.
fn take_parameter(url: &str, wanted: &str) -> (String, Option<String>) {
    let Some((front, query)) = url.split_once('?') else {
        return (url.to_owned(), None);
    };
    let mut found = None;
    let rest: Vec<&str> = query
        .split('&')
        .filter(|pair| match pair.split_once('=') {
            Some((key, value)) if key == wanted && found.is_none() => {
                found = Some(value.to_owned());
                false
            }
            _ => true,
        })
        .collect();
    let url = match rest.is_empty() {
        true => front.to_owned(),
        false => format!("{front}?{}", rest.join("&")),
    };
    (url, found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_and_repeated_parameters_are_rejected() {
        for url in [
            "redis://h?replica=1",
            "redis://h?db=3",
            "redis://h/3?foo",
            "redis://h?replicas=1&replicas=2",
            "redis://h?prefix=a&prefix=b",
            "redis://h?prefix=a:b",
            "redis://h?wake_ups=no",
            "redis://h?wake_ups=confirm&wake_ups=trust",
            "redis://h?tls_ca=/etc/ca.pem",
            "redis+unix:///run/redis.sock?databse=3",
            "redis+unix:///run/redis.sock?db=3&db=4",
        ] {
            let error = single_server(url).map(drop).expect_err(url);
            assert_eq!(
                error.kind(),
                windlass_core::error::ErrorKind::InvalidInput,
                "{url}: {error}"
            );
            assert!(error.hint().is_some(), "{url}: {error}");
        }
        for url in [
            "redis://h",
            "redis://h/3?",
            "redis://u:p@h:1/3?replicas=1&replicas_timeout=1s&prefix=acme&wake_ups=confirm",
            "redis+unix:///run/redis.sock?db=3&user=u&pass=p",
        ] {
            single_server(url).map(drop).expect(url);
        }
    }

    #[test]
    fn own_parameters_do_not_reach_the_driver() {
        let (url, ca) = take_parameter("rediss://h/0?tls_ca=/etc/ca.pem&x=1", "tls_ca");
        assert_eq!(
            (url.as_str(), ca.as_deref()),
            ("rediss://h/0?x=1", Some("/etc/ca.pem"))
        );
        let (url, ca) = take_parameter("rediss://h/0?tls_ca=/etc/ca.pem", "tls_ca");
        assert_eq!(
            (url.as_str(), ca.as_deref()),
            ("rediss://h/0", Some("/etc/ca.pem"))
        );
        assert_eq!(
            take_parameter("redis://h", "tls_ca"),
            ("redis://h".into(), None)
        );
    }

    #[test]
    fn addresses_in_redirections_are_parsed() {
        let parsed = |text| HostPort::parse(text, "me").map(|a| a.to_string());
        assert_eq!(parsed("10.0.0.1:7000").as_deref(), Some("10.0.0.1:7000"));
        assert_eq!(parsed("::1:7000").as_deref(), Some("[::1]:7000"));
        assert_eq!(parsed(":7000").as_deref(), Some("me:7000"));
        assert_eq!(parsed("nonsense"), None);
    }
}
