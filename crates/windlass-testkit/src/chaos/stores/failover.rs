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
        let RedisWithSentinels { redis, killed } = self;
        // Restarted only after the promotion: the server comes back empty.
        let kill = || {
            let master = redis.master().unwrap();
            killed.set(master.port());
            master.kill().unwrap();
            redis.await_promotion(killed.get(), PROMOTION).unwrap();
        };
        let restart = || on(redis.servers(), killed.get()).restart().unwrap();
        vec![Fault::new(
            ("kill", "the master"),
            Duration::ZERO,
            kill,
            restart,
        )]
    }

    fn severe_faults(&self) -> Vec<Fault<'_>> {
        let RedisWithSentinels { redis, killed } = self;
        // The replicas miss the last grants, and one of them becomes the master.
        let kill = || {
            let replicas = redis.replicas().unwrap();
            let master = redis.master().unwrap();
            killed.set(master.port());
            for replica in &replicas {
                replica.pause().unwrap();
            }
            sleep(LAG);
            master.kill().unwrap();
            for replica in &replicas {
                replica.resume().unwrap();
            }
            redis.await_promotion(killed.get(), PROMOTION).unwrap();
        };
        let restart = || on(redis.servers(), killed.get()).restart().unwrap();
        vec![Fault::new(
            ("cut off replicas from, then kill,", "the master"),
            Duration::ZERO,
            kill,
            restart,
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
        let ThreeMasterCluster { redis, killed } = self;
        let kill = || {
            let master = redis.master_of(LOCK).unwrap();
            killed.set(master.port());
            master.kill().unwrap();
            let promoted = redis.await_promotion(LOCK, killed.get(), PROMOTION);
            promoted.unwrap();
        };
        let restart = || {
            on(redis.nodes(), killed.get()).restart().unwrap();
            // The other server of the pair can only be killed once this one can take over.
            redis.await_health(PROMOTION).unwrap();
        };
        vec![Fault::new(
            ("kill", "the master"),
            Duration::ZERO,
            kill,
            restart,
        )]
    }

    fn severe_faults(&self) -> Vec<Fault<'_>> {
        let ThreeMasterCluster { redis, killed } = self;
        // The replica misses the last grants, and becomes the master.
        let kill = || {
            let master = redis.master_of(LOCK).unwrap();
            killed.set(master.port());
            let replica = redis.replica_of(LOCK).unwrap();
            replica.pause().unwrap();
            sleep(LAG);
            master.kill().unwrap();
            replica.resume().unwrap();
            let promoted = redis.await_promotion(LOCK, killed.get(), PROMOTION);
            promoted.unwrap();
        };
        let restart = || {
            on(redis.nodes(), killed.get()).restart().unwrap();
            redis.await_health(PROMOTION).unwrap();
        };
        vec![Fault::new(
            ("cut off the replica from, then kill,", "the master"),
            Duration::ZERO,
            kill,
            restart,
        )]
    }
}
