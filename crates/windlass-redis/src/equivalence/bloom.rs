//! Bloom filters: random operations give the same answers as the rules, and set the same number of
//! bits.

use std::collections::HashSet;
use std::convert::Infallible;
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use proptest::prelude::*;
use proptest::test_runner::TestCaseResult;

use super::fixture::RedisFixture;
use windlass_core::bloom::{BloomKind, Digest, Plan};
use windlass_core::name::Name;
use windlass_core::rules::bloom::{self as rules, Cells, Progress};
use windlass_core::store::BloomStore;

#[derive(Clone, Debug)]
enum BloomOp {
    Insert(Vec<u8>),
    Contains(Vec<u8>),
    /// Time passes, for rotating filters.
    Wait,
}

fn ops() -> impl Strategy<Value = Vec<BloomOp>> {
    let items = || prop::collection::vec(0..40u8, 1..12);
    let op = prop_oneof![
        4 => items().prop_map(BloomOp::Insert),
        2 => items().prop_map(BloomOp::Contains),
        1 => Just(BloomOp::Wait),
    ];
    prop::collection::vec(op, 1..15)
}

fn plans() -> impl Strategy<Value = Plan> {
    let window = Duration::from_millis(60);
    prop::sample::select(vec![
        Plan::with_bits(BloomKind::Fixed, 61, 3).unwrap(),
        Plan::sized(BloomKind::Fixed, 10, 0.2).unwrap(),
        Plan::sized(BloomKind::Growing, 3, 0.3).unwrap(),
        Plan::sized(BloomKind::Growing, 1, 0.5).unwrap(),
        Plan::sized(BloomKind::Rotating { window, slices: 2 }, 10, 0.3).unwrap(),
        Plan::sized(BloomKind::Rotating { window, slices: 4 }, 20, 0.3).unwrap(),
    ])
}

#[derive(Default)]
struct BloomModel {
    bits: HashSet<(u64, u64)>,
    progress: Progress,
}

struct BitSet<'a>(&'a mut HashSet<(u64, u64)>);

impl Cells for BitSet<'_> {
    type Error = Infallible;

    fn get(&mut self, generation: u64, position: u64) -> Result<bool, Infallible> {
        Ok(self.0.contains(&(generation, position)))
    }

    fn set(&mut self, generation: u64, position: u64) -> Result<(), Infallible> {
        self.0.insert((generation, position));
        Ok(())
    }
}

impl BloomModel {
    fn apply(&mut self, plan: &Plan, now: Duration, op: &BloomOp) -> Vec<bool> {
        let (bits, progress) = (&mut BitSet(&mut self.bits), &mut self.progress);
        let digests = |items: &[u8]| items.iter().map(|n| Digest::of(&[*n])).collect::<Vec<_>>();
        match op {
            BloomOp::Wait => Vec::new(),
            BloomOp::Insert(items) => digests(items)
                .into_iter()
                .map(|item| {
                    let Ok(new) = rules::insert(bits, plan, progress, now, item);
                    new
                })
                .collect(),
            BloomOp::Contains(items) => digests(items)
                .into_iter()
                .map(|item| {
                    let Ok(known) = rules::contains(bits, plan, *progress, now, item);
                    known
                })
                .collect(),
        }
    }
}

struct RealFilters {
    blooms: Arc<dyn BloomStore>,
    redis: &'static RedisFixture,
}

impl RealFilters {
    fn time(&self) -> Duration {
        Duration::from_micros(self.redis.micros())
    }

    /// The time, when the current slice does not end too soon.
    async fn within_a_slice(&self, plan: &Plan) -> Duration {
        let Some(period) = plan.period() else {
            return self.time();
        };
        loop {
            let now = self.time();
            let left = period.as_millis() - now.as_millis() % period.as_millis();
            if left > 8 {
                return now;
            }
            tokio::time::sleep(Duration::from_millis(left as u64)).await;
        }
    }
}

async fn check(real: &RealFilters, name: Name, plan: Plan, ops: Vec<BloomOp>) -> TestCaseResult {
    real.blooms.create(name.clone(), plan).await.unwrap();
    let mut model = BloomModel::default();
    for op in &ops {
        let digests = |items: &[u8]| items.iter().map(|n| Digest::of(&[*n])).collect();
        let now = real.within_a_slice(&plan).await;
        let answer = match op {
            BloomOp::Wait => {
                if let Some(period) = plan.period() {
                    tokio::time::sleep(period).await;
                }
                continue;
            }
            BloomOp::Insert(items) => real.blooms.insert(name.clone(), plan, digests(items)).await,
            BloomOp::Contains(items) => {
                real.blooms
                    .contains(name.clone(), plan, digests(items))
                    .await
            }
        };
        let generations = rules::living(&plan, Progress::default(), now);
        prop_assume!(rules::living(&plan, Progress::default(), real.time()) == generations);
        let expected = model.apply(&plan, now, op);
        prop_assert_eq!(answer.unwrap(), Some(expected), "{:?} on {}", op, plan);

        let now = real.within_a_slice(&plan).await;
        let generations = real.blooms.generations(name.clone(), plan).await;
        let mut set = Vec::new();
        for generation in generations.unwrap().unwrap() {
            let mut bits = 0;
            for shard in 0..plan.shape(generation).shards {
                let name = name.clone();
                let count = real.blooms.count_bits(name, plan, generation, shard);
                bits += count.await.unwrap().unwrap();
            }
            set.push(bits);
        }
        let living = rules::living(&plan, model.progress, now);
        prop_assume!(living == rules::living(&plan, model.progress, real.time()));
        let expected: Vec<u64> = living
            .map(|n| {
                model
                    .bits
                    .iter()
                    .filter(|(generation, _)| *generation == n)
                    .count() as u64
            })
            .collect();
        prop_assert_eq!(expected, set, "bits after {:?} on {}", op, plan);
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    #[test]
    fn bloom_filters_decide_as_the_rules_do(plan in plans(), ops in ops()) {
        static REDIS: LazyLock<RedisFixture> = LazyLock::new(RedisFixture::start);
        REDIS.case(|redis, name| async move {
            let blooms = redis.backend.blooms();
            check(&RealFilters { blooms, redis }, name, plan, ops).await
        })?;
    }
}
