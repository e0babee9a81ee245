//! The Redis store: `redis://` (one Redis or Valkey server), `redis+sentinel://` (the master that
//! Sentinel names) and `redis+cluster://` (Redis Cluster).
//!
//! A call goes through three layers:
//!
//! 1. A store type builds a command, most often a Lua script that decides atomically (`scripts/`),
//!    because a decision is more than one Redis command. One file for each capability: `claims`,
//!    `limit`, `counter`, `bloom` ... Decisions on locks, pools and limiters that arrive at
//!    the same time are sent in one script call (`batch`).
//! 2. `router` finds the server: the only one, or the cluster node that serves the key's hash
//!    slot (`cluster`).
//! 3. `connection` sends the command over the one RESP3 connection to that server, and reconnects
//!    when it breaks (`connector`). Wake-ups of waiters and notifications arrive on a connection
//!    of the same kind (`connection/push.rs`).
//!
//! What happens to fences when another server becomes the master: `master_epoch`. What a grant
//! that waits for replicas does: `replica_ack`.

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
mod inventory;
mod keys;
mod latch;
mod limit;
mod master_epoch;
mod notifications;
mod once;
mod permissions;
mod quorum_node;
mod record;
mod replica_ack;
mod router;
mod script;
mod seen;
mod sentinel;
mod slots;
mod topic;
mod topology;

use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use redis::Value;

use self::address::{GrantOptions, StoreOptions};
use self::batch::Batcher;
use self::bloom::RedisBloomFilters;
use self::claims::RedisClaims;
use self::cluster::Cluster;
use self::connection::Connection;
use self::connector::Connector;
use self::counter::RedisCounters;
use self::gate::RedisGates;
use self::latch::RedisLatches;
use self::limit::RedisLimiters;
use self::limit::command::LimitDecision;
use self::notifications::RedisNotifications;
use self::once::RedisOnceRecords;
use self::permissions::RedisPermissions;
pub use self::quorum_node::{Confirmed, NodeClient, NodeStatus, RedisNodeClient};
use self::router::Router;
use self::seen::RedisSeenItems;
use self::sentinel::Sentinels;
use self::topic::RedisTopics;
use windlass_core::FenceStrength;
use windlass_core::error::Result;
use windlass_core::redact::redact;
use windlass_core::store::counter::CounterStore;
use windlass_core::store::limit::LimitStore;
use windlass_core::store::{
    Backend, BloomStore, Capabilities, ClaimStore, Finding, GateStore, GrantListener, LatchStore,
    NotificationStore, OnceStore, Pending, PermissionStore, Replicas, SeenStore, TopicStore,
    WakeUpPolicy,
};

/// The Redis store of one coordinator.
#[derive(Clone, Debug)]
pub struct Redis {
    address: Arc<str>,
    router: Arc<Router>,
    capabilities: Capabilities,
    grants: GrantOptions,
    claims: RedisClaims,
    limits: Batcher<LimitDecision>,
    /// Once a topic is used.
    topics: Arc<OnceLock<RedisTopics>>,
}

impl Redis {
    /// Connects to the server, service or cluster of `url`. Grants of waiters are reported to
    /// `listener`, which is known to the servers as client `id`.
    pub async fn open(
        url: &str,
        call_timeout: Duration,
        id: u64,
        listener: Weak<dyn GrantListener>,
    ) -> Result<Arc<dyn Backend>> {
        let address: Arc<str> = redact(url).into();
        let connected = Redis::connect(url, call_timeout, id, listener).await;
        let (router, capabilities, grants) =
            connected.map_err(|e| e.with_backend(address.to_string()))?;
        let router = Arc::new(router);
        Ok(Arc::new(Redis {
            address,
            capabilities,
            grants,
            claims: RedisClaims::new(Arc::clone(&router)),
            limits: Batcher::start(Arc::clone(&router), &script::LIMIT),
            topics: Arc::default(),
            router,
        }))
    }

    async fn connect(
        url: &str,
        call_timeout: Duration,
        id: u64,
        listener: Weak<dyn GrantListener>,
    ) -> Result<(Router, Capabilities, GrantOptions)> {
        let scheme = url.split("://").next().unwrap_or("");
        if scheme.ends_with("+cluster") {
            let (cluster, grants) = Cluster::open(url, call_timeout, id, listener).await?;
            return Ok((Router::Cluster(cluster), CLUSTER, grants));
        }
        if scheme.ends_with("+sentinel") {
            let (sentinels, StoreOptions { keys, grants }) = Sentinels::parse(url, call_timeout)?;
            let connector = Connector::Master(Arc::clone(&sentinels));
            let connection = Connection::new(connector, keys, call_timeout, id, listener);
            // Before the first connect: the master may be replaced while the connection is being
            // made.
            sentinel::watch(&sentinels, &connection);
            connection.connect().await?;
            return Ok((Router::Single(connection), SENTINEL, grants));
        }
        let (client, StoreOptions { keys, grants }) = address::single_server(url)?;
        let connector = Connector::Server(client);
        let connection = Connection::new(connector, keys, call_timeout, id, listener);
        connection.connect().await?;
        Ok((Router::Single(connection), CAPABILITIES, grants))
    }

    fn router(&self) -> Arc<Router> {
        Arc::clone(&self.router)
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
        self.grants.replicas
    }

    fn wake_up_policy(&self) -> WakeUpPolicy {
        self.grants.wake_ups
    }

    fn claims(&self) -> Arc<dyn ClaimStore> {
        Arc::new(self.claims.clone())
    }

    fn gates(&self) -> Arc<dyn GateStore> {
        Arc::new(RedisGates::new(self.router()))
    }

    fn inventory(&self) -> Arc<dyn windlass_core::store::InventoryStore> {
        Arc::new(inventory::RedisInventory(self.router()))
    }

    fn counters(&self) -> Arc<dyn CounterStore> {
        Arc::new(RedisCounters::new(self.router()))
    }

    fn limits(&self) -> Arc<dyn LimitStore> {
        Arc::new(RedisLimiters::new(self.router(), self.limits.clone()))
    }

    fn latches(&self) -> Arc<dyn LatchStore> {
        Arc::new(RedisLatches::new(self.router()))
    }

    fn notifications(&self) -> Arc<dyn NotificationStore> {
        let connection = Arc::clone(self.router.push_connection());
        Arc::new(RedisNotifications::new(connection))
    }

    fn blooms(&self) -> Arc<dyn BloomStore> {
        Arc::new(RedisBloomFilters::new(self.router()))
    }

    fn permissions(&self) -> Arc<dyn PermissionStore> {
        Arc::new(RedisPermissions::new(self.router()))
    }

    fn seen(&self) -> Arc<dyn SeenStore> {
        Arc::new(RedisSeenItems::new(self.router()))
    }

    fn onces(&self) -> Arc<dyn OnceStore> {
        Arc::new(RedisOnceRecords::new(self.router()))
    }

    fn topics(&self) -> Arc<dyn TopicStore> {
        let topics = || RedisTopics::new(self.router());
        Arc::new(self.topics.get_or_init(topics).clone())
    }

    fn diagnose(&self) -> Pending<'_, Vec<Finding>> {
        Box::pin(diagnose::diagnose(&self.router))
    }
}

pub(crate) const CAPABILITIES: Capabilities = Capabilities::new(
    "redis",
    FenceStrength::SingleNode,
    "all that reach the server",
    "as the server's persistence; a failover may lose the newest grants",
);

const SENTINEL: Capabilities = Capabilities::new(
    "redis+sentinel",
    FenceStrength::SingleNode,
    "all that reach the sentinels and the servers",
    "survives the loss of the master; a failover may lose the newest grants, but fences keep growing",
);

const CLUSTER: Capabilities = Capabilities::new(
    "redis+cluster",
    FenceStrength::SingleNode,
    "all that reach the nodes",
    "survives the loss of a master that has a replica; a failover may lose the newest grants, but \
     fences keep growing",
);

/// Redis counts in milliseconds. Rounded up, so that no claim ends before its TTL.
fn millis(ttl: Duration) -> u64 {
    u64::try_from(ttl.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX)
}

/// The answer of `PTTL`: `-1` means no expiry; a key that is gone has no time left.
fn time_left(ms: i64) -> Option<Duration> {
    (ms != -1).then(|| Duration::from_millis(ms.max(0) as u64))
}

fn bytes(value: &Value) -> Option<&[u8]> {
    match value {
        Value::BulkString(bytes) => Some(bytes),
        _ => None,
    }
}
