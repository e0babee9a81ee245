//! URLs that name several hosts.

use super::{
    GrantOptions, HostPort, KNOWN_PARAMETERS, StoreOptions, read_ca, replicas, wake_up_policy,
};
use crate::keys::Keys;
use windlass_core::error::{Error, Result};

/// The parts of `SCHEME://[USER:PASSWORD@]HOST[:PORT],…[/PART[/PART]][?KEY=VALUE&…]`.
pub(crate) struct MultiHostUrl {
    pub(crate) tls: bool,
    pub(crate) user: Option<String>,
    pub(crate) password: Option<String>,
    pub(crate) hosts: Vec<HostPort>,
    pub(crate) path: Vec<String>,
    parameters: Vec<(String, String)>,
}

impl MultiHostUrl {
    /// `example` is the hint of errors.
    pub(crate) fn parse(url: &str, default_port: u16, example: &str) -> Result<MultiHostUrl> {
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
            let twice = "the URL names user and password more than once";
            return Err(Error::invalid("connect", twice).with_hint(
                "name them once, before the first host; write %40 for an @ in a password",
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
                // With an @ after the "?", this may be part of a password.
                let shown = match query.contains('@') {
                    true => "the part before the \"?\"".to_owned(),
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
    pub(crate) fn take(&mut self, wanted: &str) -> Option<String> {
        let at = self.parameters.iter().position(|(key, _)| key == wanted)?;
        Some(self.parameters.remove(at).1)
    }

    /// Takes `tls_ca`, and reads the file.
    pub(crate) fn take_ca(&mut self) -> Result<Option<Vec<u8>>> {
        self.take("tls_ca").as_deref().map(read_ca).transpose()
    }

    /// Takes the parameters about the store.
    pub(crate) fn take_store_options(&mut self) -> Result<StoreOptions> {
        let replicas = replicas::from_parameters(
            self.take("replicas"),
            self.take("replicas_timeout"),
            self.take("replicas_on_disk"),
        )?;
        Ok(StoreOptions {
            keys: Keys::with_prefix(self.take("prefix").as_deref())?,
            grants: GrantOptions {
                replicas,
                wake_ups: wake_up_policy(self.take("wake_ups").as_deref())?,
            },
        })
    }

    /// Rejects parameters that were not taken.
    pub(crate) fn check_all_taken(&self) -> Result<()> {
        match self.parameters.first() {
            None => Ok(()),
            Some((key, _)) => {
                let unknown = format!("the URL has an unknown parameter {key:?}");
                Err(Error::invalid("connect", unknown).with_hint(format!(
                    "{KNOWN_PARAMETERS}; with Sentinel also sentinel_user, sentinel_password"
                )))
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

/// The decoded text; `None` if it is empty.
fn text(encoded: &str) -> Option<String> {
    Some(decode(encoded)).filter(|text| !text.is_empty())
}

/// Undoes percent encoding. Malformed sequences stay as they are.
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
    fn all_parts_of_a_url_are_parsed() {
        let url = "rediss+sentinel://ann:p%40%2F@a,B:1,[::1]:2/main%20one/3?tls_ca=x&replicas=1";
        let mut url = parse(url).unwrap();
        assert!(url.tls);
        assert_eq!(url.user.as_deref(), Some("ann"));
        assert_eq!(url.password.as_deref(), Some("p@/"));
        let shown: Vec<String> = url.hosts.iter().map(HostPort::to_string).collect();
        assert_eq!(shown, ["a:26379", "b:1", "[::1]:2"]);
        assert_eq!(url.path, ["main one", "3"]);
        assert_eq!(url.take("replicas").as_deref(), Some("1"));
        assert!(url.check_all_taken().is_err());
        assert_eq!(url.take("tls_ca").as_deref(), Some("x"));
        assert!(url.check_all_taken().is_ok());
        let password_alone = parse("redis+cluster://:secret@h").unwrap();
        assert_eq!(password_alone.user, None);
        assert_eq!(password_alone.password.as_deref(), Some("secret"));
    }

    #[test]
    fn malformed_and_repeated_hosts_are_rejected() {
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
}
