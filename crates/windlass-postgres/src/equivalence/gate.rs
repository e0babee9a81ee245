//! The gate functions decide as the rules: the same random operations, on `memory:` and on a real
//! PostgreSQL, give the same outcomes and the same state.

use std::sync::LazyLock;
use std::time::Duration;

use proptest::prelude::*;
use proptest::test_runner::TestCaseResult;

use super::fixture::PostgresFixture;
use windlass_core::memory::MemoryStore;
use windlass_core::name::Name;
use windlass_core::store::GateStore;
use windlass_core::{Clock, Fence};

#[derive(Clone, Debug)]
enum GateOp {
    Admit {
        fence: u64,
    },
    /// The retention of the highest fence ends.
    Expire,
    Reset,
}

fn ops() -> impl Strategy<Value = Vec<GateOp>> {
    let op = prop_oneof![
        8 => (1..12u64).prop_map(|fence| GateOp::Admit { fence }),
        1 => Just(GateOp::Expire),
        1 => Just(GateOp::Reset),
    ];
    prop::collection::vec(op, 1..40)
}

async fn check(fixture: &PostgresFixture, name: Name, ops: Vec<GateOp>) -> TestCaseResult {
    let clock = Clock::manual();
    let model = MemoryStore::private(clock.clone());
    let store = fixture.backend.gates();
    let keep = Duration::from_secs(600);
    for op in &ops {
        match *op {
            GateOp::Admit { fence } => {
                let fence = Fence::new(fence);
                let expected = model.admit(name.clone(), fence, keep).await.unwrap();
                let answer = store.admit(name.clone(), fence, keep).await.unwrap();
                prop_assert_eq!(expected, answer, "{:?}", op);
            }
            GateOp::Expire => {
                clock.advance(keep);
                let sql = "UPDATE windlass.gate SET until = 1 WHERE name = $1";
                fixture
                    .direct
                    .execute(sql, &[&name.as_str()])
                    .await
                    .unwrap();
            }
            GateOp::Reset => {
                let expected = GateStore::reset(&*model, name.clone()).await.unwrap();
                let answer = store.reset(name.clone()).await.unwrap();
                prop_assert_eq!(expected, answer, "{:?}", op);
            }
        }
        let expected = GateStore::inspect(&*model, name.clone()).await.unwrap();
        let seen = store.inspect(name.clone()).await.unwrap();
        prop_assert_eq!(
            expected.map(|state| state.highest),
            seen.map(|state| state.highest),
            "after {:?}",
            op
        );
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 100, ..ProptestConfig::default() })]

    #[test]
    fn gate_functions_decide_as_the_rules(ops in ops()) {
        static FIXTURE: LazyLock<PostgresFixture> = LazyLock::new(PostgresFixture::start);
        FIXTURE.case(|fixture, name| async move { check(fixture, name, ops).await })?;
    }
}
