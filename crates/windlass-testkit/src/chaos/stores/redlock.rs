//! Five Redlock nodes, with faults of a minority, and once of a majority.

use crate::{Flavor, RedlockNodes};

use super::{Fault, StoreUnderTest};

/// Five servers.
pub(super) struct FiveRedlockNodes(RedlockNodes);

impl FiveRedlockNodes {
    /// They persist every write before its reply.
    pub(super) fn durable() -> FiveRedlockNodes {
        let nodes = RedlockNodes::durable(5, Flavor::Redis);
        FiveRedlockNodes(nodes.expect("servers to test on"))
    }

    /// They keep their data in memory alone, so a node that restarts has no vote for a while.
    pub(super) fn forgetful() -> FiveRedlockNodes {
        let nodes = RedlockNodes::without_persistence(5, Flavor::Redis);
        FiveRedlockNodes(nodes.expect("servers to test on"))
    }
}

impl StoreUnderTest for FiveRedlockNodes {
    fn url(&self) -> String {
        self.0.url("max_ttl=2s&node_timeout=100ms")
    }

    fn faults(&self) -> Vec<Fault<'_>> {
        let node = |index: usize| self.0.node(index);
        let lasts = self.ttl();
        vec![
            Fault::new(
                ("kill and restart", "a node"),
                lasts,
                move || node(0).kill().unwrap(),
                move || node(0).restart().unwrap(),
            ),
            Fault::new(
                ("freeze", "two nodes"),
                lasts * 2,
                move || (1..3).for_each(|index| node(index).pause().unwrap()),
                move || (1..3).for_each(|index| node(index).resume().unwrap()),
            ),
            Fault::new(
                ("freeze", "three nodes"),
                lasts * 2,
                move || (2..5).for_each(|index| node(index).pause().unwrap()),
                move || (2..5).for_each(|index| node(index).resume().unwrap()),
            ),
            Fault::new(
                ("kill and restart", "two nodes"),
                lasts,
                move || (3..5).for_each(|index| node(index).kill().unwrap()),
                move || (3..5).for_each(|index| node(index).restart().unwrap()),
            ),
        ]
    }
}
