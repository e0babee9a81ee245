//! `postgres://` and `postgresql://` URLs.

use std::fmt;
use std::str::FromStr as _;

use tokio_postgres::Config;
use tokio_postgres::config::SslMode;

use windlass_core::error::{Error, Result};
use windlass_core::redact::redact;

const EXAMPLE: &str = "for example postgres://app:secret@127.0.0.1:5432/shop?schema=windlass";
/// The schema of Windlass's tables by default.
pub(super) const DEFAULT_SCHEMA: &str = "windlass";
/// PostgreSQL's limit on the length of an identifier.
const MAX_SCHEMA_BYTES: usize = 63;
const DEFAULT_CONNECTIONS: usize = 2;
const MAX_CONNECTIONS: usize = 64;

/// A parsed URL.
#[derive(Clone)]
pub(super) struct PostgresAddress {
    /// How to reach the server, or a pooler in front of it.
    pub(super) config: Config,
    /// How to reach the server for `LISTEN`, if that is another URL.
    pub(super) listen: Option<Config>,
    pub(super) schema: String,
    /// The number of connections for decisions.
    pub(super) connections: usize,
}

impl PostgresAddress {
    pub(super) fn parse(url: &str) -> Result<PostgresAddress> {
        let invalid = |message: String| Error::invalid("connect", message).with_hint(EXAMPLE);
        let (front, query) = url.split_once('?').unwrap_or((url, ""));
        let mut schema = DEFAULT_SCHEMA.to_owned();
        let mut connections = DEFAULT_CONNECTIONS;
        let mut listen = None;
        let mut rest = Vec::new();
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            match name {
                "schema" => schema = unescape(value),
                "listen" => listen = Some(unescape(value)),
                "connections" => {
                    let number = value.parse().ok();
                    connections = number
                        .filter(|n| (1..=MAX_CONNECTIONS).contains(n))
                        .ok_or_else(|| {
                            let range = format!("1 to {MAX_CONNECTIONS}");
                            invalid(format!("connections= is a number from {range}"))
                        })?;
                }
                _ => rest.push(pair),
            }
        }
        check_schema(&schema)?;
        let joined = match rest.is_empty() {
            true => front.to_owned(),
            false => format!("{front}?{}", rest.join("&")),
        };
        Ok(PostgresAddress {
            config: parse_config(&joined)?,
            listen: listen.as_deref().map(parse_config).transpose()?,
            schema,
            connections,
        })
    }
}

/// Refuses a name that cannot be quoted.
pub(super) fn check_schema(schema: &str) -> Result<()> {
    let quotes = ['"', '\0', '\'', '\\'];
    if !schema.is_empty() && schema.len() <= MAX_SCHEMA_BYTES && !schema.contains(quotes) {
        return Ok(());
    }
    let message = format!(
        "schema= is a name of 1 to {MAX_SCHEMA_BYTES} bytes without quotation marks and backslashes"
    );
    Err(Error::invalid("connect", message).with_hint(EXAMPLE))
}

fn parse_config(url: &str) -> Result<Config> {
    let invalid = |message: String| Error::invalid("connect", message).with_hint(EXAMPLE);
    if !url.starts_with("postgres://") && !url.starts_with("postgresql://") {
        return Err(invalid("listen= is a postgres:// URL".to_owned()));
    }
    // The driver's message may repeat a part of the URL, which may be a password.
    let parsed = Config::from_str(url);
    let mut config = parsed.map_err(|_| invalid(format!("{:?} is not valid", redact(url))))?;
    if config.get_hosts().is_empty() && config.get_hostaddrs().is_empty() {
        return Err(invalid(format!("{:?} names no server", redact(url))));
    }
    match config.get_ssl_mode() {
        SslMode::Disable | SslMode::Prefer => config.ssl_mode(SslMode::Disable),
        _ => {
            let message = "sslmode=require is not supported yet".to_owned();
            return Err(Error::invalid("connect", message).with_hint(
                "use a tunnel, or a pooler on this machine that speaks TLS to the server",
            ));
        }
    };
    if config.get_application_name().is_none() {
        config.application_name("windlass");
    }
    Ok(config)
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

impl fmt::Debug for PostgresAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PostgresAddress({})", self.schema)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use windlass_core::error::ErrorKind;

    #[test]
    fn urls_name_server_schema_and_connections() {
        let plain = PostgresAddress::parse("postgres://ann@db/shop").unwrap();
        assert_eq!(plain.schema, "windlass");
        assert_eq!(plain.config.get_dbname(), Some("shop"));
        assert_eq!(plain.config.get_application_name(), Some("windlass"));
        let all = PostgresAddress::parse(
            "postgresql://ann:p%40ss@a:1,b:2/shop?schema=my%20locks&connections=8\
             &application_name=jobs&target_session_attrs=read-write\
             &listen=postgres%3A%2F%2Fann%3Apw%40direct%2Fshop",
        )
        .unwrap();
        assert_eq!(all.schema, "my locks");
        assert_eq!(all.connections, 8);
        assert_eq!(all.config.get_hosts().len(), 2);
        assert_eq!(all.config.get_password(), Some(&b"p@ss"[..]));
        assert_eq!(all.config.get_application_name(), Some("jobs"));
        assert_eq!(all.listen.unwrap().get_password(), Some(&b"pw"[..]));
    }

    #[test]
    fn invalid_urls_are_explained_without_the_password() {
        for (url, word) in [
            ("postgres://ann:s3cret@db/x?schema=", "schema="),
            ("postgres://ann:s3cret@db/x?schema=a%22b", "schema="),
            ("postgres://ann:s3cret@db/x?connections=0", "connections="),
            ("postgres://ann:s3cret@db/x?connections=x", "connections="),
            ("postgres://ann:s3cret@db/x?colour=red", "not valid"),
            ("postgres://ann:s3cret@db:x/x", "not valid"),
            ("postgres://ann:s3cret@/x", "names no server"),
            (
                "postgres://ann:s3cret@db/x?listen=http%3A%2F%2Fs3cret",
                "listen=",
            ),
            ("postgres://ann:s3cret@db/x?sslmode=require", "sslmode"),
        ] {
            let e = PostgresAddress::parse(url).unwrap_err();
            assert_eq!(e.kind(), ErrorKind::InvalidInput, "{url}");
            let said = format!("{e} {e:?}");
            assert!(said.contains(word), "{url}: {said}");
            assert!(!said.contains("s3cret"), "{said}");
            assert!(e.hint().is_some());
        }
        let address = PostgresAddress::parse("postgres://ann:s3cret@db/x").unwrap();
        assert!(!format!("{address:?}").contains("s3cret"));
    }
}
