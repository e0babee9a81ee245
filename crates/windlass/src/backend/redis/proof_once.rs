//! What is done once, and what was seen, is decided on Redis exactly as the rules do: the same random
//! operations give the same answers and the same records.

use std::collections::HashMap;
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use proptest::prelude::*;
use proptest::test_runner::TestCaseResult;
use windlass_testkit::RedisServer;

use super::{Redis, keys};
use crate::backend::rules::{once, seen};
use crate::backend::{Backend, Record, WakeUps};
use crate::lease::Fence;
use crate::name::Name;
use crate::seen::Member;

#[derive(Clone, Debug)]
enum Op {
    Start(u64, u8),
    Finish(u64, u8),
    Forget(Option<u64>),
    First(Vec<u8>),
    ForgetSeen(u8),
    /// The item's window passes.
    Expire(u8),
}

fn ops() -> impl Strategy<Value = Vec<Op>> {
    // Text order and number order differ here, beyond what a double can hold too.
    let fence = prop::sample::select(vec![1u64, 2, 9, 10, 11, (1 << 60) + 1, (1 << 60) + 2]);
    let op = prop_oneof![
        4 => (fence.clone(), 0..2u8).prop_map(|(f, p)| Op::Start(f, p)),
        2 => (fence.clone(), any::<u8>()).prop_map(|(f, r)| Op::Finish(f, r)),
        1 => prop::option::of(fence).prop_map(Op::Forget),
        4 => prop::collection::vec(0..6u8, 1..5).prop_map(Op::First),
        1 => (0..6u8).prop_map(Op::ForgetSeen),
        2 => (0..6u8).prop_map(Op::Expire),
    ];
    prop::collection::vec(op, 1..40)
}

struct Deaf;

impl WakeUps for Deaf {
    fn granted(&self, _: u64, _: Option<Fence>) {}
    fn missed(&self) {}
}

async fn check(
    backend: &Arc<dyn Backend>,
    server: &RedisServer,
    name: Name,
    ops: Vec<Op>,
) -> TestCaseResult {
    let (onces, seens) = (backend.onces(), backend.seen());
    let (hour, now) = (Duration::from_secs(3600), Duration::from_secs(1));
    let mut record: Option<Record> = None;
    let mut known: HashMap<u8, Duration> = HashMap::new();
    for op in ops {
        match op {
            Op::Start(fence, payload) => {
                let (fence, payload) = (Fence::new(fence), [payload; 32]);
                let (expected, after) = once::start(record, fence, payload);
                record = after;
                let found = onces.start(name.clone(), fence, payload, hour).await;
                prop_assert_eq!(found.unwrap(), expected);
            }
            Op::Finish(fence, result) => {
                let (fence, result) = (Fence::new(fence), vec![result; 3]);
                let (expected, after) = once::finish(record, fence, result.clone());
                record = after;
                let found = onces.finish(name.clone(), fence, result, hour).await;
                prop_assert_eq!(found.unwrap(), expected);
            }
            Op::Forget(fence) => {
                let fence = fence.map(Fence::new);
                let expected = once::forget(record.as_ref(), fence);
                record = record.filter(|_| !expected);
                prop_assert_eq!(onces.forget(name.clone(), fence).await.unwrap(), expected);
            }
            Op::First(items) => {
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
            Op::ForgetSeen(item) => {
                let expected = seen::is_known(known.remove(&item), now);
                let found = seens.forget(name.clone(), Member::of(&[item])).await;
                prop_assert_eq!(found.unwrap(), expected);
            }
            Op::Expire(item) => {
                known.remove(&item);
                let key = keys::seen(&name) + std::str::from_utf8(&[b' ', item]).unwrap();
                server.command(&["DEL", &key]).unwrap();
            }
        }
        prop_assert_eq!(&onces.look(name.clone()).await.unwrap(), &record);
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    #[test]
    fn once_and_seen_decide_as_the_rules_do(ops in ops()) {
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
            let (url, nobody): (_, Weak<Deaf>) = (server.url(), Weak::new());
            let open = || async {
                Redis::open(&url, Duration::from_secs(5), rand::random(), nobody).await.unwrap()
            };
            let backend = REAL.get_or_init(open).await;
            let name = Name::new("test", None, &format!("case-{:x}", rand::random::<u128>()));
            check(backend, server, name.unwrap(), ops).await
        })?;
    }
}
