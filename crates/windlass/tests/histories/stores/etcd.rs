//! An etcd of three members, whose leader is mistreated.

use std::cell::Cell;
use std::time::Duration;

use windlass_testkit::EtcdCluster;

use super::{Fault, StoreUnderTest};

/// Three members that can be cut off from each other.
pub(crate) struct ThreeEtcdMembers {
    cluster: EtcdCluster,
    victim: Cell<usize>,
}

impl ThreeEtcdMembers {
    pub(crate) fn new() -> ThreeEtcdMembers {
        let cluster = EtcdCluster::builder().members(3).partitionable().start();
        ThreeEtcdMembers {
            cluster: cluster.expect("members to test on"),
            victim: Cell::new(0),
        }
    }

    fn pick(&self) -> usize {
        self.victim.set(self.cluster.leader().unwrap());
        self.victim.get()
    }
}

impl StoreUnderTest for ThreeEtcdMembers {
    fn url(&self) -> String {
        self.cluster.url()
    }

    fn ttl(&self) -> Duration {
        Duration::from_secs(2) // etcd counts in seconds, and knows no shorter lease
    }

    fn faults(&self) -> Vec<Fault<'_>> {
        let (cluster, lasts) = (&self.cluster, self.ttl());
        vec![
            Fault::new(
                ("kill and restart", "the leader"),
                lasts,
                || cluster.kill(self.pick()).unwrap(),
                || cluster.restart(self.victim.get()).unwrap(),
            ),
            Fault::new(
                ("freeze", "the leader"),
                lasts,
                || cluster.pause(self.pick()).unwrap(),
                || cluster.resume(self.victim.get()).unwrap(),
            ),
            Fault::new(
                ("cut off from the others", "the leader"),
                lasts,
                || cluster.cut_off(self.pick()),
                || cluster.rejoin(self.victim.get()),
            ),
        ]
    }
}
