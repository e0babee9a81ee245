//! A ZooKeeper ensemble, with faults of the leader.

use std::cell::Cell;
use std::time::Duration;

use crate::{ZooKeeperServers, eventually_blocking};

use super::{Fault, StoreUnderTest};

/// An election takes this long on a busy machine.
const ELECTION: Duration = Duration::from_secs(20);

/// Three servers that can be cut off from each other.
pub(super) struct ThreeZooKeeperServers {
    servers: ZooKeeperServers,
    victim: Cell<usize>,
}

impl ThreeZooKeeperServers {
    pub(super) fn new() -> ThreeZooKeeperServers {
        ThreeZooKeeperServers {
            servers: ZooKeeperServers::partitionable(&[]).expect("servers to test on"),
            victim: Cell::new(0),
        }
    }

    /// The leader, or the last known one.
    fn pick(&self) -> usize {
        if let Some(leader) = self.servers.leader() {
            self.victim.set(leader);
        }
        self.victim.get()
    }

    /// Now and then servers that were frozen elect no leader, whatever the clients do. As an operator
    /// would, this restarts them.
    fn ensure_leader(&self) {
        if eventually_blocking(ELECTION, || self.servers.leader().is_some()) {
            return;
        }
        println!("zookeeper: the servers elected no leader for {ELECTION:?}, and are restarted");
        self.servers.restart_all(&[0, 1, 2]).unwrap();
    }

    /// The session timeout for the TTL.
    fn session(&self) -> Duration {
        Duration::from_secs(3)
    }
}

impl StoreUnderTest for ThreeZooKeeperServers {
    fn url(&self) -> String {
        self.servers.url("histories")
    }

    fn ttl(&self) -> Duration {
        Duration::from_millis(1500)
    }

    fn expiry_limit(&self) -> Duration {
        Duration::from_secs(20) // the session outlives the claim, and starts over with a new leader
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
            Fault::new(
                ("freeze for long", "a majority"),
                2 * self.session(),
                || [0, 1].into_iter().for_each(|at| servers.pause(at).unwrap()),
                || {
                    [0, 1]
                        .into_iter()
                        .for_each(|at| servers.resume(at).unwrap());
                    self.ensure_leader();
                },
            ),
        ]
    }
}
