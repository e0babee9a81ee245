//! An ensemble of ZooKeeper servers, whose leader is mistreated.

use std::cell::Cell;
use std::time::Duration;

use windlass_testkit::ZooKeeperServers;

use super::{Fault, StoreUnderTest};

/// Three servers that can be cut off from each other.
pub(crate) struct ThreeZooKeeperServers {
    servers: ZooKeeperServers,
    victim: Cell<usize>,
}

impl ThreeZooKeeperServers {
    pub(crate) fn new() -> ThreeZooKeeperServers {
        ThreeZooKeeperServers {
            servers: ZooKeeperServers::partitionable(&[]).expect("servers to test on"),
            victim: Cell::new(0),
        }
    }

    /// The leader, or whoever it was before.
    fn pick(&self) -> usize {
        if let Some(leader) = self.servers.leader() {
            self.victim.set(leader);
        }
        self.victim.get()
    }
}

impl StoreUnderTest for ThreeZooKeeperServers {
    fn url(&self) -> String {
        self.servers.url("histories")
    }

    fn ttl(&self) -> Duration {
        Duration::from_millis(1500)
    }

    fn faults(&self) -> Vec<Fault<'_>> {
        let (servers, lasts) = (&self.servers, self.ttl());
        vec![
            Fault::new(
                ("kill and restart", "the leader"),
                lasts,
                || servers.kill(self.pick()).unwrap(),
                || servers.restart(self.victim.get()).unwrap(),
            ),
            Fault::new(
                ("freeze", "the leader"),
                lasts,
                || servers.pause(self.pick()).unwrap(),
                || servers.resume(self.victim.get()).unwrap(),
            ),
            Fault::new(
                ("cut off from the others", "the leader"),
                lasts,
                || servers.cut_off(self.pick()),
                || servers.rejoin(self.victim.get()),
            ),
        ]
    }
}
