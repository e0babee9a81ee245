//! The other side on Redis: what no lock could do without, sent through the same client library.
//!
//! No fences, no line, no wake-ups, no renewal, no check of the answers' age: this is the floor, and
//! not a lock to use.

use std::sync::LazyLock;
use std::time::Instant;

use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, IntoConnectionInfo as _, ProtocolVersion, TlsCertificates};
use windlass::{DEFAULT_CALL_TIMEOUT, DEFAULT_TTL};

use super::latency::Latencies;
use super::several;
use super::spoilt;
use super::turns::Cycle;
use crate::exit::Exit;
use crate::failure::{Advice, Failure};

static RELEASE: LazyLock<redis::Script> = LazyLock::new(|| {
    redis::Script::new(
        "if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end \
         return 0",
    )
});

static RENEW: LazyLock<redis::Script> = LazyLock::new(|| {
    redis::Script::new(
        "if redis.call('GET', KEYS[1]) == ARGV[1] then \
           return redis.call('PEXPIRE', KEYS[1], ARGV[2]) \
         end \
         return 0",
    )
});

/// A connection of the kind that the library uses: one socket for all tasks, RESP3, and the
/// same limits.
pub(in crate::commands) async fn connect(url: &str) -> Result<MultiplexedConnection, Failure> {
    let mut connection = plain(&several::server_url(url).await?).await?;
    for script in [&RELEASE, &RENEW] {
        script
            .prepare_invoke()
            .load_async(&mut connection)
            .await
            .map_err(failure)?;
    }
    Ok(connection)
}

/// The URL of the first node of a quorum.
pub(super) fn first_node(url: &str) -> String {
    let (scheme, rest) = url.split_once("://").unwrap_or(("redlock", url));
    let scheme = match scheme {
        "redlock+tls" => "rediss",
        _ => "redis",
    };
    let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
    let (hosts, database) = rest.split_once('/').unwrap_or((rest, "0"));
    let first = hosts.split(',').next().unwrap_or(hosts);
    let ca = query.split('&').find(|pair| pair.starts_with("tls_ca="));
    let ca = ca.map(|ca| format!("?{ca}")).unwrap_or_default();
    format!("{scheme}://{first}/{database}{ca}")
}

/// The same, to one server of whatever kind, which is told no scripts.
pub(super) async fn plain(url: &str) -> Result<MultiplexedConnection, Failure> {
    let client = client(url)?;
    let config = AsyncConnectionConfig::new()
        .set_connection_timeout(Some(DEFAULT_CALL_TIMEOUT))
        .set_response_timeout(Some(DEFAULT_CALL_TIMEOUT));
    let connection = client.get_multiplexed_async_connection_with_config(&config);
    connection.await.map_err(failure)
}

fn client(url: &str) -> Result<redis::Client, Failure> {
    // The one parameter that is Windlass's own: a CA file.
    let (plain, ca) = match url.split_once("tls_ca=") {
        Some((front, rest)) => {
            let (path, others) = rest.split_once('&').unwrap_or((rest, ""));
            let plain = format!("{front}{others}");
            (plain.trim_end_matches(['?', '&']).to_owned(), Some(path))
        }
        None => (url.to_owned(), None),
    };
    let info = plain.as_str().into_connection_info().map_err(failure)?;
    let settings = info.redis_settings().clone();
    let info = info.set_redis_settings(settings.set_protocol(ProtocolVersion::RESP3));
    let Some(path) = ca else {
        return redis::Client::open(info).map_err(failure);
    };
    let root_cert = std::fs::read(path)
        .map_err(|e| Failure::internal(format!("the CA file {path} cannot be read: {e}")))?;
    let certificates = TlsCertificates {
        client_tls: None,
        root_cert: Some(root_cert),
    };
    redis::Client::build_with_tls(info, certificates).map_err(failure)
}

/// A failure of the bare client.
pub(in crate::commands) fn failure(error: redis::RedisError) -> Failure {
    Failure {
        message: format!("the bare client failed: {error}"),
        advice: Advice::Doctor,
        exit: Exit::UNREACHABLE,
    }
}

/// `SET NX PX`, then compare and delete.
pub(super) struct BareLock {
    connection: MultiplexedConnection,
    name: String,
}

impl BareLock {
    pub(super) fn new(connection: &MultiplexedConnection, name: String) -> BareLock {
        BareLock {
            connection: connection.clone(),
            name,
        }
    }

    /// Takes the lock and leaves it. Gives the owner.
    pub(super) async fn take(&mut self) -> Result<String, Failure> {
        // As any lock, a fresh identity each time.
        let owner = format!("{:032x}", rand::random::<u128>());
        let taken: bool = redis::cmd("SET")
            .arg(&self.name)
            .arg(&owner)
            .arg("NX")
            .arg("PX")
            .arg(DEFAULT_TTL.as_millis() as u64)
            .query_async(&mut self.connection)
            .await
            .map_err(failure)?;
        check(taken, "somebody else has a lock of this run")?;
        Ok(owner)
    }

    async fn give_back(&mut self, owner: &str) -> Result<(), Failure> {
        let deleted: u32 = redis::cmd("EVALSHA")
            .arg(RELEASE.get_hash())
            .arg(1)
            .arg(&self.name)
            .arg(owner)
            .query_async(&mut self.connection)
            .await
            .map_err(failure)?;
        check(deleted == 1, "a bare lock was lost within a cycle")
    }
}

impl Cycle for BareLock {
    async fn once(&mut self) -> Result<(), Failure> {
        let owner = self.take().await?;
        self.give_back(&owner).await
    }
}

/// Compare, then `PEXPIRE`, for one of several locks after the other.
pub(super) struct BareRenewals {
    connection: MultiplexedConnection,
    locks: Vec<(String, String)>,
    next: usize,
}

impl BareRenewals {
    /// Takes locks of those names, to renew them.
    pub(super) async fn of(
        connection: &MultiplexedConnection,
        names: impl IntoIterator<Item = String>,
    ) -> Result<BareRenewals, Failure> {
        let mut locks = Vec::new();
        for name in names {
            let owner = BareLock::new(connection, name.clone()).take().await?;
            locks.push((name, owner));
        }
        Ok(BareRenewals {
            connection: connection.clone(),
            locks,
            next: 0,
        })
    }
}

impl Cycle for BareRenewals {
    async fn once(&mut self) -> Result<(), Failure> {
        let (name, owner) = &self.locks[self.next];
        self.next = (self.next + 1) % self.locks.len();
        let renewed: u32 = redis::cmd("EVALSHA")
            .arg(RENEW.get_hash())
            .arg(1)
            .arg(name)
            .arg(owner)
            .arg(DEFAULT_TTL.as_millis() as u64)
            .query_async(&mut self.connection)
            .await
            .map_err(failure)?;
        check(renewed == 1, "a bare lock was lost while being renewed")
    }
}

/// Removes what was taken and left.
pub(super) async fn remove(
    connection: &MultiplexedConnection,
    names: impl IntoIterator<Item = String>,
) -> Result<(), Failure> {
    let mut command = redis::cmd("UNLINK");
    for name in names {
        command.arg(name);
    }
    let mut connection = connection.clone();
    command.query_async(&mut connection).await.map_err(failure)
}

/// Round trips, one at a time.
pub(super) async fn round_trips(
    connection: &MultiplexedConnection,
    count: u32,
    into: &mut Latencies,
) -> Result<(), Failure> {
    let mut connection = connection.clone();
    for _ in 0..count {
        let start = Instant::now();
        let (): () = redis::cmd("PING")
            .query_async(&mut connection)
            .await
            .map_err(failure)?;
        into.record(start.elapsed());
    }
    Ok(())
}

fn check(fine: bool, otherwise: &str) -> Result<(), Failure> {
    if fine { Ok(()) } else { Err(spoilt(otherwise)) }
}
