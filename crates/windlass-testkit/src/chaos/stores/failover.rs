//! Replicated Redis, with sentinels or as a cluster, whose master is killed.
//!
//! A failover may lose the newest grants, and what the store's gate remembered of them. Fences must
//! still increase: a resource that checks fences itself never accepts a stale holder's write.

use std::cell::Cell;
use std::thread::sleep;
use std::time::Duration;

use crate::history::Breach;
use crate::{RedisCluster, RedisReplicated, RedisServer};

use super::{Fault, StoreUnderTest};
use crate::chaos::worker::LOCK;

/// Until another master is promoted, on a busy machine.
const PROMOTION: Duration = Duration::from_secs(60);
const TTL: Duration = Duration::from_secs(1);
/// Time in which a master grants without its replicas: less than the sentinels and nodes wait before
/// they replace a replica.
const LAG: Duration = Duration::from_millis(300);

/// What asynchronous replication loses: claims, and what the store's gate remembers.
pub(super) fn lost_by_failover(breach: &Breach) -> bool {
    match breach {
        Breach::TwoHolders(..) => true,
        Breach::StaleWrite(_, stale) => stale.gate == "store",
        _ => false,
    }
}

/// Kills the master. `lagging` replicas miss its last grants.
fn kill(master: &RedisServer, lagging: &[&RedisServer]) {
    for replica in lagging {
        replica.pause().unwrap();
    }
    if !lagging.is_empty() {
        sleep(LAG);
    }
    master.kill().unwrap();
    for replica in lagging {
        replica.resume().unwrap();
    }
}

/// The server with this port.
fn on(servers: &[RedisServer], port: u16) -> &RedisServer {
    let found = servers.iter().find(|server| server.port() == port);
    found.expect("it was one of them")
}

/// Three servers, monitored by sentinels.
pub(super) struct RedisWithSentinels {
    redis: RedisReplicated,
    killed: Cell<u16>,
}

impl RedisWithSentinels {
    pub(super) fn new() -> RedisWithSentinels {
        RedisWithSentinels {
            redis: RedisReplicated::start().expect("servers to test on"),
            killed: Cell::new(0),
        }
    }

    /// Ends when another server is master: this one comes back empty.
    fn kill_master(&self, lagging: &[&RedisServer]) {
        let master = self.redis.master().unwrap();
        self.killed.set(master.port());
        kill(master, lagging);
        let promoted = self.redis.await_promotion(self.killed.get(), PROMOTION);
        promoted.unwrap();
    }

    fn restart_killed(&self) {
        let killed = on(self.redis.servers(), self.killed.get());
        killed.restart().unwrap();
    }
}

impl StoreUnderTest for RedisWithSentinels {
    fn url(&self) -> String {
        self.redis.url()
    }

    fn ttl(&self) -> Duration {
        TTL
    }

    fn tolerates(&self, breach: &Breach) -> bool {
        lost_by_failover(breach)
    }

    fn faults(&self) -> Vec<Fault<'_>> {
        vec![Fault::new(
            ("kill", "the master"),
            Duration::ZERO,
            || self.kill_master(&[]),
            || self.restart_killed(),
        )]
    }

    fn severe_faults(&self) -> Vec<Fault<'_>> {
        vec![Fault::new(
            ("cut off replicas from, then kill,", "the master"),
            Duration::ZERO,
            || self.kill_master(&self.redis.replicas().unwrap()),
            || self.restart_killed(),
        )]
    }
}

/// Three masters with a replica each.
pub(super) struct ThreeMasterCluster {
    redis: RedisCluster,
    killed: Cell<u16>,
}

impl ThreeMasterCluster {
    pub(super) fn new() -> ThreeMasterCluster {
        ThreeMasterCluster {
            redis: RedisCluster::start().expect("servers to test on"),
            killed: Cell::new(0),
        }
    }

    fn kill_master(&self, lagging: &[&RedisServer]) {
        let master = self.redis.master_of(LOCK).unwrap();
        self.killed.set(master.port());
        kill(master, lagging);
        let promoted = self
            .redis
            .await_promotion(LOCK, self.killed.get(), PROMOTION);
        promoted.unwrap();
    }

    /// Ends when the cluster is healthy: the other server of the pair can only be killed once this
    /// one can take over.
    fn restart_killed(&self) {
        let killed = on(self.redis.nodes(), self.killed.get());
        killed.restart().unwrap();
        self.redis.await_health(PROMOTION).unwrap();
    }
}

impl StoreUnderTest for ThreeMasterCluster {
    fn url(&self) -> String {
        self.redis.url()
    }

    fn ttl(&self) -> Duration {
        TTL
    }

    fn tolerates(&self, breach: &Breach) -> bool {
        lost_by_failover(breach)
    }

    fn faults(&self) -> Vec<Fault<'_>> {
        vec![Fault::new(
            ("kill", "the master"),
            Duration::ZERO,
            || self.kill_master(&[]),
            || self.restart_killed(),
        )]
    }

    fn severe_faults(&self) -> Vec<Fault<'_>> {
        vec![Fault::new(
            ("cut off the replica from, then kill,", "the master"),
            Duration::ZERO,
            || self.kill_master(&[self.redis.replica_of(LOCK).unwrap()]),
            || self.restart_killed(),
        )]
    }
}
