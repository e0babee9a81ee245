//! The counter's script decides exactly as the rules do, to the last of 64 bits.

use std::collections::HashMap;
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use proptest::prelude::*;
use proptest::test_runner::TestCaseResult;
use windlass_testkit::RedisServer;

use crate::{Redis, keys};
use windlass_core::Fence;
use windlass_core::error::ErrorKind;
use windlass_core::name::Name;
use windlass_core::rules::counter::{self as rules, Addition, CounterState};
use windlass_core::rules::operation::Done;
use windlass_core::store::GrantListener;
use windlass_core::store::counter::{Counted, CounterRequest, CounterStore, Operation};

/// So long that no slot ends while a case runs, unless it is moved.
const WINDOW: u64 = 60 * 60 * 1_000_000;

#[derive(Clone, Debug)]
enum Op {
    /// Once perhaps: by an id, and which of several it is.
    Add(Addition, Option<(u8, u64)>),
    /// So many slots of time pass.
    Pass(u64),
    Reset,
}

fn number() -> impl Strategy<Value = i64> {
    prop_oneof![
        4 => -20i64..20,
        1 => any::<i64>(),
        1 => prop::sample::select(vec![
            0, i64::MAX, i64::MIN, i64::MAX - 1, i64::MIN + 1, 1 << 53, (1 << 53) - 1, -(1 << 53),
            (1 << 60) + 1, 9, 10, 99, 100, -9, -10,
        ]),
    ]
}

fn ops() -> impl Strategy<Value = Vec<Op>> {
    let window = prop::sample::select(vec![None, None, None, Some(WINDOW), Some(2 * WINDOW)]);
    let bound = || prop::option::of(number());
    let once = prop::option::of((0u8..2, 0u64..5));
    let add =
        (number(), bound(), bound(), window, once).prop_map(|(amount, min, max, window, once)| {
            let addition = Addition {
                amount,
                min: min.unwrap_or(i64::MIN),
                max: max.unwrap_or(i64::MAX),
                expire: None,
                window,
            };
            Op::Add(addition, once)
        });
    let op = prop_oneof![
        12 => add,
        2 => (1u64..40).prop_map(Op::Pass),
        1 => Just(Op::Reset),
    ];
    prop::collection::vec(op, 1..40)
}

struct Nobody;

impl GrantListener for Nobody {
    fn granted(&self, _claim: u64, _fence: Option<Fence>) {}

    fn missed(&self) {}
}

fn micros(server: &RedisServer) -> u64 {
    let script = "local t = redis.call('TIME') return t[1] .. ' ' .. t[2]";
    let text = server.command(&["EVAL", script, "0"]).unwrap();
    let (seconds, micros) = text.split_once(' ').unwrap();
    seconds.parse::<u64>().unwrap() * 1_000_000 + micros.parse::<u64>().unwrap()
}

/// Moves what is stored back by so many slots.
const SET_BACK: &str = "
    local fields = redis.call('HGETALL', KEYS[1])
    local ttl = redis.call('PTTL', KEYS[1])
    redis.call('DEL', KEYS[1])
    for i = 1, #fields, 2 do
        local slot = fields[i]
        if slot ~= 'width' then
            slot = string.format('%.0f', slot - ARGV[1])
        end
        redis.call('HSET', KEYS[1], slot, fields[i + 1])
    end
    redis.call('PEXPIRE', KEYS[1], ttl)
    return ttl";

async fn check(
    counters: &Arc<dyn CounterStore>,
    server: &RedisServer,
    ops: Vec<Op>,
) -> TestCaseResult {
    let name = format!("case-{:x}", rand::random::<u128>());
    let name = Name::new("test", None, &name).unwrap();
    let mut model: Option<CounterState> = None;
    let mut known: HashMap<u8, Done> = HashMap::new();
    for op in ops {
        let now = micros(server);
        match op {
            Op::Pass(slots) => {
                if let Some(CounterState::Windowed { slots: kept, .. }) = &mut model {
                    kept.iter_mut().for_each(|slot| slot.0 -= slots);
                    let (key, by) = (keys::counter(&name), slots.to_string());
                    let ttl = server.command(&["EVAL", SET_BACK, "1", &key, &by]).unwrap();
                    prop_assert_ne!(ttl, "-1", "no end");
                }
            }
            Op::Reset => {
                let value = counters.reset(name.clone()).await.unwrap();
                prop_assert_eq!(value, model.take().map_or(0, |tally| tally.value(now)));
            }
            Op::Add(addition, once) => {
                let operation = once.map(|(id, number)| Operation {
                    id: format!("id-{id}").into(),
                    number,
                    remember: WINDOW,
                });
                let ask = CounterRequest {
                    name: name.clone(),
                    addition,
                    operation,
                };
                let real = counters.add(ask).await;
                let before =
                    once.and_then(|(id, number)| known.get(&id)?.answer(number, addition.amount));
                if let Some(before) = before {
                    match (before, real) {
                        (Ok(sum), Ok(real)) => prop_assert_eq!(real, Counted::of(sum, true)),
                        (Err(_), Err(e)) => prop_assert_eq!(e.kind(), ErrorKind::InvalidInput),
                        (rules, real) => prop_assert!(false, "{:?} but {:?}", rules, real),
                    }
                    continue;
                }
                let width = rules::width(WINDOW);
                if micros(server) / width != now / width {
                    // A slot has ended in between, and nobody can tell before or after.
                    return Ok(());
                }
                match (rules::add(model.as_ref(), now, &addition), real) {
                    (Ok((sum, next)), Ok(real)) => {
                        if let Some((id, number)) = once
                            && let Some(done) = Done::new(number, addition.amount, sum)
                        {
                            known.insert(id, done);
                        }
                        prop_assert_eq!(
                            real,
                            Counted::of(sum, false),
                            "{:?} on {:?}",
                            addition,
                            model
                        );
                        if next.is_some() {
                            model = next;
                        }
                    }
                    (Err(_), Err(e)) => prop_assert_eq!(e.kind(), ErrorKind::WrongType),
                    (rules, real) => prop_assert!(false, "{:?} but {:?}", rules, real),
                }
            }
        }
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    #[test]
    fn the_counter_script_decides_as_the_rules_do(ops in ops()) {
        static RUNTIME: OnceLock<(tokio::runtime::Runtime, RedisServer)> = OnceLock::new();
        let (runtime, server) = RUNTIME.get_or_init(|| {
            let runtime = tokio::runtime::Builder::new_multi_thread()
                .worker_threads(1)
                .enable_all()
                .build()
                .unwrap();
            (runtime, RedisServer::start().unwrap())
        });
        static REAL: tokio::sync::OnceCell<Arc<dyn CounterStore>> =
            tokio::sync::OnceCell::const_new();
        let result: TestCaseResult = runtime.block_on(async {
            let connect = || async {
                let nobody: Weak<Nobody> = Weak::new();
                let timeout = Duration::from_secs(5);
                let url = server.url();
                let backend = Redis::open(&url, timeout, rand::random(), nobody);
                backend.await.unwrap().counters()
            };
            check(REAL.get_or_init(connect).await, server, ops).await
        });
        result?;
    }
}
