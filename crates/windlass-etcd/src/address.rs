//! `etcd://` and `etcds://` URLs.

use std::path::PathBuf;

use windlass_core::error::{Error, Result};
use windlass_core::redact::redact;

/// etcd's client port.
const PORT: u16 = 2379;
const EXAMPLE: &str = "for example etcd://127.0.0.1:2379, or etcds://a,b,c?ca=/etc/etcd/ca.crt";

/// A parsed URL: `etcd://USER:PASSWORD@HOST:PORT,HOST/PREFIX`, or `etcds://` for TLS.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct EtcdAddress {
    /// Each with a port.
    pub(super) hosts: Vec<String>,
    pub(super) login: Option<Login>,
    /// Of every key.
    pub(super) prefix: String,
    pub(super) tls: Option<Tls>,
}

#[derive(Clone, PartialEq, Eq)]
pub(super) struct Login {
    pub(super) user: String,
    pub(super) password: String,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Tls {
    /// The certificate authority to trust instead of the system's.
    pub(super) ca: Option<PathBuf>,
    /// The client's certificate.
    pub(super) certificate: Option<PathBuf>,
    pub(super) key: Option<PathBuf>,
    /// The name in the server's certificate, if it is not the host name.
    pub(super) server_name: Option<String>,
}

impl EtcdAddress {
    pub(super) fn parse(url: &str) -> Result<EtcdAddress> {
        let invalid = |message: String| Err(Error::invalid("connect", message).with_hint(EXAMPLE));
        let Some((scheme, rest)) = url.split_once("://") else {
            return invalid(format!("{:?} has no host", redact(url)));
        };
        let (rest, query) = match rest.split_once('?') {
            Some((rest, query)) => (rest, query),
            None => (rest, ""),
        };
        // A password may contain an unescaped @: the last one separates.
        let (login, rest) = match rest.rsplit_once('@') {
            Some((login, rest)) => (Some(login), rest),
            None => (None, rest),
        };
        let (hosts, prefix) = match rest.split_once('/') {
            Some((hosts, prefix)) => (hosts, prefix),
            None => (rest, ""),
        };
        let mut named = Vec::new();
        for host in hosts.split(',') {
            let host = match with_port(host) {
                Ok(host) => host,
                Err(why) => return invalid(format!("in {:?}, {why}", redact(url))),
            };
            if named.contains(&host) {
                return invalid(format!("{host} is named twice in {:?}", redact(url)));
            }
            named.push(host);
        }
        let mut tls = (scheme == "etcds").then(Tls::default);
        for (name, value) in query.split('&').filter_map(|pair| pair.split_once('=')) {
            if !["ca", "cert", "key", "name"].contains(&name) {
                return invalid(format!(
                    "unknown parameter {name}=: ca=, cert=, key= and name= are known, with etcds://"
                ));
            }
            let Some(tls) = &mut tls else {
                return invalid(format!("{name}= is for TLS: use etcds://"));
            };
            let value = unescape(value);
            match name {
                "ca" => tls.ca = Some(value.into()),
                "cert" => tls.certificate = Some(value.into()),
                "key" => tls.key = Some(value.into()),
                _ => tls.server_name = Some(value),
            }
        }
        if let Some(tls) = &tls
            && tls.certificate.is_some() != tls.key.is_some()
        {
            return invalid("cert= and key= must be given together".to_owned());
        }
        Ok(EtcdAddress {
            hosts: named,
            login: login.map(|login| {
                let (user, password) = login.split_once(':').unwrap_or((login, ""));
                Login {
                    user: unescape(user),
                    password: unescape(password),
                }
            }),
            prefix: unescape(prefix),
            tls,
        })
    }
}

/// The host with its port, or why it is invalid.
fn with_port(host: &str) -> Result<String, String> {
    let (name, port) = match host.rsplit_once(':') {
        // An IPv6 address has colons itself, within brackets.
        Some((name, port)) if !port.ends_with(']') => (name, Some(port)),
        _ => (host, None),
    };
    if name.is_empty() {
        return Err("a host is missing".to_owned());
    }
    match port.map(str::parse::<u16>) {
        None => Ok(format!("{name}:{PORT}")),
        Some(Ok(port)) if port != 0 => Ok(format!("{name}:{port}")),
        _ => Err(format!("{:?} has an invalid port", redact(host))),
    }
}

/// Decodes percent-encoding.
fn unescape(text: &str) -> String {
    let bytes = text.as_bytes();
    let mut plain = Vec::with_capacity(bytes.len());
    let mut at = 0;
    while at < bytes.len() {
        let escaped = (bytes[at] == b'%')
            .then(|| text.get(at + 1..at + 3))
            .flatten()
            .and_then(|hex| u8::from_str_radix(hex, 16).ok());
        plain.push(escaped.unwrap_or(bytes[at]));
        at += if escaped.is_some() { 3 } else { 1 };
    }
    String::from_utf8_lossy(&plain).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use windlass_core::error::ErrorKind;

    #[test]
    fn urls_name_hosts_login_prefix_and_tls() {
        let plain = EtcdAddress::parse("etcd://10.0.0.1").unwrap();
        assert_eq!(plain.hosts, ["10.0.0.1:2379"]);
        assert!(plain.login.is_none() && plain.tls.is_none() && plain.prefix.is_empty());
        let all =
            EtcdAddress::parse("etcds://ann:p%40ss@a:1,b,[::1]:3/app/?ca=/c%20a&cert=/c&key=/k");
        let all = all.unwrap();
        assert_eq!(all.hosts, ["a:1", "b:2379", "[::1]:3"]);
        let login = all.login.unwrap();
        assert_eq!((&*login.user, &*login.password), ("ann", "p@ss"));
        assert_eq!(all.prefix, "app/");
        let tls = all.tls.unwrap();
        assert_eq!(tls.ca.unwrap(), PathBuf::from("/c a"));
        assert!(tls.certificate.is_some() && tls.key.is_some());
        assert_eq!(EtcdAddress::parse("etcd://h//app").unwrap().prefix, "/app");
    }

    #[test]
    fn invalid_urls_are_explained() {
        for (url, word) in [
            ("etcd:h", "has no host"),
            ("etcd://", "a host is missing"),
            ("etcd://a,,b", "a host is missing"),
            ("etcd://a,b:2379,b", "named twice"),
            ("etcd://a:0", "invalid port"),
            ("etcd://a:x", "invalid port"),
            ("etcd://a?ca=/x", "etcds://"),
            ("etcds://a?cert=/x", "must be given together"),
            ("etcds://a?colour=red", "unknown parameter"),
        ] {
            let e = EtcdAddress::parse(url).map(drop).unwrap_err();
            assert_eq!(e.kind(), ErrorKind::InvalidInput, "{url}");
            assert!(e.to_string().contains(word), "{url}: {e}");
            assert!(e.hint().is_some());
        }
    }

    #[test]
    fn passwords_are_redacted() {
        let e = EtcdAddress::parse("etcd://ann:s3cret@a,a")
            .map(drop)
            .unwrap_err();
        assert!(!format!("{e} {e:?}").contains("s3cret"));
    }
}
