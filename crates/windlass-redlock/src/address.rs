//! `redlock://HOST,HOST,HOST?…`: the nodes and options of a quorum.

use std::time::Duration;

use windlass_core::Drift;
use windlass_core::error::{Error, Result};
use windlass_core::redact::redact;

const DEFAULT_MAX_TTL: Duration = Duration::from_secs(60);
const DEFAULT_NODE_TIMEOUT: Duration = Duration::from_millis(500);
const DEFAULT_TIMEOUT_PERCENT: u32 = 20;

/// A set of nodes is kept in one word.
const MAX_MEMBERS: usize = 63;

/// A parsed `redlock://` URL.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RedlockAddress {
    /// One Redis URL for each member.
    pub(crate) members: Vec<String>,
    /// The longest ttl of a claim, and how long a node without durable storage has no vote after a
    /// restart.
    pub(crate) max_ttl: Duration,
    /// The longest wait for one node.
    pub(crate) node_timeout: Duration,
    /// The longest wait for all nodes, in percent of the claim's ttl.
    pub(crate) timeout_percent: u32,
    /// What clocks may disagree by, if the URL says so.
    pub drift: Option<Drift>,
}

impl RedlockAddress {
    pub fn parse(url: &str) -> Result<RedlockAddress> {
        let refused =
            |message: String| Error::invalid("connect", message).with_backend(redact(url));
        let invalid = |message: String| {
            refused(message)
                .with_hint("for example redlock://10.0.0.1:6379,10.0.0.2:6379,10.0.0.3:6379")
        };
        let (scheme, rest) = url
            .split_once("://")
            .ok_or_else(|| invalid("the URL names no servers".into()))?;
        let scheme = match scheme {
            "redlock+tls" => "rediss",
            _ => "redis",
        };
        let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
        let (credentials, rest) = match rest.rsplit_once('@') {
            Some((credentials, rest)) => (format!("{credentials}@"), rest),
            None => (String::new(), rest),
        };
        if credentials.trim_end_matches('@').contains('@') {
            return Err(refused("user and password are given more than once".into()).with_hint(
                "give them once, before the first host, for all nodes; write @ in a password as %40",
            ));
        }
        let (hosts, database) = match rest.split_once('/') {
            Some((hosts, database)) => (hosts, format!("/{database}")),
            None => (rest, String::new()),
        };
        let mut address = RedlockAddress {
            members: Vec::new(),
            max_ttl: DEFAULT_MAX_TTL,
            node_timeout: DEFAULT_NODE_TIMEOUT,
            timeout_percent: DEFAULT_TIMEOUT_PERCENT,
            drift: None,
        };
        let mut node_parameters = Vec::new();
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            match pair.split_once('=') {
                Some(("max_ttl", value)) => address.max_ttl = duration(value).map_err(invalid)?,
                Some(("node_timeout", value)) => {
                    address.node_timeout = duration(value).map_err(invalid)?;
                }
                Some(("timeout_factor", value)) => {
                    address.timeout_percent = percent(value).map_err(invalid)?;
                }
                Some(("drift", value)) => {
                    let factor = value
                        .parse()
                        .map_err(|_| invalid(format!("{value:?} is not a drift such as 0.01")))?;
                    address.drift =
                        Some(Drift::new(factor).map_err(|e| e.with_backend(redact(url)))?);
                }
                Some(("tls_ca" | "prefix", _)) => node_parameters.push(pair),
                _ => {
                    let name = pair.split('=').next().unwrap_or(pair);
                    return Err(invalid(format!(
                        "unknown parameter {name:?}; the parameters are max_ttl, node_timeout, \
                         timeout_factor, drift, prefix and tls_ca"
                    )));
                }
            }
        }
        let query = match node_parameters.is_empty() {
            true => String::new(),
            false => format!("?{}", node_parameters.join("&")),
        };
        let mut seen: Vec<String> = Vec::new();
        for host in hosts.split(',') {
            if host.is_empty() {
                return Err(invalid("a host is missing between the commas".into()));
            }
            let with_port = with_port(host);
            if seen.contains(&with_port) {
                let node = redact(&with_port);
                return Err(invalid(format!(
                    "{node} is named twice: a node has one vote"
                )));
            }
            seen.push(with_port);
            address
                .members
                .push(format!("{scheme}://{credentials}{host}{database}{query}"));
        }
        match address.members.len() {
            1 => Err(refused("one node is not a quorum".into())
                .with_hint("use redis:// for one server, or list three or five nodes")),
            n if n % 2 == 0 => Err(refused(format!(
                "{n} nodes tolerate no more failures than {}, and need a larger majority",
                n - 1
            ))
            .with_hint("list an odd number of nodes")),
            n if n > MAX_MEMBERS => Err(invalid(format!("{n} nodes are more than {MAX_MEMBERS}"))),
            _ => Ok(address),
        }
    }
}

/// With the default port added, so that two spellings of one node are equal.
fn with_port(host: &str) -> String {
    let host = host.to_ascii_lowercase();
    let has_port = match host.rsplit_once(':') {
        // An IPv6 address has colons of its own, in brackets.
        Some((_, port)) => !port.is_empty() && port.bytes().all(|b| b.is_ascii_digit()),
        None => false,
    };
    match has_port && !host.ends_with(']') {
        true => host,
        false => format!("{host}:6379"),
    }
}

/// `0.05` to `0.5`, in whole percent.
fn percent(text: &str) -> Result<u32, String> {
    let factor: Option<f64> = text.parse().ok();
    let percent = factor.map(|factor| (factor * 100.0).round());
    percent
        .filter(|percent| (1.0..=50.0).contains(percent))
        .map(|percent| percent as u32)
        .ok_or_else(|| format!("{text:?} is not a part of the ttl between 0.01 and 0.5"))
}

/// `250ms`, `30s`, `5m`, `24h`.
fn duration(text: &str) -> std::result::Result<Duration, String> {
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let number: Option<u64> = digits.parse().ok().filter(|number| *number > 0);
    let unit = match &text[digits.len()..] {
        "ms" => Some(1),
        "s" => Some(1_000),
        "m" => Some(60_000),
        "h" => Some(3_600_000),
        _ => None,
    };
    let ms = number.zip(unit).and_then(|(n, unit)| n.checked_mul(unit));
    ms.map(Duration::from_millis)
        .ok_or_else(|| format!("{text:?} is not a duration such as 250ms, 30s, 5m"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use windlass_core::error::ErrorKind;

    #[test]
    fn nodes_share_credentials_database_and_tls() {
        let address = RedlockAddress::parse(
            "redlock://ann:s3cret@a:1,b,c:3/2?max_ttl=10s&node_timeout=50ms&tls_ca=/ca.pem&prefix=acme",
        )
        .unwrap();
        assert_eq!(
            address.members,
            [
                "redis://ann:s3cret@a:1/2?tls_ca=/ca.pem&prefix=acme",
                "redis://ann:s3cret@b/2?tls_ca=/ca.pem&prefix=acme",
                "redis://ann:s3cret@c:3/2?tls_ca=/ca.pem&prefix=acme"
            ]
        );
        assert_eq!(address.max_ttl, Duration::from_secs(10));
        assert_eq!(address.node_timeout, Duration::from_millis(50));
        assert_eq!(address.timeout_percent, 20);
        assert_eq!(address.drift, None);
        let strict =
            RedlockAddress::parse("redlock://a,b,c?drift=0.03&timeout_factor=0.05").unwrap();
        assert_eq!(strict.drift, Some(Drift::new(0.03).unwrap()));
        assert_eq!(strict.timeout_percent, 5);
        let tls = RedlockAddress::parse("redlock+tls://a,b,[::1]:3").unwrap();
        assert_eq!(tls.members[2], "rediss://[::1]:3");
    }

    #[test]
    fn invalid_addresses_are_explained() {
        for (url, word) in [
            ("redlock://a", "not a quorum"),
            ("redlock://a,b", "2 nodes"),
            ("redlock://a,b,c,d", "4 nodes"),
            ("redlock://a,b,A:6379", "named twice"),
            ("redlock://a,,b", "missing"),
            ("redlock://a,b,", "missing"),
            ("redlock://a,b,c?max_ttl=0s", "duration"),
            ("redlock://a,b,c?max_ttl=5", "duration"),
            ("redlock://a,b,c?nodes=5", "unknown parameter"),
            ("redlock://a,b,c?drift=0", "between 0 and 0.5"),
            ("redlock://a,b,c?drift=0.5", "between 0 and 0.5"),
            ("redlock://a,b,c?drift=NaN", "between 0 and 0.5"),
            ("redlock://a,b,c?drift=little", "such as 0.01"),
            ("redlock://a,b,c?timeout_factor=0", "between 0.01 and 0.5"),
            ("redlock://a,b,c?timeout_factor=0.6", "between 0.01 and 0.5"),
            ("redlock://a,b,c?timeout_factor=x", "between 0.01 and 0.5"),
        ] {
            let e = RedlockAddress::parse(url).unwrap_err();
            assert_eq!(e.kind(), ErrorKind::InvalidInput, "{url}");
            assert!(e.to_string().contains(word), "{url}: {e}");
            assert!(e.hint().is_some(), "{url}");
        }
        let e = RedlockAddress::parse("redlock://ann:s3cret@a,b").unwrap_err();
        assert!(!format!("{e} {e:?}").contains("s3cret"));
    }
}
