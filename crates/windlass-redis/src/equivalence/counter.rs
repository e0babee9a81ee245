//! Counters: the script decides as the rules do, with all 64 bits.

use std::collections::HashMap;
use std::sync::LazyLock;

use proptest::prelude::*;
use proptest::test_runner::TestCaseResult;

use super::fixture::RedisFixture;
use crate::keys::Keys;
use windlass_core::error::ErrorKind;
use windlass_core::name::Name;
use windlass_core::rules::counter::{self as rules, Addition, CounterState};
use windlass_core::rules::operation::Done;
use windlass_core::store::counter::{Counted, CounterRequest, Operation};

/// Long enough that no slot of the window ends during a case, unless time is moved.
const WINDOW: u64 = 60 * 60 * 1_000_000;

#[derive(Clone, Debug)]
enum CounterOp {
    /// With an id and a number if the operation is idempotent.
    Add(Addition, Option<(u8, u64)>),
    /// This many slots of the window pass.
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

fn ops() -> impl Strategy<Value = Vec<CounterOp>> {
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
            CounterOp::Add(addition, once)
        });
    let op = prop_oneof![
        12 => add,
        2 => (1u64..40).prop_map(CounterOp::Pass),
        1 => Just(CounterOp::Reset),
    ];
    prop::collection::vec(op, 1..40)
}

/// Moves the stored slots back in time.
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

async fn check(redis: &RedisFixture, name: Name, ops: Vec<CounterOp>) -> TestCaseResult {
    let (counters, server) = (redis.backend.counters(), &redis.server);
    let mut model: Option<CounterState> = None;
    let mut known: HashMap<u8, Done> = HashMap::new();
    for op in ops {
        let now = redis.micros();
        match op {
            CounterOp::Pass(slots) => {
                if let Some(CounterState::Windowed { slots: kept, .. }) = &mut model {
                    kept.iter_mut().for_each(|slot| slot.0 -= slots);
                    let (key, by) = (Keys::default().counter(&name), slots.to_string());
                    let ttl = server.command(&["EVAL", SET_BACK, "1", &key, &by]).unwrap();
                    prop_assert_ne!(ttl, "-1", "no expiry");
                }
            }
            CounterOp::Reset => {
                let value = counters.reset(name.clone()).await.unwrap();
                prop_assert_eq!(value, model.take().map_or(0, |tally| tally.value(now)));
            }
            CounterOp::Add(addition, once) => {
                let operation = once.map(|(id, number)| Operation {
                    id: format!("id-{id}").into(),
                    number,
                    remember: WINDOW,
                });
                let request = CounterRequest {
                    name: name.clone(),
                    addition,
                    operation,
                };
                let real = counters.add(request).await;
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
                if redis.micros() / width != now / width {
                    // A slot ended during the call: the result may be of before or after.
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
        static REDIS: LazyLock<RedisFixture> = LazyLock::new(RedisFixture::start);
        REDIS.case(|redis, name| check(redis, name, ops))?;
    }
}
