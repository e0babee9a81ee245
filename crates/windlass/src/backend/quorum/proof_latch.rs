//! A latch over a quorum decides exactly as the rules do, also when an operation comes again.

use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use proptest::prelude::*;
use windlass_testkit::{Flavor, RedlockNodes};

use super::{Address, Quorum};
use crate::backend::redis::proof_latch::{check, ops};
use crate::backend::{Backend, WakeUps};
use crate::lease::{Clock, Fence};
use crate::name::Name;

struct Deaf;

impl WakeUps for Deaf {
    fn granted(&self, _: u64, _: Option<Fence>) {}

    fn missed(&self) {}
}

proptest! {
    // Few: each operation takes two rounds, and the scripts are checked by themselves.
    #![proptest_config(ProptestConfig { cases: 15, ..ProptestConfig::default() })]

    #[test]
    fn a_latch_over_a_quorum_decides_as_the_rules_do(ops in ops()) {
        static BED: OnceLock<(tokio::runtime::Runtime, RedlockNodes)> = OnceLock::new();
        let (runtime, nodes) = BED.get_or_init(|| {
            let runtime = tokio::runtime::Builder::new_multi_thread()
                .worker_threads(1)
                .enable_all()
                .build()
                .unwrap();
            (runtime, RedlockNodes::durable(3, Flavor::Valkey).unwrap())
        });
        static REAL: tokio::sync::OnceCell<Arc<dyn Backend>> = tokio::sync::OnceCell::const_new();
        runtime.block_on(async {
            let real = REAL.get_or_init(|| async {
                let nobody: Weak<Deaf> = Weak::new();
                let address = Address::parse(&nodes.url("node_timeout=10s")).unwrap();
                let (clock, timeout) = (Clock::system(), Duration::from_secs(30));
                let quorum = Quorum::open(address, "test".into(), clock, timeout, 7, nobody);
                quorum.await.unwrap()
            }).await;
            let name = Name::new("test", None, &format!("case-{:x}", rand::random::<u128>()));
            check(&*real.latches(), name.unwrap(), ops).await
        })?;
    }
}
