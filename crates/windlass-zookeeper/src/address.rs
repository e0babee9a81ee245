//! `zookeeper:` URLs and their options.

use std::collections::BTreeSet;
use std::path::PathBuf;

use super::node_name::NodeLayout;
use windlass_core::error::{Error, Result};
use windlass_core::{redact::redact, store::unsupported::not_in_this_build};

/// ZooKeeper's client port.
const PORT: u16 = 2181;
/// The client port for TLS in ZooKeeper's manual.
const TLS_PORT: u16 = 2281;

/// `zookeeper://[user:password@]host[:port][,host[:port]…][/chroot][?layout=…&chroot=create]`, and
/// `zookeeper+tls://…?tls_ca=…&tls_cert=…&tls_key=…`
#[derive(Clone)]
pub(super) struct EnsembleAddress {
    /// `host:port` each.
    pub(super) hosts: Vec<String>,
    /// `/` if the URL has none.
    pub(super) chroot: String,
    /// `user:password`, for digest authentication.
    pub(super) digest: Option<String>,
    pub(super) layout: NodeLayout,
    /// Whether to create a missing chroot.
    pub(super) create_chroot: bool,
    /// `None` for plain connections.
    pub(super) tls: Option<TlsPaths>,
    /// The URL without the password.
    pub(super) redacted: String,
}

/// PEM files for TLS.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct TlsPaths {
    /// The trusted certificates.
    pub(super) ca: PathBuf,
    /// The client's certificate, and its key.
    pub(super) identity: Option<(PathBuf, PathBuf)>,
}

impl EnsembleAddress {
    pub(super) fn parse(url: &str) -> Result<EnsembleAddress> {
        let redacted = redact(url);
        let wrong = |message: String, hint: &str| {
            Err(Error::invalid("connect", message)
                .with_backend(redacted.clone())
                .with_hint(hint.to_owned()))
        };
        const EXAMPLE: &str = "for example zookeeper://10.0.0.1:2181,10.0.0.2:2181/app";
        let (scheme, rest) = url.split_once("://").unwrap_or(("", url));
        let is_tls = scheme == "zookeeper+tls";
        if is_tls && !cfg!(feature = "tls") {
            return Err(not_in_this_build(scheme, "zookeeper-tls").with_backend(redacted));
        }
        let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
        let (credentials, rest) = match rest.rsplit_once('@') {
            Some((credentials, rest)) => (Some(credentials), rest),
            None => (None, rest),
        };
        let digest = match credentials.map(|c| c.split_once(':')) {
            None => None,
            Some(Some((user, password))) if !user.is_empty() && !password.is_empty() => {
                Some(format!("{}:{}", unescape(user), unescape(password)))
            }
            Some(_) => {
                return wrong(
                    "the URL has a user without a password, or the reverse".into(),
                    "digest authentication needs both: zookeeper://user:password@host",
                );
            }
        };
        let (hosts, chroot) = match rest.split_once('/') {
            Some((hosts, chroot)) => (hosts, format!("/{}", chroot.trim_end_matches('/'))),
            None => (rest, "/".to_owned()),
        };
        let mut known = BTreeSet::new();
        let mut listed = Vec::new();
        for host in hosts.split(',') {
            let port = if is_tls { TLS_PORT } else { PORT };
            let Some(host) = with_port(host, port) else {
                let host = redact(host);
                return wrong(format!("{host:?} is not a host, or host:port"), EXAMPLE);
            };
            if !known.insert(host.clone()) {
                return wrong(format!("{host} is named twice"), "name each server once");
            }
            listed.push(host);
        }
        let odd = |segment: &str| matches!(segment, "" | "." | "..");
        if chroot != "/" && chroot[1..].split('/').any(odd) {
            return wrong(format!("{chroot:?} is not a path of nodes"), EXAMPLE);
        }
        let (mut layout, mut create_chroot) = (NodeLayout::Curator, false);
        let (mut ca, mut cert, mut key) = (None, None, None);
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            match pair {
                "layout=curator" => layout = NodeLayout::Curator,
                "layout=kazoo" => layout = NodeLayout::Kazoo,
                "chroot=create" => create_chroot = true,
                "chroot=expect" => create_chroot = false,
                _ => {
                    let file = |path: &str| Some(PathBuf::from(unescape(path)));
                    match pair.split_once('=') {
                        Some((name @ ("tls_ca" | "tls_cert" | "tls_key"), path)) if is_tls => {
                            match name {
                                "tls_ca" => ca = file(path),
                                "tls_cert" => cert = file(path),
                                _ => key = file(path),
                            }
                        }
                        Some((name, _)) if name.starts_with("tls_") && !is_tls => {
                            return wrong(
                                format!("{name}= is for TLS"),
                                "use zookeeper+tls:// instead of zookeeper://",
                            );
                        }
                        option => {
                            // Its value may be a password.
                            let name = option.map_or("…", |(name, _)| name);
                            return wrong(
                                format!("{name:?} is not an option of this store"),
                                "options are layout=curator, layout=kazoo and chroot=create, and \
                                 with zookeeper+tls:// tls_ca, tls_cert and tls_key",
                            );
                        }
                    }
                }
            }
        }
        let tls = match (ca, cert, key) {
            _ if !is_tls => None,
            (Some(ca), cert, key) if cert.is_some() == key.is_some() => Some(TlsPaths {
                ca,
                identity: cert.zip(key),
            }),
            (Some(_), ..) => {
                return wrong(
                    "the URL has tls_cert= without tls_key=, or the reverse".into(),
                    "a client certificate needs both",
                );
            }
            (None, ..) => {
                return wrong(
                    "the URL does not say which certificates to trust".into(),
                    "add ?tls_ca=FILE, a PEM file; the system's certificates are usually in \
                     tls_ca=/etc/ssl/certs/ca-certificates.crt",
                );
            }
        };
        Ok(EnsembleAddress {
            hosts: listed,
            chroot,
            digest,
            layout,
            create_chroot,
            tls,
            redacted,
        })
    }
}

impl std::fmt::Debug for EnsembleAddress {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.redacted)
    }
}

/// `host:port`, or `None` if it is not a host.
fn with_port(host: &str, default: u16) -> Option<String> {
    let (name, port) = match host.rsplit_once(':') {
        // In `[::1]` the last colon is part of the address.
        Some((name, port)) if !port.ends_with(']') => (name, port.parse::<u16>().ok()?),
        _ => (host, default),
    };
    let bare = name.trim_start_matches('[').trim_end_matches(']');
    let odd = |c: char| c.is_whitespace() || c.is_control() || c == '/';
    if bare.is_empty() || port == 0 || name.contains(odd) {
        return None;
    }
    if bare.contains(':') && !name.starts_with('[') {
        return None;
    }
    Some(format!("{name}:{port}"))
}

/// Decodes percent-escapes: `%40` is `@`.
fn unescape(text: &str) -> String {
    let bytes = text.as_bytes();
    let mut plain = Vec::with_capacity(bytes.len());
    let mut at = 0;
    while at < bytes.len() {
        let escaped = match (bytes[at], bytes.get(at + 1..at + 3)) {
            (b'%', Some(digits)) => std::str::from_utf8(digits)
                .ok()
                .and_then(|digits| u8::from_str_radix(digits, 16).ok()),
            _ => None,
        };
        match escaped {
            Some(byte) => {
                plain.push(byte);
                at += 3;
            }
            None => {
                plain.push(bytes[at]);
                at += 1;
            }
        }
    }
    String::from_utf8_lossy(&plain).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use windlass_core::error::ErrorKind;

    #[test]
    fn parses_hosts_chroot_and_options() {
        let full =
            "zookeeper://ann:p%40ss@a,b:2182,[::1]:2183/app/locks/?layout=kazoo&chroot=create";
        let address = EnsembleAddress::parse(full).unwrap();
        assert_eq!(address.hosts, ["a:2181", "b:2182", "[::1]:2183"]);
        assert_eq!(address.chroot, "/app/locks");
        assert_eq!(address.digest.as_deref(), Some("ann:p@ss"));
        assert_eq!(address.layout, NodeLayout::Kazoo);
        assert!(address.create_chroot);
        assert!(!format!("{address:?}").contains("p%40ss"));
        let plain = EnsembleAddress::parse("zookeeper://a").unwrap();
        assert_eq!((plain.chroot.as_str(), plain.digest), ("/", None));
        assert_eq!((plain.layout, plain.tls), (NodeLayout::Curator, None));
    }

    #[cfg(feature = "tls")]
    #[test]
    fn parses_tls_files() {
        let url = "zookeeper+tls://a,b:1/x?tls_ca=/c%20a&chroot=create";
        let address = EnsembleAddress::parse(url).unwrap();
        assert_eq!(address.hosts, ["a:2281", "b:1"]);
        let mut files = TlsPaths {
            ca: "/c a".into(),
            identity: None,
        };
        assert_eq!(address.tls, Some(files.clone()));
        let mutual = EnsembleAddress::parse(&format!("{url}&tls_cert=/c&tls_key=/k")).unwrap();
        files.identity = Some(("/c".into(), "/k".into()));
        assert_eq!(mutual.tls, Some(files));
        for (url, word) in [
            ("zookeeper+tls://a", "which certificates"),
            ("zookeeper+tls://a?tls_ca=/c&tls_key=/k", "without"),
            ("zookeeper+tls://a?tls_ca=/c&tls_name=b", "not an option"),
        ] {
            let e = EnsembleAddress::parse(url).unwrap_err();
            assert!(e.to_string().contains(word) && e.hint().is_some(), "{e}");
        }
    }

    #[cfg(not(feature = "tls"))]
    #[test]
    fn tls_requires_its_feature() {
        let e = EnsembleAddress::parse("zookeeper+tls://a?tls_ca=/c").unwrap_err();
        assert_eq!(e.kind(), ErrorKind::Unsupported);
        assert!(e.hint().unwrap().contains("zookeeper-tls"), "{e:?}");
    }

    #[test]
    fn rejects_malformed_urls() {
        for (url, word) in [
            ("zookeeper://", "not a host"),
            ("zookeeper://a,,b", "not a host"),
            ("zookeeper://a:0", "not a host"),
            ("zookeeper://a:x", "not a host"),
            ("zookeeper://::1", "not a host"),
            ("zookeeper://a,b,a:2181", "named twice"),
            ("zookeeper://a/b//c", "not a path"),
            ("zookeeper://a/../c", "not a path"),
            ("zookeeper://ann@a", "without a password"),
            ("zookeeper://a?layout=other", "not an option"),
            ("zookeeper://a?tls_ca=/c", "is for TLS"),
        ] {
            let e = EnsembleAddress::parse(url).unwrap_err();
            assert_eq!(e.kind(), ErrorKind::InvalidInput, "{url}");
            assert!(e.to_string().contains(word), "{url}: {e}");
            assert!(e.hint().is_some(), "{url}");
        }
    }
}
