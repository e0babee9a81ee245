//! `redis://` — one Redis or Valkey server; `redis+sentinel://` — the one that sentinels name;
//! `redis+cluster://` — several that share the keys.

mod address;
mod batch;
mod bloom;
mod claim_command;
mod claims;
mod cluster;
mod connection;
mod connector;
mod counter;
mod diagnose;
#[cfg(test)]
mod equivalence;
mod errors;
mod first_enough;
mod gate;
mod keys;
mod latch;
mod limit;
mod master_epoch;
mod notifications;
mod once;
mod permissions;
#[cfg(test)]
mod proof;
#[cfg(test)]
mod proof_bed;
#[cfg(test)]
mod proof_latch;
mod quorum_node;
mod record;
mod replica_ack;
mod replicas;
mod router;
mod script;
mod seen;
mod sentinel;
mod slots;
mod topic;
mod topology;

use std::sync::{Arc, Weak};
use std::time::Duration;

use redis::{ConnectionInfo, IntoConnectionInfo, ProtocolVersion, TlsCertificates, Value};

use self::batch::Batcher;
use self::claims::RedisClaims;
use self::cluster::Cluster;
use self::connection::Connection;
use self::connector::Connector;
pub use self::quorum_node::{
    Confirmed, NodeClient, NodeClient as Voter, NodeStatus, NodeStatus as Standing,
    RedisNodeClient, RedisNodeClient as RedisVoter,
};
use self::router::Router;
use self::sentinel::Sentinels;
use windlass_core::FenceStrength;
use windlass_core::error::{Error, Result};
use windlass_core::redact::redact;
use windlass_core::store::limit::{LimitRequest, LimitStore};
use windlass_core::store::{
    Backend, Capabilities, ClaimStore, Finding, GateStore, GrantListener, LatchStore,
    NotificationStore, Pending, Replicas,
};

/// The `redis://` backend, as one coordinator sees it.
#[derive(Clone, Debug)]
pub struct Redis {
    address: Arc<str>,
    router: Arc<Router>,
    capabilities: Capabilities,
    replicas: Option<Replicas>,
    claims: RedisClaims,
    limits: Batcher<LimitRequest>,
}

impl Redis {
    pub async fn open(
        url: &str,
        call_timeout: Duration,
        id: u64,
        wakeups: Weak<dyn GrantListener>,
    ) -> Result<Arc<dyn Backend>> {
        let address: Arc<str> = redact(url).into();
        let opened = Redis::reach(url, call_timeout, id, wakeups).await;
        let (link, capabilities, replicas) =
            opened.map_err(|e| e.with_backend(address.to_string()))?;
        let link = Arc::new(link);
        Ok(Arc::new(Redis {
            address,
            capabilities,
            replicas,
            claims: RedisClaims::new(Arc::clone(&link)),
            limits: Batcher::start(Arc::clone(&link), &script::LIMIT),
            router: link,
        }))
    }

    /// Connects to what the URL names.
    async fn reach(
        url: &str,
        call_timeout: Duration,
        id: u64,
        wakeups: Weak<dyn GrantListener>,
    ) -> Result<(Router, Capabilities, Option<Replicas>)> {
        let scheme = url.split("://").next().unwrap_or("");
        if scheme.ends_with("+cluster") {
            let (cluster, replicas) = Cluster::open(url, call_timeout, id, wakeups).await?;
            return Ok((Router::Cluster(cluster), CLUSTER, replicas));
        }
        let (dialler, capabilities, replicas) = match scheme.ends_with("+sentinel") {
            true => {
                let (sentinels, replicas) = Sentinels::parse(url, call_timeout)?;
                (Connector::Master(sentinels), SENTINEL, replicas)
            }
            false => {
                let (client, replicas) = client(url)?;
                (Connector::Server(client), CAPABILITIES, replicas)
            }
        };
        let sentinels = match &dialler {
            Connector::Master(sentinels) => Some(Arc::clone(sentinels)),
            _ => None,
        };
        let link = Connection::new(dialler, call_timeout, id, wakeups);
        // Before the first dial: whom it reaches may be replaced meanwhile.
        if let Some(sentinels) = sentinels {
            sentinel::watch(&sentinels, &link);
        }
        link.connect().await?;
        Ok((Router::Single(link), capabilities, replicas))
    }
}

impl Backend for Redis {
    fn address(&self) -> &str {
        &self.address
    }

    fn capabilities(&self) -> Capabilities {
        self.capabilities
    }

    fn replicas(&self) -> Option<Replicas> {
        self.replicas
    }

    fn claims(&self) -> Arc<dyn ClaimStore> {
        Arc::new(self.claims.clone())
    }

    fn gates(&self) -> Arc<dyn GateStore> {
        Arc::new(self.clone())
    }

    fn counters(&self) -> Arc<dyn windlass_core::store::counter::CounterStore> {
        Arc::new(self.clone())
    }

    fn limits(&self) -> Arc<dyn LimitStore> {
        Arc::new(self.clone())
    }

    fn latches(&self) -> Arc<dyn LatchStore> {
        Arc::new(self.clone())
    }

    fn notifications(&self) -> Arc<dyn NotificationStore> {
        Arc::new(self.clone())
    }

    fn blooms(&self) -> Arc<dyn windlass_core::store::BloomStore> {
        Arc::new(self.clone())
    }

    fn permissions(&self) -> Arc<dyn windlass_core::store::PermissionStore> {
        Arc::new(self.clone())
    }

    fn seen(&self) -> Arc<dyn windlass_core::store::SeenStore> {
        Arc::new(self.clone())
    }

    fn onces(&self) -> Arc<dyn windlass_core::store::OnceStore> {
        Arc::new(self.clone())
    }

    fn topics(&self) -> Arc<dyn windlass_core::store::TopicStore> {
        Arc::new(self.clone())
    }

    fn examine(&self) -> Pending<'_, Vec<Finding>> {
        Box::pin(diagnose::diagnose(&self.router))
    }
}

pub(crate) const CAPABILITIES: Capabilities = Capabilities::new(
    "redis",
    FenceStrength::SingleNode,
    "all that reach the server",
    "as the server's persistence; a failover may forget the newest grants",
);

const SENTINEL: Capabilities = Capabilities::new(
    "redis+sentinel",
    FenceStrength::SingleNode,
    "all that reach the sentinels and the servers",
    "survives the master; a failover may forget the newest grants, and fences go on \
                 growing over it",
);

const CLUSTER: Capabilities = Capabilities::new(
    "redis+cluster",
    FenceStrength::SingleNode,
    "all that reach the nodes",
    "survives a master that has a replica; a failover may forget the newest grants, and \
                 fences go on growing over it",
);

/// Redis counts in milliseconds. Rounded up, so that no claim ends before it was promised to.
fn millis(ttl: Duration) -> u64 {
    u64::try_from(ttl.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX)
}

/// `-1` means for ever; what is gone by now has no time left.
fn time_left(ms: i64) -> Option<Duration> {
    (ms != -1).then(|| Duration::from_millis(ms.max(0) as u64))
}

fn bytes(value: &Value) -> Option<&[u8]> {
    match value {
        Value::BulkString(bytes) => Some(bytes),
        _ => None,
    }
}

/// What the URL asks for: user, password, database, TLS (`tls_ca=FILE` names a CA of one's own).
fn client(url: &str) -> Result<(redis::Client, Option<Replicas>)> {
    let malformed = |e: redis::RedisError| {
        Error::invalid("connect", format!("the URL is malformed: {e}")).with_hint(
            "redis://USER:PASSWORD@HOST:PORT/DB, rediss://… for TLS, redis+unix:///SOCKET?db=DB",
        )
    };
    let (url, ca) = take_parameter(url, "tls_ca");
    let (url, count) = take_parameter(&url, "replicas");
    let (url, timeout) = take_parameter(&url, "replicas_timeout");
    let (url, on_disk) = take_parameter(&url, "replicas_on_disk");
    let replicas = replicas::from_parameters(count, timeout, on_disk)?;
    nothing_else(&url)?;
    let tls = url.starts_with("rediss:");
    if ca.is_some() && !tls {
        return Err(
            Error::invalid("connect", "tls_ca is for TLS, and this URL asks for none")
                .with_hint("write rediss:// for TLS"),
        );
    }
    let info: ConnectionInfo = url.as_str().into_connection_info().map_err(malformed)?;
    let settings = info
        .redis_settings()
        .clone()
        .set_protocol(ProtocolVersion::RESP3);
    let info = info.set_redis_settings(settings);
    if !tls {
        let client = redis::Client::open(info).map_err(malformed)?;
        return Ok((client, replicas));
    }
    // Fails only when a provider is there already, which is as good.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let root_cert = match ca {
        Some(path) => Some(std::fs::read(&path).map_err(|e| {
            Error::invalid(
                "connect",
                format!("the CA file {path:?} cannot be read: {e}"),
            )
        })?),
        None => None,
    };
    let certificates = TlsCertificates {
        client_tls: None,
        root_cert,
    };
    let client = redis::Client::build_with_tls(info, certificates).map_err(malformed)?;
    Ok((client, replicas))
}

/// Refuses what is left of the query: a misspelt parameter must not be ignored.
fn nothing_else(url: &str) -> Result<()> {
    let query = url.split_once('?').map_or("", |(_, query)| query);
    let query = query.split_once('#').map_or(query, |(query, _)| query);
    // Of a socket, that is where the driver looks for them.
    let known: &[&str] = match url.starts_with("redis+unix:") || url.starts_with("unix:") {
        true => &["db", "user", "pass"],
        false => &[],
    };
    let mut seen = Vec::new();
    for pair in query.split('&').filter(|pair| !pair.is_empty()) {
        let key = pair.split('=').next().unwrap_or(pair);
        if !known.contains(&key) || seen.contains(&key) {
            let what = match seen.contains(&key) || OWN_PARAMETERS.contains(&key) {
                true => "the URL says it twice",
                false => "the URL has a parameter that means nothing here",
            };
            let database = "a database is named in the path: redis://HOST/3";
            return Err(
                Error::invalid("connect", format!("{what}: {key:?}")).with_hint(match key {
                    "db" => database,
                    _ => "tls_ca, replicas, replicas_timeout and replicas_on_disk mean something, once each",
                }),
            );
        }
        seen.push(key);
    }
    Ok(())
}

/// Those that are ours and not the driver's.
const OWN_PARAMETERS: [&str; 4] = ["tls_ca", "replicas", "replicas_timeout", "replicas_on_disk"];

/// Takes one parameter of the query out of a URL.
fn take_parameter(url: &str, wanted: &str) -> (String, Option<String>) {
    let Some((front, query)) = url.split_once('?') else {
        return (url.to_owned(), None);
    };
    let mut found = None;
    let rest: Vec<&str> = query
        .split('&')
        .filter(|pair| match pair.split_once('=') {
            // A second one is left, and refused with what nobody took.
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
    fn a_parameter_that_nobody_takes_is_refused() {
        for url in [
            "redis://h?replica=1",
            "redis://h?db=3",
            "redis://h/3?foo",
            "redis://h?replicas=1&replicas=2",
            "redis://h?tls_ca=/etc/ca.pem",
            "redis+unix:///run/redis.sock?databse=3",
            "redis+unix:///run/redis.sock?db=3&db=4",
        ] {
            let error = client(url).map(drop).expect_err(url);
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
            "redis://u:p@h:1/3?replicas=1&replicas_timeout=1s",
            "redis+unix:///run/redis.sock?db=3&user=u&pass=p",
        ] {
            client(url).map(drop).expect(url);
        }
    }

    #[test]
    fn parameters_of_our_own_do_not_reach_the_driver() {
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
}
