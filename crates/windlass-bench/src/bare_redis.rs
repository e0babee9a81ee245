//! Bare operations on Redis: the minimum that any lock must send, through the same client library.
//!
//! There are no fencing tokens, wait queue, notifications, renewal or validity checks: this is a lower bound, not a
//! lock to use.

use std::sync::LazyLock;
use std::time::Instant;

use redis::aio::MultiplexedConnection;
use windlass::Lease;
use windlass_term::{Failure, raw_redis};

use crate::interleave::Cycle;
use crate::invalid_run;
use crate::latency::Latencies;
use crate::redis_topology;

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

/// A connection like that of the library, to the server that keeps the data, with the scripts loaded.
pub(crate) async fn connect(url: &str) -> Result<MultiplexedConnection, Failure> {
    let mut connection = raw_redis::connect(&redis_topology::server_url(url).await?).await?;
    for script in [&RELEASE, &RENEW] {
        script
            .prepare_invoke()
            .load_async(&mut connection)
            .await
            .map_err(raw_redis::failure)?;
    }
    Ok(connection)
}

/// The URL of the first node of a quorum.
pub(crate) fn first_node(url: &str) -> String {
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

/// `SET NX PX`, then compare and delete.
pub(crate) struct BareLock {
    connection: MultiplexedConnection,
    name: String,
}

impl BareLock {
    pub(crate) fn new(connection: &MultiplexedConnection, name: String) -> BareLock {
        BareLock {
            connection: connection.clone(),
            name,
        }
    }

    /// Acquires the lock without releasing it. Returns the owner.
    pub(crate) async fn acquire(&mut self) -> Result<String, Failure> {
        // A new owner each time, as in any lock.
        let owner = format!("{:032x}", rand::random::<u128>());
        let acquired: bool = redis::cmd("SET")
            .arg(&self.name)
            .arg(&owner)
            .arg("NX")
            .arg("PX")
            .arg(Lease::DEFAULT_TTL.as_millis() as u64)
            .query_async(&mut self.connection)
            .await
            .map_err(raw_redis::failure)?;
        check(acquired, "another client holds a lock of this run")?;
        Ok(owner)
    }

    async fn release(&mut self, owner: &str) -> Result<(), Failure> {
        let deleted: u32 = redis::cmd("EVALSHA")
            .arg(RELEASE.get_hash())
            .arg(1)
            .arg(&self.name)
            .arg(owner)
            .query_async(&mut self.connection)
            .await
            .map_err(raw_redis::failure)?;
        check(deleted == 1, "a bare lock expired within a cycle")
    }
}

impl Cycle for BareLock {
    async fn once(&mut self) -> Result<(), Failure> {
        let owner = self.acquire().await?;
        self.release(&owner).await
    }
}

/// Compare, then `PEXPIRE`, for several locks in rotation.
pub(crate) struct BareRenewals {
    connection: MultiplexedConnection,
    locks: Vec<(String, String)>,
    next: usize,
}

impl BareRenewals {
    /// Acquires locks of those names, to renew them.
    pub(crate) async fn of(
        connection: &MultiplexedConnection,
        names: impl IntoIterator<Item = String>,
    ) -> Result<BareRenewals, Failure> {
        let mut locks = Vec::new();
        for name in names {
            let owner = BareLock::new(connection, name.clone()).acquire().await?;
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
            .arg(Lease::DEFAULT_TTL.as_millis() as u64)
            .query_async(&mut self.connection)
            .await
            .map_err(raw_redis::failure)?;
        check(renewed == 1, "a bare lock expired while it was renewed")
    }
}

/// Removes the keys.
pub(crate) async fn remove(
    connection: &MultiplexedConnection,
    names: impl IntoIterator<Item = String>,
) -> Result<(), Failure> {
    let mut command = redis::cmd("UNLINK");
    for name in names {
        command.arg(name);
    }
    let mut connection = connection.clone();
    command
        .query_async(&mut connection)
        .await
        .map_err(raw_redis::failure)
}

/// Measures round trips, one at a time.
pub(crate) async fn round_trips(
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
            .map_err(raw_redis::failure)?;
        into.record(start.elapsed());
    }
    Ok(())
}

fn check(expected: bool, otherwise: &str) -> Result<(), Failure> {
    if expected {
        Ok(())
    } else {
        Err(invalid_run(otherwise))
    }
}
