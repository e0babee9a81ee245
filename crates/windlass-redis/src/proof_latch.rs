//! The latch's script decides exactly as the rules do: the same random operations, against the rules
//! (as `memory:` runs them) and against a real Redis, give the same outcomes and the same state.

use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use proptest::prelude::*;
use proptest::test_runner::TestCaseResult;
use windlass_testkit::RedisServer;

use super::Redis;
use windlass_core::memory::MemoryStore;
use windlass_core::name::Name;
use windlass_core::store::{Backend, GrantListener, LatchSpec, LatchStore};
use windlass_core::{Clock, Fence};

#[derive(Clone, Debug)]
enum Op {
    Reset {
        generation: u8,
        count: u32,
    },
    /// The number of the operation comes again at times, as after a lost answer.
    CountDown {
        generation: u8,
        by: u32,
        operation: u128,
    },
}

fn ops() -> impl Strategy<Value = Vec<Op>> {
    // More generations than are remembered.
    let op = prop_oneof![
        (0..24u8, 1..4u32).prop_map(|(generation, count)| Op::Reset { generation, count }),
        (0..24u8, 1..4u32, 0..6u128).prop_map(|(generation, by, operation)| Op::CountDown {
            generation,
            by,
            operation
        }),
        (0..3u8, 1..2u32, 0..6u128).prop_map(|(generation, by, operation)| Op::CountDown {
            generation,
            by,
            operation
        }),
    ];
    prop::collection::vec(op, 1..60)
}

struct Deaf;

impl GrantListener for Deaf {
    fn granted(&self, _claim: u64, _fence: Option<Fence>) {}

    fn missed(&self) {}
}

async fn check(real: &dyn LatchStore, name: Name, ops: Vec<Op>) -> TestCaseResult {
    let model = MemoryStore::private(Clock::manual());
    let terms = |generation: u8| LatchSpec {
        name: name.clone(),
        generation: format!("generation {generation}").into(),
        keep: Duration::from_secs(600),
    };
    for op in &ops {
        match *op {
            Op::Reset { generation, count } => {
                let expected = model.reset(terms(generation), count).await.unwrap();
                let answer = real.reset(terms(generation), count).await.unwrap();
                prop_assert_eq!(expected, answer, "{:?}", op);
            }
            Op::CountDown {
                generation,
                by,
                operation,
            } => {
                let terms = terms(generation);
                let expected = model.count_down(terms.clone(), by, operation).await;
                let answer = real.count_down(terms, by, operation).await;
                prop_assert_eq!(expected.unwrap(), answer.unwrap(), "{:?}", op);
            }
        }
        let expected = LatchStore::look(&*model, name.clone()).await.unwrap();
        let seen = real.look(name.clone()).await.unwrap();
        prop_assert_eq!(expected, seen, "after {:?}", op);
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    #[test]
    fn the_script_decides_as_the_rules_do(ops in ops()) {
        static RUNTIME: OnceLock<(tokio::runtime::Runtime, RedisServer)> = OnceLock::new();
        let (runtime, server) = RUNTIME.get_or_init(|| {
            let runtime = tokio::runtime::Builder::new_multi_thread()
                .worker_threads(1)
                .enable_all()
                .build()
                .unwrap();
            (runtime, RedisServer::start().unwrap())
        });
        static REAL: tokio::sync::OnceCell<Arc<dyn Backend>> = tokio::sync::OnceCell::const_new();
        runtime.block_on(async {
            let real = REAL.get_or_init(|| async {
                let nobody: Weak<Deaf> = Weak::new();
                let timeout = Duration::from_secs(5);
                Redis::open(&server.url(), timeout, rand::random(), nobody).await.unwrap()
            }).await;
            // A name of its own for each case: nothing is ever flushed.
            let name = Name::new("test", None, &format!("case-{:x}", rand::random::<u128>()));
            check(&*real.latches(), name.unwrap(), ops).await
        })?;
    }
}
