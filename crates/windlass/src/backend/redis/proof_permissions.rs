//! Permissions on Redis are kept exactly as the rules have it: the same random fields, written and read on both
//! sides, give the same values and the same bytes.

use std::collections::HashMap;
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use proptest::prelude::*;
use proptest::test_runner::TestCaseResult;
use windlass_testkit::RedisServer;

use super::{Redis, keys};
use crate::backend::rules::permissions as rules;
use crate::backend::{Backend, Change, Field, PermissionStore, WakeUps, Wanted};
use crate::lease::Fence;
use crate::name::Name;
use crate::permissions::{Scale, Schema};

#[derive(Clone, Debug)]
enum Op {
    Write(Vec<(u8, Field, u64)>),
    Read(Vec<(u8, Vec<Field>)>),
    Clear(u8),
}

fn field() -> impl Strategy<Value = Field> {
    (0..200u64, 1..=32u32).prop_map(|(offset, width)| Field { offset, width })
}

fn ops() -> impl Strategy<Value = Vec<Op>> {
    let write = (0..3u8, field(), any::<u64>());
    // Both ways of reading: few fields are named, many are fetched as a whole.
    let read = (0..3u8, prop::collection::vec(field(), 1..80));
    let op = prop_oneof![
        4 => prop::collection::vec(write, 1..9).prop_map(Op::Write),
        2 => prop::collection::vec(read, 1..4).prop_map(Op::Read),
        1 => (0..3u8).prop_map(Op::Clear),
    ];
    prop::collection::vec(op, 1..20)
}

struct Deaf;

impl WakeUps for Deaf {
    fn granted(&self, _: u64, _: Option<Fence>) {}
    fn missed(&self) {}
}

struct Real {
    _backend: Arc<dyn Backend>,
    store: Arc<dyn PermissionStore>,
    redis: redis::Client,
}

async fn connect(server: &RedisServer) -> Real {
    let (url, nobody): (_, Weak<Deaf>) = (server.url(), Weak::new());
    let backend = Redis::open(&url, Duration::from_secs(5), rand::random(), nobody);
    let backend = backend.await.unwrap();
    Real {
        store: backend.permissions(),
        _backend: backend,
        redis: redis::Client::open(url).unwrap(),
    }
}

async fn check(real: &Real, space: Name, ops: Vec<Op>) -> TestCaseResult {
    let names = |n: usize| (0..n).map(|n| n.to_string()).collect();
    let schema = Schema::new(Scale::Ranked, names(2), None, names(1)).unwrap();
    let id = schema.id.clone();
    assert!(
        real.store
            .define(space.clone(), None, schema)
            .await
            .unwrap()
    );
    // Whoever saw another schema changes nothing.
    let late = Schema::new(Scale::Ranked, names(2), None, names(2)).unwrap();
    let stored = real.store.define(space.clone(), None, late).await;
    prop_assert!(
        !stored.unwrap(),
        "a schema was changed behind another's back"
    );
    let mut model: HashMap<String, Vec<u8>> = HashMap::new();
    for op in ops {
        match op {
            Op::Write(writes) => {
                // As it is used: values fit their fields.
                let fit = |field: Field, value: u64| value & ((1 << field.width) - 1);
                let writes = writes
                    .into_iter()
                    .map(|(s, f, v)| (s.to_string(), f, fit(f, v)));
                let changes: Vec<Change> = writes
                    .map(|(subject, field, value)| Change {
                        subject,
                        fields: vec![(field, value)],
                    })
                    .collect();
                let mut expected = Vec::new();
                for change in &changes {
                    let bits = model.entry(change.subject.clone()).or_default();
                    let fields = change.fields.iter();
                    let old = fields.map(|(field, value)| rules::set(bits, *field, *value));
                    expected.push(old.collect::<Vec<u64>>());
                }
                let found = real.store.write(space.clone(), id.clone(), changes).await;
                prop_assert_eq!(found.unwrap(), Some(expected));
            }
            Op::Read(reads) => {
                let wanted: Vec<Wanted> = reads
                    .into_iter()
                    .map(|(subject, fields)| Wanted {
                        subject: subject.to_string(),
                        fields,
                    })
                    .collect();
                let expected: Vec<Vec<u64>> = wanted
                    .iter()
                    .map(|wanted| {
                        let bits = model.get(&wanted.subject).cloned().unwrap_or_default();
                        let fields = wanted.fields.iter();
                        fields.map(|field| rules::get(&bits, *field)).collect()
                    })
                    .collect();
                let found = real.store.read(space.clone(), id.clone(), wanted).await;
                prop_assert_eq!(found.unwrap(), expected);
            }
            Op::Clear(subject) => {
                let there = model.remove(&subject.to_string()).is_some();
                let subjects = vec![subject.to_string()];
                let found = real.store.clear(space.clone(), id.clone(), subjects).await;
                prop_assert_eq!(found.unwrap(), vec![there]);
            }
        }
    }
    let mut connection = real.redis.get_multiplexed_async_connection().await.unwrap();
    for (subject, bits) in model {
        let key = keys::permissions(&space, &id) + &subject;
        let stored: Vec<u8> = redis::cmd("GET")
            .arg(key)
            .query_async(&mut connection)
            .await
            .unwrap();
        prop_assert_eq!(stored, bits, "the bytes of {}", subject);
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    #[test]
    fn permissions_are_kept_as_the_rules_have_it(ops in ops()) {
        static RUNTIME: OnceLock<(tokio::runtime::Runtime, RedisServer)> = OnceLock::new();
        let (runtime, server) = RUNTIME.get_or_init(|| {
            let runtime = tokio::runtime::Builder::new_multi_thread()
                .worker_threads(1)
                .enable_all()
                .build()
                .unwrap();
            (runtime, RedisServer::start().unwrap())
        });
        static REAL: tokio::sync::OnceCell<Real> = tokio::sync::OnceCell::const_new();
        runtime.block_on(async {
            let real = REAL.get_or_init(|| connect(server)).await;
            let name = Name::new("test", None, &format!("case-{:x}", rand::random::<u128>()));
            check(real, name.unwrap(), ops).await
        })?;
    }
}
