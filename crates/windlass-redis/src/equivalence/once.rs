//! Idempotent execution and deduplication: the script and `SET NX` decide as the rules do.

use std::collections::HashMap;
use std::sync::LazyLock;
use std::time::Duration;

use proptest::prelude::*;
use proptest::test_runner::TestCaseResult;

use super::fixture::RedisFixture;
use crate::keys::Keys;
use windlass_core::Fence;
use windlass_core::name::Name;
use windlass_core::rules::{once, seen};
use windlass_core::seen::Member;
use windlass_core::store::OnceRecord;

#[derive(Clone, Debug)]
enum OnceOp {
    Start(u64, u8),
    Finish(u64, u8),
    Forget(Option<u64>),
    First(Vec<u8>),
    ForgetSeen(u8),
    /// The window of an item ends.
    Expire(u8),
}

fn ops() -> impl Strategy<Value = Vec<OnceOp>> {
    // Text order and number order differ for these, also beyond the precision of a double.
    let fence = prop::sample::select(vec![1u64, 2, 9, 10, 11, (1 << 60) + 1, (1 << 60) + 2]);
    let op = prop_oneof![
        4 => (fence.clone(), 0..2u8).prop_map(|(f, p)| OnceOp::Start(f, p)),
        2 => (fence.clone(), any::<u8>()).prop_map(|(f, r)| OnceOp::Finish(f, r)),
        1 => prop::option::of(fence).prop_map(OnceOp::Forget),
        4 => prop::collection::vec(0..6u8, 1..5).prop_map(OnceOp::First),
        1 => (0..6u8).prop_map(OnceOp::ForgetSeen),
        2 => (0..6u8).prop_map(OnceOp::Expire),
    ];
    prop::collection::vec(op, 1..40)
}

async fn check(redis: &RedisFixture, name: Name, ops: Vec<OnceOp>) -> TestCaseResult {
    let (onces, seens) = (redis.backend.onces(), redis.backend.seen());
    let (hour, now) = (Duration::from_secs(3600), Duration::from_secs(1));
    let mut record: Option<OnceRecord> = None;
    let mut known: HashMap<u8, Duration> = HashMap::new();
    for op in ops {
        match op {
            OnceOp::Start(fence, payload) => {
                let (fence, payload) = (Fence::new(fence), [payload; 32]);
                let (expected, after) = once::start(record, fence, payload);
                record = after;
                let found = onces.start(name.clone(), fence, payload, hour).await;
                prop_assert_eq!(found.unwrap(), expected);
            }
            OnceOp::Finish(fence, result) => {
                let (fence, result) = (Fence::new(fence), vec![result; 3]);
                let (expected, after) = once::finish(record, fence, result.clone());
                record = after;
                let found = onces.finish(name.clone(), fence, result, hour).await;
                prop_assert_eq!(found.unwrap(), expected);
            }
            OnceOp::Forget(fence) => {
                let fence = fence.map(Fence::new);
                let expected = once::forget(record.as_ref(), fence);
                record = record.filter(|_| !expected);
                prop_assert_eq!(onces.forget(name.clone(), fence).await.unwrap(), expected);
            }
            OnceOp::First(items) => {
                let mut expected = Vec::new();
                for item in &items {
                    let (new, until) = seen::first(known.get(item).copied(), now, hour);
                    known.insert(*item, until);
                    expected.push(new);
                }
                let items = items.into_iter().map(|item| Member::of(&[item]));
                let found = seens.first(name.clone(), items.collect(), hour).await;
                prop_assert_eq!(found.unwrap(), expected);
            }
            OnceOp::ForgetSeen(item) => {
                let expected = seen::is_known(known.remove(&item), now);
                let found = seens.forget(name.clone(), Member::of(&[item])).await;
                prop_assert_eq!(found.unwrap(), expected);
            }
            OnceOp::Expire(item) => {
                known.remove(&item);
                let key = Keys::default().seen(&name) + std::str::from_utf8(&[b' ', item]).unwrap();
                redis.server.command(&["DEL", &key]).unwrap();
            }
        }
        prop_assert_eq!(&onces.get(name.clone()).await.unwrap(), &record);
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    #[test]
    fn once_and_seen_decide_as_the_rules_do(ops in ops()) {
        static REDIS: LazyLock<RedisFixture> = LazyLock::new(RedisFixture::start);
        REDIS.case(|redis, name| check(redis, name, ops))?;
    }
}
