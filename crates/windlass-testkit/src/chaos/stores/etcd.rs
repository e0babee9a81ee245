//! An etcd cluster of three members, with faults of the leader.

use std::cell::Cell;
use std::time::Duration;

use crate::EtcdCluster;

use super::{Fault, StoreUnderTest};

/// Three members that can be cut off from each other.
pub(super) struct ThreeEtcdMembers {
    cluster: EtcdCluster,
    victim: Cell<usize>,
}

impl ThreeEtcdMembers {
    pub(super) fn new() -> ThreeEtcdMembers {
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
        Duration::from_secs(2) // etcd leases have whole seconds
    }

    fn expiry_limit(&self) -> Duration {
        Duration::from_secs(10) // a new leader extends each lease by its TTL
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
            Fault::new(
                ("freeze for long", "a majority"),
                2 * lasts,
                || [0, 1].into_iter().for_each(|at| cluster.pause(at).unwrap()),
                || {
                    [0, 1]
                        .into_iter()
                        .for_each(|at| cluster.resume(at).unwrap())
                },
            ),
        ]
    }
}
