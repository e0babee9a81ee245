//! Replicated Redis, by sentinels or as a cluster, whose master is killed.
//!
//! A failover may forget the newest grants, and what a gate of the store remembered of them. It must not
//! let fences go back: what checks fences by itself is never written to by a stale holder.

use std::cell::Cell;
use std::time::Duration;

use windlass_testkit::history::Breach;
use windlass_testkit::{RedisCluster, RedisReplicated, RedisServer};

use super::{Fault, StoreUnderTest};
use crate::worker::LOCK;

/// Until there is another master, on a busy machine.
const PROMOTION: Duration = Duration::from_secs(60);
const TTL: Duration = Duration::from_secs(1);

fn lost_by_failover(breach: &Breach) -> bool {
    match breach {
        Breach::TwoHolders(..) => true,
        Breach::StaleWrite(_, stale) => stale.gate == "store",
        _ => false,
    }
}

/// The server of that port, among those there are.
fn on(servers: &[RedisServer], port: u16) -> &RedisServer {
    let found = servers.iter().find(|server| server.port() == port);
    found.expect("it was one of them")
}

/// Three servers, watched by sentinels.
pub(crate) struct RedisWithSentinels {
    redis: RedisReplicated,
    killed: Cell<u16>,
}

impl RedisWithSentinels {
    pub(crate) fn new() -> RedisWithSentinels {
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
        // Back only when another has taken over: it comes back empty.
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
}

/// Three masters with a replica each.
pub(crate) struct ThreeMasterCluster {
    redis: RedisCluster,
    killed: Cell<u16>,
}

impl ThreeMasterCluster {
    pub(crate) fn new() -> ThreeMasterCluster {
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
            // The other of the two can only be killed once this one can take over.
            redis.await_health(PROMOTION).unwrap();
        };
        vec![Fault::new(
            ("kill", "the master"),
            Duration::ZERO,
            kill,
            restart,
        )]
    }
}
