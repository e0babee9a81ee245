//! The scripts decide exactly as the rules do: the same random operations, against the rules and
//! against a real Redis, give the same outcomes, the same wake-ups, the same news and the same state.

pub(crate) mod model;
pub(crate) mod ops;
mod real;

use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use proptest::prelude::*;
use proptest::test_runner::TestCaseResult;
use windlass_testkit::{RedisCluster, RedisServer};

use self::model::{Model, Seen};
use self::ops::{Op, cases};
use self::real::{Real, Woken};
use windlass_core::name::Name;
use windlass_core::rules::claims as rules;
use windlass_core::rules::wait_queue::MemoryQueue;
use windlass_core::store::{Channel, Holder, Kind, Share};
use windlass_core::{Clock, Fence};

/// Which fence of Redis is which fence of the model: their order must be the same.
#[derive(Default)]
pub(crate) struct Fences(BTreeMap<Fence, Fence>);

impl Fences {
    pub(crate) fn pair(&mut self, model: Fence, real: Fence) -> TestCaseResult {
        if let Some(known) = self.0.get(&model) {
            prop_assert_eq!(*known, real, "the fence of a claim has changed");
            return Ok(());
        }
        let before = self.0.range(..model).next_back();
        let after = self.0.range(model..).next();
        prop_assert!(before.is_none_or(|(_, r)| *r < real), "a fence went back");
        prop_assert!(after.is_none_or(|(_, r)| *r > real), "a fence went ahead");
        self.0.insert(model, real);
        Ok(())
    }

    pub(crate) fn same(&mut self, kind: Kind, model: &Seen, real: &Seen) -> TestCaseResult {
        match (model, real) {
            (Seen::Granted(m), Seen::Granted(r))
            | (Seen::Queued(m), Seen::Queued(r))
            | (Seen::Held(m), Seen::Held(r)) => self.pair(*m, *r),
            (Seen::Busy(a, Some(m)), Seen::Busy(b, Some(r))) if a == b => self.pair(*m, *r),
            // Of several that end at the same moment, either may be named.
            (Seen::Busy(..), Seen::Busy(..)) if kind != Kind::Lock => Ok(()),
            (Seen::Broken(Some((a, Some(m)))), Seen::Broken(Some((b, Some(r))))) if a == b => {
                self.pair(*m, *r)
            }
            _ => {
                prop_assert_eq!(model, real);
                Ok(())
            }
        }
    }
}

async fn check(real: &Real, kind: Kind, name: Name, ops: Vec<Op>) -> TestCaseResult {
    let mut model = Model {
        line: MemoryQueue::default(),
        fence: 0,
        now: Clock::manual().now(),
    };
    let channel = Channel {
        kind: kind.word(),
        name: name.clone(),
    };
    let ear: Weak<Woken> = Arc::downgrade(&real.woken);
    let listening = real
        .backend
        .notifications()
        .listen(channel, ear)
        .await
        .unwrap();
    let mut fences = Fences::default();
    let mut places = BTreeMap::new();
    for op in &ops {
        let expected = model.apply(kind, &name, op);
        let told = real.apply(kind, &name, op, &places, &expected).await;
        fences.same(kind, &expected.seen, &told.seen)?;
        if let (Op::Acquire { owner, .. }, Seen::Granted(f) | Seen::Queued(f)) = (op, &told.seen) {
            places.insert(*owner, *f);
        }
        prop_assert_eq!(expected.wakes.len(), told.wakes.len(), "after {:?}", op);
        for ((claim, fence), (real_claim, real_fence)) in expected.wakes.iter().zip(&told.wakes) {
            prop_assert_eq!(claim, real_claim);
            if fence.get() == 0 || real_fence.get() == 0 {
                prop_assert_eq!(fence, real_fence, "told to ask");
            } else {
                fences.pair(*fence, *real_fence)?;
            }
        }
        prop_assert_eq!(expected.news, told.news, "news after {:?}", op);
        close(expected.left, told.left)?;
        same_state(&mut model, real, kind, &name, &mut fences, op).await?;
    }
    drop(listening);
    Ok(())
}

async fn same_state(
    model: &mut Model,
    real: &Real,
    kind: Kind,
    name: &Name,
    fences: &mut Fences,
    op: &Op,
) -> TestCaseResult {
    let mut draws_none = || unreachable!();
    let mut line = model.line.with(&mut draws_none);
    let Ok(expected) = rules::inspect(&mut line, kind, name.as_str(), model.now, 100);
    let seen = real.claims.inspect(kind, name.clone(), 100).await.unwrap();
    prop_assert_eq!(expected.size, seen.size, "after {:?}", op);
    prop_assert_eq!(expected.used, seen.used, "after {:?}", op);
    prop_assert_eq!(expected.waiters, seen.waiters, "after {:?}", op);
    match (expected.open, seen.open) {
        (Some(model), Some(real)) => fences.pair(model, real)?,
        (model, real) => prop_assert_eq!(model, real),
    }
    // Those who end at the same moment may be named in any order.
    let by_owner = |holders: Vec<Holder>| -> BTreeMap<String, Holder> {
        holders.into_iter().map(|h| (h.owner.clone(), h)).collect()
    };
    let (expected, seen) = (by_owner(expected.holders), by_owner(seen.holders));
    prop_assert!(
        expected.keys().eq(seen.keys()),
        "{expected:?} and {seen:?} after {op:?}"
    );
    for (expected, seen) in expected.values().zip(seen.values()) {
        fences.pair(expected.fence.unwrap(), seen.fence.unwrap())?;
        prop_assert_eq!(expected.weight, seen.weight);
        close(expected.remaining, seen.remaining)?;
    }
    Ok(())
}

/// The model's time stands still, and Redis's does not.
pub(crate) fn close(model: Option<Duration>, real: Option<Duration>) -> TestCaseResult {
    match (model, real) {
        (Some(model), Some(real)) => {
            let apart = model.abs_diff(real);
            prop_assert!(apart < Duration::from_secs(20), "{model:?} and {real:?}");
        }
        (model, real) => prop_assert_eq!(model, real),
    }
    Ok(())
}

/// A server that all cases share, each under a name of its own: nothing is ever flushed.
struct Shared {
    runtime: tokio::runtime::Runtime,
    /// One case at a time: what it hears is its own.
    real: tokio::sync::Mutex<Real>,
}

impl Shared {
    fn new(start: impl FnOnce() -> std::io::Result<(RedisServer, String)>) -> Shared {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .unwrap();
        let (server, url) = start().unwrap();
        let real = runtime.block_on(Real::connect(server, &url));
        Shared {
            runtime,
            real: tokio::sync::Mutex::new(real),
        }
    }

    fn check(&self, kind: Kind, ops: Vec<Op>) -> TestCaseResult {
        self.runtime.block_on(async {
            let real = self.real.lock().await;
            let name = Name::new("test", None, &format!("case-{:x}", rand::random::<u128>()));
            check(&real, kind, name.unwrap(), ops).await
        })
    }
}

/// One server.
fn one() -> &'static Shared {
    static ONE: OnceLock<Shared> = OnceLock::new();
    ONE.get_or_init(|| {
        Shared::new(|| {
            let server = RedisServer::start()?;
            let url = server.url();
            Ok((server, url))
        })
    })
}

/// A node of a cluster, where keys may be on their way, and some scripts go other ways.
fn node() -> &'static Shared {
    static NODE: OnceLock<Shared> = OnceLock::new();
    NODE.get_or_init(|| Shared::new(RedisCluster::of_one))
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1000, max_shrink_iters: 200, ..ProptestConfig::default() })]

    #[test]
    fn the_scripts_decide_as_the_rules_do((kind, ops) in cases()) {
        one().check(kind, ops)?;
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, max_shrink_iters: 200, ..ProptestConfig::default() })]

    #[test]
    fn the_scripts_decide_as_the_rules_do_in_a_cluster((kind, ops) in cases()) {
        node().check(kind, ops)?;
    }
}

/// Rare among random operations, and decided in a hurry for semaphores.
#[test]
fn whoever_is_handed_something_holds_it_until_its_claim_ends() {
    for kind in [Kind::Lock, Kind::Semaphore, Kind::ReadWrite, Kind::Election] {
        let acquire = |owner| Op::Acquire {
            owner,
            claim: 0,
            line_up: true,
            record_now: true,
            ttl: 300,
            share: Share::ONLY,
        };
        let release = Op::Release {
            owner: 0,
            claim: None,
        };
        let ops = vec![acquire(0), acquire(1), Op::Age { owner: 1 }, release];
        one().check(kind, ops.clone()).unwrap();
        node().check(kind, ops).unwrap();
    }
}
