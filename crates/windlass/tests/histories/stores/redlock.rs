//! A quorum of five, a minority of which is mistreated at a time; and once all but a minority.

use windlass_testkit::{Flavor, RedlockNodes};

use super::{Fault, StoreUnderTest};

/// Five servers that write everything to disk before they answer.
pub(crate) struct FiveRedlockNodes(RedlockNodes);

impl FiveRedlockNodes {
    pub(crate) fn new() -> FiveRedlockNodes {
        FiveRedlockNodes(RedlockNodes::durable(5, Flavor::Redis).expect("servers to test on"))
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
