//! URLs that name several hosts (`redis+sentinel://`, `redis+cluster://`), and how each host is reached.

use redis::{
    ConnectionAddr, ConnectionInfo, IntoConnectionInfo as _, ProtocolVersion, RedisConnectionInfo,
    TlsCertificates,
};

use windlass_core::error::{Error, Result};

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
    /// Reads `HOST:PORT`, as in a redirection; the host may be missing or be an IPv6 address.
    pub(super) fn parse(text: &str, same_host: &str) -> Option<HostPort> {
        let (host, port) = text.rsplit_once(':')?;
        let host = host.trim_start_matches('[').trim_end_matches(']');
        Some(HostPort {
            host: if host.is_empty() { same_host } else { host }.to_owned(),
            port: port.parse().ok()?,
        })
    }
}

/// Who we are to a server, and whether the way there is encrypted.
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
        if !self.tls {
            return redis::Client::open(info);
        }
        // Fails only when a provider is there already, which is as good.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let certificates = TlsCertificates {
            client_tls: None,
            root_cert: self.ca.clone(),
        };
        redis::Client::build_with_tls(info, certificates)
    }
}

/// `SCHEME://[USER:PASSWORD@]HOST[:PORT],…[/PART[/PART]][?KEY=VALUE&…]`, taken apart.
pub(super) struct MultiHostUrl {
    pub(super) tls: bool,
    pub(super) user: Option<String>,
    pub(super) password: Option<String>,
    pub(super) hosts: Vec<HostPort>,
    pub(super) path: Vec<String>,
    parameters: Vec<(String, String)>,
}

impl MultiHostUrl {
    pub(super) fn parse(url: &str, default_port: u16, example: &str) -> Result<MultiHostUrl> {
        let wrong = |what: String| Error::invalid("connect", what).with_hint(example.to_owned());
        let (scheme, rest) = url
            .split_once("://")
            .ok_or_else(|| wrong("the URL names no server".into()))?;
        let (front, query) = rest.split_once('?').unwrap_or((rest, ""));
        let (credentials, front) = match front.rsplit_once('@') {
            Some((credentials, front)) => (Some(credentials), front),
            None => (None, front),
        };
        if credentials.is_some_and(|credentials| credentials.contains('@')) {
            let twice = "user and password are named more than once";
            return Err(Error::invalid("connect", twice).with_hint(
                "name them once, before the first host; an @ in a password is written %40",
            ));
        }
        let (hosts, path) = front.split_once('/').unwrap_or((front, ""));
        let (user, password) = match credentials.map(|c| c.split_once(':').unwrap_or((c, ""))) {
            Some((user, password)) => (text(user), text(password)),
            None => (None, None),
        };
        let mut found: Vec<HostPort> = Vec::new();
        for host in hosts.split(',') {
            let address = address(host, default_port).ok_or_else(|| {
                // Then this may be part of a password.
                let shown = match query.contains('@') {
                    true => "what stands before the \"?\"".to_owned(),
                    false => format!("{host:?}"),
                };
                wrong(format!("{shown} is not a host, or a host and a port"))
            })?;
            if found.contains(&address) {
                return Err(wrong(format!("{address} is named twice")));
            }
            found.push(address);
        }
        let parts = path.split('/').filter(|part| !part.is_empty());
        let pairs = query.split('&').filter(|pair| !pair.is_empty());
        let pair = |pair: &str| {
            let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
            (key.to_owned(), decode(value))
        };
        Ok(MultiHostUrl {
            tls: scheme.starts_with("rediss"),
            user,
            password,
            hosts: found,
            path: parts.map(decode).collect(),
            parameters: pairs.map(pair).collect(),
        })
    }

    /// Takes one parameter of the query.
    pub(super) fn take(&mut self, wanted: &str) -> Option<String> {
        let at = self.parameters.iter().position(|(key, _)| key == wanted)?;
        Some(self.parameters.remove(at).1)
    }

    /// Takes the parameter `tls_ca` and reads the file that it names.
    pub(super) fn take_ca(&mut self) -> Result<Option<Vec<u8>>> {
        let Some(path) = self.take("tls_ca") else {
            return Ok(None);
        };
        let read = std::fs::read(&path).map_err(|e| {
            let unreadable = format!("the CA file {path:?} cannot be read: {e}");
            Error::invalid("connect", unreadable)
                .with_hint("tls_ca names a file with the certificate of the CA to trust, in PEM")
        });
        read.map(Some)
    }

    /// Refuses what nobody took: a misspelt parameter must not be ignored.
    pub(super) fn nothing_left(&self) -> Result<()> {
        match self.parameters.first() {
            None => Ok(()),
            Some((key, _)) => {
                let unknown = format!("the URL has a parameter {key:?} that means nothing here");
                Err(Error::invalid("connect", unknown)
                    .with_hint("tls_ca, replicas, replicas_timeout, replicas_on_disk; for sentinels also sentinel_user, sentinel_password"))
            }
        }
    }
}

fn address(text: &str, default_port: u16) -> Option<HostPort> {
    let (host, port) = match text.strip_prefix('[') {
        Some(rest) => {
            let (host, after) = rest.split_once(']')?;
            match after {
                "" => (host, None),
                after => (host, Some(after.strip_prefix(':')?)),
            }
        }
        None => match text.split_once(':') {
            Some((host, port)) => (host, Some(port)),
            None => (text, None),
        },
    };
    if host.is_empty() || host.contains(|c: char| c.is_whitespace() || c.is_control()) {
        return None;
    }
    let port = match port {
        Some(port) => port.parse().ok().filter(|port| *port != 0)?,
        None => default_port,
    };
    Some(HostPort {
        host: host.to_ascii_lowercase(),
        port,
    })
}

/// Decoded, if there is any.
fn text(encoded: &str) -> Option<String> {
    Some(decode(encoded)).filter(|text| !text.is_empty())
}

/// Undoes percent encoding. What is not encoded well is taken as it is.
fn decode(text: &str) -> String {
    let bytes = text.as_bytes();
    let mut out = Vec::with_capacity(bytes.len());
    let mut i = 0;
    while i < bytes.len() {
        let coded = text.get(i + 1..i + 3).filter(|_| bytes[i] == b'%');
        match coded.and_then(|hex| u8::from_str_radix(hex, 16).ok()) {
            Some(byte) => {
                out.push(byte);
                i += 3;
            }
            None => {
                out.push(bytes[i]);
                i += 1;
            }
        }
    }
    String::from_utf8_lossy(&out).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(url: &str) -> Result<MultiHostUrl> {
        MultiHostUrl::parse(url, 26379, "an example")
    }

    #[test]
    fn all_parts_are_found() {
        let url = "rediss+sentinel://ann:p%40%2F@a,B:1,[::1]:2/main%20one/3?tls_ca=x&replicas=1";
        let mut hosts = parse(url).unwrap();
        assert!(hosts.tls);
        assert_eq!(hosts.user.as_deref(), Some("ann"));
        assert_eq!(hosts.password.as_deref(), Some("p@/"));
        let shown: Vec<String> = hosts.hosts.iter().map(HostPort::to_string).collect();
        assert_eq!(shown, ["a:26379", "b:1", "[::1]:2"]);
        assert_eq!(hosts.path, ["main one", "3"]);
        assert_eq!(hosts.take("replicas").as_deref(), Some("1"));
        assert!(hosts.nothing_left().is_err());
        assert_eq!(hosts.take("tls_ca").as_deref(), Some("x"));
        assert!(hosts.nothing_left().is_ok());
        let password_alone = parse("redis+cluster://:secret@h").unwrap();
        assert_eq!(password_alone.user, None);
        assert_eq!(password_alone.password.as_deref(), Some("secret"));
    }

    #[test]
    fn what_cannot_be_a_host_is_refused() {
        for (url, word) in [
            ("redis+cluster://", "is not a host"),
            ("redis+cluster://a,,b", "is not a host"),
            ("redis+cluster://a:0", "is not a host"),
            ("redis+cluster://a:x", "is not a host"),
            ("redis+cluster://a b", "is not a host"),
            ("redis+cluster://[::1", "is not a host"),
            ("redis+cluster://a,A:26379", "named twice"),
        ] {
            let error = parse(url).err().unwrap().to_string();
            assert!(error.contains(word), "{url}: {error}");
        }
    }

    #[test]
    fn redirections_are_understood() {
        let parsed = |text| HostPort::parse(text, "me").map(|a| a.to_string());
        assert_eq!(parsed("10.0.0.1:7000").as_deref(), Some("10.0.0.1:7000"));
        assert_eq!(parsed("::1:7000").as_deref(), Some("[::1]:7000"));
        assert_eq!(parsed(":7000").as_deref(), Some("me:7000"));
        assert_eq!(parsed("nonsense"), None);
    }
}
