//! Store URLs: which store a URL names.

use std::path::PathBuf;

use windlass_core::error::{Error, Result};
use windlass_core::redact::{is_scheme, redact};

/// A store URL, parsed as far as choosing a store needs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum StoreUrl {
    Memory { name: Option<String> },
    File { path: PathBuf },
    Redis { url: String },
    Etcd { url: String },
    Redlock { url: String },
    ZooKeeper { url: String },
}

/// The known schemes, for error messages.
const SCHEMES: &str = "memory:, file:PATH, redis://HOST, rediss://HOST, redis+unix:///SOCKET, \
                       redis+sentinel://HOST,HOST/SERVICE, redis+cluster://HOST,HOST, \
                       redlock://HOST,HOST,HOST, etcd://HOST,HOST, etcds://HOST, \
                       zookeeper://HOST,HOST/CHROOT, zookeeper+tls://HOST";

impl StoreUrl {
    pub(crate) fn parse(text: &str) -> Result<StoreUrl> {
        // With an @ and without ://, the part before the colon may be a user or a password.
        let has_scheme = |scheme: &str| {
            is_scheme(scheme) && (!text.contains('@') || text[scheme.len()..].starts_with("://"))
        };
        let Some((scheme, rest)) = text
            .split_once(':')
            .filter(|(scheme, _)| has_scheme(scheme) || matches!(*scheme, "file" | "memory"))
        else {
            return Err(Error::invalid(
                "connect",
                format!("{:?} is not a store URL: it has no scheme", redact(text)),
            )
            .with_hint(format!("known URLs: {SCHEMES}")));
        };
        if scheme != "file" && scheme != "memory" {
            refuse_unescaped(text, scheme, rest)?;
        }
        let with_servers = |example: &str| match rest.starts_with("//") && rest.len() > 2 {
            true => Ok(text.to_owned()),
            false => Err(
                Error::invalid("connect", format!("{:?} names no server", redact(text)))
                    .with_hint(format!("for example {example}")),
            ),
        };
        // Redis clients give a fragment meanings of their own, such as disabling certificate checks.
        if scheme.starts_with("redis") || scheme.starts_with("redlock") || scheme == "unix" {
            refuse_fragment(text)?;
        }
        match scheme {
            "memory" => Ok(StoreUrl::Memory {
                name: Some(rest.trim_start_matches('/'))
                    .filter(|n| !n.is_empty())
                    .map(str::to_owned),
            }),
            "file" => {
                // file:relative, file:/absolute and file:///absolute
                let path = rest.strip_prefix("//").unwrap_or(rest);
                if path.is_empty() {
                    return Err(Error::invalid("connect", "file: needs a path")
                        .with_hint("for example file:/var/lib/app/locks.db"));
                }
                Ok(StoreUrl::File { path: path.into() })
            }
            "redis" | "rediss" | "redis+unix" | "unix" | "redis+sentinel" | "rediss+sentinel"
            | "redis+cluster" | "rediss+cluster" => {
                let url = with_servers("redis://127.0.0.1:6379")?;
                Ok(StoreUrl::Redis { url })
            }
            "redlock" | "redlock+tls" => {
                let url = with_servers("redlock://10.0.0.1,10.0.0.2,10.0.0.3")?;
                Ok(StoreUrl::Redlock { url })
            }
            "zookeeper" | "zookeeper+tls" => {
                let url = with_servers("zookeeper://10.0.0.1:2181,10.0.0.2:2181/app")?;
                Ok(StoreUrl::ZooKeeper { url })
            }
            "etcd" | "etcds" => {
                let url = with_servers("etcd://127.0.0.1:2379")?;
                Ok(StoreUrl::Etcd { url })
            }
            _ => Err(Error::invalid(
                "connect",
                format!("unknown scheme {scheme:?} in {:?}", redact(text)),
            )
            .with_hint(format!("known URLs: {SCHEMES}"))),
        }
    }
}

/// Refuses a URL whose credentials end in another part of it, because of a `/`, `?` or `&` that is not escaped. A store
/// would repeat that part in an error: as a host with an invalid port, or as an unknown parameter.
fn refuse_unescaped(text: &str, scheme: &str, rest: &str) -> Result<()> {
    let rest = rest.strip_prefix("//").unwrap_or(rest);
    let (front, query) = rest.split_once('?').unwrap_or((rest, ""));
    let is_socket = scheme == "unix" || scheme == "redis+unix";
    // The path of a socket, and that of a file in a parameter, may contain an @.
    let path = front.split_once('/').map_or("", |(_, path)| path);
    let misplaced = !is_socket && path.contains('@');
    let (mut unnamed, mut password_ends) = (false, false);
    for pair in query.split('&').filter(|pair| !pair.is_empty()) {
        let (name, value) = pair.split_once('=').unwrap_or(("", pair));
        let is_file = matches!(
            name,
            "tls_ca" | "tls_cert" | "tls_key" | "ca" | "cert" | "key"
        );
        unnamed |=
            name.is_empty() || name.contains(|c: char| !c.is_ascii_alphanumeric() && c != '_');
        password_ends |= !is_socket && !is_file && value.contains('@') && !front.contains('@');
    }
    if !misplaced && !unnamed && !password_ends {
        return Ok(());
    }
    let message = format!("the URL {} has parts that belong nowhere", redact(text));
    Err(Error::invalid("connect", message).with_hint(
        "in a password, write %2F for /, %3F for ?, %26 for &, %23 for # and %40 for @; parameters are NAME=VALUE",
    ))
}

/// Refuses a fragment without repeating it: it may be the end of a password.
fn refuse_fragment(text: &str) -> Result<()> {
    let Some((front, _)) = text.split_once('#') else {
        return Ok(());
    };
    let front = match front.contains('@') {
        true => redact(front),
        // This may be a host or still a password.
        false => front.split(':').next().unwrap_or("").to_owned() + ":…",
    };
    Err(Error::invalid(
        "connect",
        format!("the URL {front} has a fragment (after #), which is not supported"),
    )
    .with_hint("remove it, or write %23 for a # in a password; use ?tls_ca=FILE for a private CA"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use windlass_core::error::ErrorKind;

    #[test]
    fn url_fragment_is_refused_and_not_repeated() {
        for url in [
            "redis://host:6379#insecure",
            "rediss://host#insecure",
            "rediss://ann:se#cret@host",
            "rediss://ann:secret@host/0?tls_ca=x#insecure",
            "rediss+sentinel://host/main#insecure",
            "redis+cluster://host#",
            "redlock+tls://a,b,c#insecure",
            "redis+unix:///run/redis.sock#insecure",
        ] {
            let error = StoreUrl::parse(url).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidInput, "{url}");
            let said = format!("{error:?} {error}");
            assert!(said.contains('#') && error.hint().is_some(), "{said}");
            assert!(!said.contains("cret") && !said.contains(":se"), "{said}");
        }
        assert!(StoreUrl::parse("rediss://ann:se%23cret@host").is_ok());
        assert!(StoreUrl::parse("file:/var/#1.db").is_ok());
    }

    #[test]
    fn chooses_by_scheme() {
        let memory = |name: Option<&str>| StoreUrl::Memory {
            name: name.map(str::to_owned),
        };
        assert_eq!(StoreUrl::parse("memory:").unwrap(), memory(None));
        assert_eq!(StoreUrl::parse("memory:x").unwrap(), memory(Some("x")));
        for (text, path) in [
            ("file:/a/b.db", "/a/b.db"),
            ("file:///a/b.db", "/a/b.db"),
            ("file:b.db", "b.db"),
        ] {
            assert_eq!(
                StoreUrl::parse(text).unwrap(),
                StoreUrl::File { path: path.into() }
            );
        }
        assert!(matches!(
            StoreUrl::parse("redis://h:1/2").unwrap(),
            StoreUrl::Redis { .. }
        ));
    }

    #[test]
    fn invalid_url_is_an_error_with_a_hint() {
        for (bad, word) in [
            ("localhost", "no scheme"),
            ("http://x", "unknown scheme"),
            ("file:", "needs a path"),
            ("redis:localhost", "names no server"),
            ("redis://", "names no server"),
        ] {
            let e = StoreUrl::parse(bad).unwrap_err();
            assert_eq!(e.kind(), ErrorKind::InvalidInput);
            assert!(e.to_string().contains(word), "{e}");
            assert!(e.hint().is_some());
        }
    }

    #[test]
    fn unknown_scheme_prints_no_password() {
        let e = StoreUrl::parse("etcdd://ann:s3cret@h").unwrap_err();
        assert!(!format!("{e} {e:?}").contains("s3cret"));
    }

    #[test]
    fn unescaped_password_is_refused_and_not_repeated() {
        for url in [
            "redis://ann:p/s3cret@h",
            "redis://ann:p?s3cret@h",
            "redis://ann:p?x=s3cret@h",
            "etcd://ann:1/s3cret@h",
            "zookeeper://ann:p&?s3cret@h/app",
            "redis+unix:///run/r.sock?pass=p&s3cret",
            "redis//ann:s3cret@h",
            "ann:s3cret@h",
            "s3cret@h:6379",
        ] {
            let error = StoreUrl::parse(url).expect_err(url);
            assert_eq!(error.kind(), ErrorKind::InvalidInput, "{url}");
            let said = format!("{error:?} {error}");
            assert!(error.hint().is_some() && !said.contains("s3cret"), "{said}");
        }
        for url in [
            "redis://ann:p%2Fq@h/1?tls_ca=/etc/a.pem",
            "redis://h?tls_ca=/etc/a@b.pem",
            "redis+unix:///run/a@b.sock?db=1",
            "file:/var/lib/a@b?c.db",
        ] {
            assert!(StoreUrl::parse(url).is_ok(), "{url}");
        }
    }
}
