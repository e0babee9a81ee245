//! Store URLs: which store a URL names, and how it is opened.

use std::path::PathBuf;
use std::sync::{Arc, Weak};

use crate::lease::{Drift, Keeper};
use windlass_core::error::{Error, Result};
use windlass_core::memory::{Memory, MemoryStore};
use windlass_core::redact::{has_password_for_host, is_local, is_scheme, redact};
#[cfg(not(all(
    feature = "file",
    feature = "redis",
    feature = "redlock",
    feature = "etcd",
    feature = "postgres",
    feature = "zookeeper"
)))]
use windlass_core::store::unsupported::not_in_this_build;
use windlass_core::store::{Backend, GrantListener};

/// Opens the store that `url` names. It reports grants to the keeper. An error names the feature that is not compiled in.
pub(crate) async fn open(
    url: &str,
    keeper: &Arc<Keeper>,
    drift: Option<Drift>,
) -> Result<Arc<dyn Backend>> {
    let store = StoreUrl::parse(url)?;
    let weak: Weak<Keeper> = Arc::downgrade(keeper);
    let listener: Weak<dyn GrantListener> = weak;
    match store {
        StoreUrl::Memory { name } => {
            let clock = keeper.clock().clone();
            let store = match name {
                Some(name) => MemoryStore::shared(clock, &name),
                None => MemoryStore::private(clock),
            };
            store.register_client(keeper.client(), listener);
            Ok(Arc::new(Memory(store)))
        }
        #[cfg(feature = "file")]
        StoreUrl::File { path } => windlass_file::File::open(path, keeper.client(), listener).await,
        #[cfg(feature = "redis")]
        StoreUrl::Redis { url } => {
            let (limit, client) = (keeper.call_timeout(), keeper.client());
            windlass_redis::Redis::open(&url, limit, client, listener).await
        }
        #[cfg(feature = "redlock")]
        StoreUrl::Redlock { url } => {
            let mut address = windlass_redlock::RedlockAddress::parse(&url)?;
            address.drift = drift.or(address.drift);
            let (clock, limit) = (keeper.clock().clone(), keeper.call_timeout());
            let (shown, client) = (redact(&url), keeper.client());
            windlass_redlock::Quorum::open(address, shown, clock, limit, client, listener).await
        }
        #[cfg(feature = "etcd")]
        StoreUrl::Etcd { url } => {
            let (clock, limit) = (keeper.clock().clone(), keeper.call_timeout());
            windlass_etcd::Etcd::open(&url, limit, clock, listener).await
        }
        #[cfg(feature = "zookeeper")]
        StoreUrl::ZooKeeper { url } => {
            let limit = keeper.call_timeout();
            Ok(windlass_zookeeper::ZooKeeper::open(&url, limit, listener).await?)
        }
        #[cfg(feature = "postgres")]
        StoreUrl::Postgres { url } => {
            let (limit, client) = (keeper.call_timeout(), keeper.client());
            windlass_postgres::Postgres::open(&url, limit, client, listener).await
        }
        #[cfg(not(feature = "file"))]
        StoreUrl::File { .. } => Err(not_in_this_build("file", "file")),
        #[cfg(not(feature = "redis"))]
        StoreUrl::Redis { .. } => Err(not_in_this_build("redis", "redis")),
        #[cfg(not(feature = "redlock"))]
        StoreUrl::Redlock { .. } => {
            let _ = drift;
            Err(not_in_this_build("redlock", "redlock"))
        }
        #[cfg(not(feature = "etcd"))]
        StoreUrl::Etcd { .. } => Err(not_in_this_build("etcd", "etcd")),
        #[cfg(not(feature = "postgres"))]
        StoreUrl::Postgres { .. } => Err(not_in_this_build("postgres", "postgres")),
        #[cfg(not(feature = "zookeeper"))]
        StoreUrl::ZooKeeper { .. } => Err(not_in_this_build("zookeeper", "zookeeper")),
    }
}

/// A store URL, parsed as far as choosing a store needs.
#[derive(Clone, Debug, PartialEq, Eq)]
enum StoreUrl {
    Memory { name: Option<String> },
    File { path: PathBuf },
    Redis { url: String },
    Etcd { url: String },
    Redlock { url: String },
    Postgres { url: String },
    ZooKeeper { url: String },
}

/// The known schemes, for error messages.
const SCHEMES: &str = "memory:, file:PATH, redis://HOST, rediss://HOST, redis+unix:///SOCKET, \
                       redis+sentinel://HOST,HOST/SERVICE, redis+cluster://HOST,HOST, \
                       redlock://HOST,HOST,HOST, etcd://HOST,HOST, etcds://HOST, \
                       postgres://USER@HOST/DATABASE, zookeeper://HOST,HOST/CHROOT, zookeeper+tls://HOST";

impl StoreUrl {
    fn parse(text: &str) -> Result<StoreUrl> {
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
            .with_hint(did_you_mean(text)));
        };
        if scheme != "file" && scheme != "memory" {
            refuse_unescaped(text, scheme, rest)?;
        } else if !is_local(text) {
            let message = format!("{:?} names a server, which {scheme}: has not", redact(text));
            return Err(Error::invalid("connect", message).with_hint(format!(
                "known URLs: {SCHEMES}; for a file whose name contains a colon and an @, write file:./NAME"
            )));
        }
        let with_servers = |example: &str| {
            if !rest.starts_with("//") || rest.len() == 2 {
                let message = format!("{:?} names no server", redact(text));
                let hint = format!("for example {example}");
                return Err(Error::invalid("connect", message).with_hint(hint));
            }
            match has_password_for_host(text) {
                true => Err(no_at(text)),
                false => Ok(text.to_owned()),
            }
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
                if let Some(below_home) = path.strip_prefix("~/") {
                    return Err(tilde(below_home));
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
            "postgres" | "postgresql" => {
                let url = with_servers("postgres://app:secret@127.0.0.1:5432/shop")?;
                Ok(StoreUrl::Postgres { url })
            }
            _ => Err(Error::invalid(
                "connect",
                format!("unknown scheme {scheme:?} in {:?}", redact(text)),
            )
            .with_hint(did_you_mean(text))),
        }
    }
}

/// The URL that a path, or a host with a port, was probably meant as. Nothing that may be a password is repeated.
fn did_you_mean(text: &str) -> String {
    let known = format!("known URLs: {SCHEMES}");
    if text.contains('@') || text.contains("://") || redact(text) != text {
        return known;
    }
    let is_path = text.starts_with(['/', '.', '~']) || text.ends_with(".db");
    let meant = match text.rsplit_once(':') {
        _ if is_path => format!("file:{text}"),
        Some((host, "2379")) => format!("etcd://{host}:2379"),
        Some((host, "5432")) => format!("postgres://{host}:5432/DATABASE"),
        Some((host, "2181")) => format!("zookeeper://{host}:2181"),
        Some((_, port)) if port.parse::<u16>().is_ok() => format!("redis://{text}"),
        _ => return known,
    };
    format!("did you mean {meant}?")
}

/// The shell expands a `~` only at the start of a word, and a file below a folder of that name would exclude nobody.
fn tilde(below_home: &str) -> Error {
    let home = std::env::home_dir().filter(|home| home.is_absolute());
    let home = home.map_or("$HOME".to_owned(), |home| home.display().to_string());
    let message = "the ~ in file:~/… is not expanded";
    let hint = format!("write file:{home}/{below_home}, or file:./~/… for a folder of that name");
    Error::invalid("connect", message).with_hint(hint)
}

/// A store would repeat the host that is none, and a resolver would send it to a name server.
fn no_at(text: &str) -> Error {
    let message = format!("in {:?}, a port is not a number", redact(text));
    Error::invalid("connect", message).with_hint(
        "credentials end with an @: USER:PASSWORD@HOST:PORT; a port is a number below 65536",
    )
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
    fn paths_and_hosts_get_the_url_that_was_meant() {
        for (text, meant) in [
            ("/var/lib/locks.db", "file:/var/lib/locks.db?"),
            ("./locks", "file:./locks?"),
            ("locks.db", "file:locks.db?"),
            ("localhost:6379", "redis://localhost:6379?"),
            ("10.0.0.1:7000", "redis://10.0.0.1:7000?"),
            ("db:2379", "etcd://db:2379?"),
            ("db:5432", "postgres://db:5432/DATABASE?"),
            ("zk:2181", "zookeeper://zk:2181?"),
        ] {
            let error = StoreUrl::parse(text).unwrap_err();
            let hint = error.hint().unwrap();
            assert_eq!(hint, format!("did you mean {meant}"), "{text}");
        }
        for text in [
            "s3cret@h:6379",
            "ann:s3cret@h:6379",
            "http://h:80",
            "localhost",
        ] {
            let error = StoreUrl::parse(text).unwrap_err();
            let hint = error.hint().unwrap();
            assert!(hint.starts_with("known URLs:"), "{text}: {hint}");
        }
        let error = StoreUrl::parse("file:~/locks.db").unwrap_err();
        assert!(error.hint().unwrap().contains("/locks.db"), "{error:?}");
        assert!(StoreUrl::parse("file:./~/locks.db").is_ok());
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
