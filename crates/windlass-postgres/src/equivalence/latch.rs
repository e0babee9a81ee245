//! The latch functions decide as the rules: the same random operations, on `memory:` and on a real
//! PostgreSQL, give the same outcomes and the same state.

use std::sync::LazyLock;
use std::time::Duration;

use proptest::prelude::*;
use proptest::test_runner::TestCaseResult;

use super::fixture::PostgresFixture;
use windlass_core::Clock;
use windlass_core::memory::MemoryStore;
use windlass_core::name::Name;
use windlass_core::store::{LatchSpec, LatchStore};

#[derive(Clone, Debug)]
enum LatchOp {
    Reset {
        generation: u8,
        count: u32,
    },
    /// The same operation may come again, as after a lost reply.
    CountDown {
        generation: u8,
        by: u32,
        operation: u128,
    },
}

fn ops() -> impl Strategy<Value = Vec<LatchOp>> {
    // More generations than are kept.
    let op = prop_oneof![
        (0..24u8, 1..4u32).prop_map(|(generation, count)| LatchOp::Reset { generation, count }),
        (0..24u8, 1..4u32, 0..6u128).prop_map(|(generation, by, operation)| LatchOp::CountDown {
            generation,
            by,
            operation
        }),
        (0..3u8, 1..2u32, 0..6u128).prop_map(|(generation, by, operation)| LatchOp::CountDown {
            generation,
            by,
            operation
        }),
    ];
    prop::collection::vec(op, 1..60)
}

async fn check(store: &dyn LatchStore, name: Name, ops: Vec<LatchOp>) -> TestCaseResult {
    let model = MemoryStore::private(Clock::manual());
    let spec = |generation: u8| LatchSpec {
        name: name.clone(),
        generation: format!("generation {generation}").into(),
        keep: Duration::from_secs(600),
    };
    for op in &ops {
        match *op {
            LatchOp::Reset { generation, count } => {
                let expected = model.reset(spec(generation), count).await.unwrap();
                let answer = store.reset(spec(generation), count).await.unwrap();
                prop_assert_eq!(expected, answer, "{:?}", op);
            }
            LatchOp::CountDown {
                generation,
                by,
                operation,
            } => {
                let spec = spec(generation);
                let expected = model.count_down(spec.clone(), by, operation).await;
                let answer = store.count_down(spec, by, operation).await;
                prop_assert_eq!(expected.unwrap(), answer.unwrap(), "{:?}", op);
            }
        }
        let expected = LatchStore::inspect(&*model, name.clone()).await.unwrap();
        let seen = store.inspect(name.clone()).await.unwrap();
        prop_assert_eq!(expected, seen, "after {:?}", op);
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    #[test]
    fn latch_functions_decide_as_the_rules(ops in ops()) {
        static FIXTURE: LazyLock<PostgresFixture> = LazyLock::new(PostgresFixture::start);
        FIXTURE.case(|fixture, name| async move {
            check(&*fixture.backend.latches(), name, ops).await
        })?;
    }
}
