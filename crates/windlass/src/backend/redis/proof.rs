//! The scripts decide exactly as the rules do: the same random operations, against the rules and
//! against a real Redis, give the same outcomes, the same wake-ups and the same state.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, OnceLock, Weak};
use std::time::Duration;

use proptest::prelude::*;
use proptest::test_runner::TestCaseResult;
use windlass_testkit::RedisServer;

use super::Redis;
use crate::backend::rules::line::MemoryLine;
use crate::backend::rules::lock as rules;
use crate::backend::{
    Acquired, Ask, Backend, Holder, IfHeld, LockStore, Renewal, Renewed, SameOwner, WakeAddress,
    WakeUps,
};
use crate::lease::{Clock, Fence, Moment, Owner};
use crate::name::Name;

const OWNERS: u64 = 4;

#[derive(Clone, Debug)]
enum Op {
    Acquire {
        owner: u64,
        claim: u64,
        line_up: bool,
        record_now: bool,
        ttl: u64,
    },
    Renew {
        owner: u64,
        claim: u64,
        ttl: u64,
        same_owner: SameOwner,
    },
    Release {
        owner: u64,
        claim: Option<u64>,
    },
    Break,
    /// The owner's claim runs out, as if its ttl had passed.
    Expire {
        owner: u64,
    },
}

fn ops() -> impl Strategy<Value = Vec<Op>> {
    let owner = 0..OWNERS;
    // Two claims may come as one owner.
    let claim = 0..2u64;
    let ttl = prop::sample::select(vec![60u64, 300, 3000]);
    let same_owner = prop::sample::select(vec![SameOwner::Respect, SameOwner::Replace]);
    let op = prop_oneof![
        4 => (owner.clone(), claim.clone(), any::<bool>(), any::<bool>(), ttl.clone()).prop_map(
            |(owner, claim, line_up, record_now, ttl)| {
                Op::Acquire { owner, claim, line_up, record_now, ttl }
            }
        ),
        3 => (owner.clone(), claim.clone(), ttl, same_owner).prop_map(
            |(owner, claim, ttl, same_owner)| Op::Renew { owner, claim, ttl, same_owner }
        ),
        3 => (owner.clone(), prop::option::of(claim))
            .prop_map(|(owner, claim)| Op::Release { owner, claim }),
        1 => Just(Op::Break),
        3 => owner.prop_map(|owner| Op::Expire { owner }),
    ];
    prop::collection::vec(op, 1..40)
}

/// What must be equal on both sides. Fences are compared by their order.
#[derive(Clone, Debug, PartialEq)]
enum Seen {
    Granted(Fence),
    Queued(Fence),
    Busy(String, Option<Fence>),
    Held,
    Waiting,
    Gone,
    Released(crate::backend::Released),
    Broken(Option<(String, Option<Fence>)>),
    Nothing,
}

/// The rules' side.
struct Model {
    line: MemoryLine,
    fence: u64,
    now: Moment,
}

impl Model {
    fn apply(&mut self, name: &Name, op: &Op) -> (Seen, Vec<(u64, Fence)>, Option<Duration>) {
        let mut fence = self.fence;
        let mut draw = || {
            fence += 1;
            Fence::new(fence)
        };
        let now = self.now;
        let mut line = self.line.with(&mut draw);
        let (seen, wake, left) = match op {
            Op::Acquire { .. } => {
                let Ok(decided) = rules::acquire(&mut line, now, &ask(name, op));
                let (seen, left) = acquired(decided.outcome);
                (seen, decided.wake, left)
            }
            Op::Renew { .. } => {
                let Ok(decided) = rules::renew(&mut line, now, &renewal(name, op, None));
                let (seen, left) = renewed(decided.outcome);
                (seen, decided.wake, left)
            }
            Op::Release { owner, claim } => {
                let claim = claim.map(|claim| wake(*owner, claim));
                let Ok(decided) = rules::release(&mut line, now, &name_owner(*owner), claim);
                (Seen::Released(decided.outcome), decided.wake, None)
            }
            Op::Break => {
                let Ok(decided) = rules::break_lock(&mut line, now);
                (broken(decided.outcome), decided.wake, None)
            }
            Op::Expire { owner } => {
                self.line.expire(&name_owner(*owner));
                (Seen::Nothing, None, None)
            }
        };
        self.fence = fence;
        let wakes = wake
            .into_iter()
            .map(|(to, fence)| (to.claim, fence))
            .collect();
        (seen, wakes, left)
    }
}

/// Redis's side.
struct Real {
    backend: Arc<dyn Backend>,
    locks: Arc<dyn LockStore>,
    woken: Arc<Woken>,
    server: &'static RedisServer,
}

#[derive(Default)]
struct Woken(Mutex<Vec<(u64, Fence)>>);

impl WakeUps for Woken {
    fn granted(&self, claim: u64, fence: Option<Fence>) {
        self.0.lock().unwrap().push((claim, fence.unwrap()));
    }

    fn missed(&self) {}
}

impl Real {
    async fn connect(server: &'static RedisServer) -> Real {
        let woken = Arc::new(Woken::default());
        let weak: Weak<Woken> = Arc::downgrade(&woken);
        let timeout = Duration::from_secs(5);
        let backend = Redis::open(&server.url(), timeout, rand::random(), weak)
            .await
            .unwrap();
        Real {
            locks: backend.locks(),
            backend,
            woken,
            server,
        }
    }

    async fn apply(
        &self,
        name: &Name,
        op: &Op,
        places: &BTreeMap<u64, Fence>,
    ) -> (Seen, Vec<(u64, Fence)>, Option<Duration>) {
        let (seen, left) = match op {
            Op::Acquire { .. } => {
                let ask = ask(name, op);
                let outcome = self.locks.acquire(ask.clone()).await.unwrap();
                if let Acquired::Granted { fence, .. } = outcome {
                    self.record(&ask, fence).await;
                }
                acquired(outcome)
            }
            Op::Renew { owner, .. } => {
                let batch = vec![renewal(name, op, places.get(owner).copied())];
                let answer = self.locks.renew(batch).await.unwrap().remove(0);
                renewed(answer.unwrap())
            }
            Op::Release { owner, claim } => {
                let claim = claim.map(|claim| wake(*owner, claim));
                let owner = name_owner(*owner);
                let answer = self
                    .locks
                    .release(name.clone(), owner, claim)
                    .await
                    .unwrap();
                (Seen::Released(answer), None)
            }
            Op::Break => (
                broken(self.locks.break_lock(name.clone()).await.unwrap()),
                None,
            ),
            Op::Expire { owner } => {
                self.expire(name, &name_owner(*owner));
                (Seen::Nothing, None)
            }
        };
        let wakes = std::mem::take(&mut *self.woken.0.lock().unwrap());
        (seen, wakes, left)
    }

    /// A grant that was not recorded at once is recorded by the keeper a little later.
    async fn record(&self, ask: &Ask, fence: Fence) {
        let key = super::keys::claim(&ask.name, &ask.owner);
        if self.server.command(&["EXISTS", &key]).unwrap() == "1" {
            return;
        }
        let renewal = Renewal {
            name: ask.name.clone(),
            owner: ask.owner.clone(),
            fence,
            ttl: ask.ttl,
            age: Duration::ZERO,
            note: None,
            wake: ask.wake,
            same_owner: SameOwner::Respect,
            write_anew: true,
        };
        let renewed = self.locks.renew(vec![renewal]).await.unwrap().remove(0);
        assert_eq!(renewed.unwrap(), Renewed::Held);
    }

    fn expire(&self, name: &Name, owner: &Owner) {
        let claim = super::keys::claim(name, owner);
        self.server.command(&["DEL", &claim]).unwrap();
        if self.server.command(&["GET", name.as_str()]).unwrap() == owner.as_str() {
            self.server.command(&["DEL", name.as_str()]).unwrap();
        }
    }
}

fn name_owner(owner: u64) -> Owner {
    Owner::new(&format!("owner-{owner}")).unwrap()
}

fn wake(owner: u64, claim: u64) -> WakeAddress {
    WakeAddress {
        client: 0,
        claim: owner * 2 + claim,
    }
}

fn ask(name: &Name, op: &Op) -> Ask {
    let Op::Acquire {
        owner,
        claim,
        line_up,
        record_now,
        ttl,
    } = *op
    else {
        unreachable!("only called for acquire")
    };
    Ask {
        name: name.clone(),
        owner: name_owner(owner),
        ttl: Duration::from_secs(ttl),
        if_held: if line_up {
            IfHeld::LineUp
        } else {
            IfHeld::Answer
        },
        note: None,
        heal_missing_ttl: false,
        record_now,
        wake: wake(owner, claim),
    }
}

fn renewal(name: &Name, op: &Op, fence: Option<Fence>) -> Renewal {
    let Op::Renew {
        owner,
        claim,
        ttl,
        same_owner,
    } = *op
    else {
        unreachable!("only called for renew")
    };
    Renewal {
        name: name.clone(),
        owner: name_owner(owner),
        fence: fence.unwrap_or(Fence::new(1)),
        ttl: Duration::from_secs(ttl),
        age: Duration::ZERO,
        note: None,
        wake: wake(owner, claim),
        same_owner,
        write_anew: false,
    }
}

fn acquired(outcome: Acquired) -> (Seen, Option<Duration>) {
    match outcome {
        Acquired::Granted { fence, .. } => (Seen::Granted(fence), None),
        Acquired::Queued { place, held_for } => (Seen::Queued(place), held_for),
        Acquired::Busy(holder) => (Seen::Busy(holder.owner, holder.fence), holder.remaining),
    }
}

fn renewed(outcome: Renewed) -> (Seen, Option<Duration>) {
    match outcome {
        Renewed::Held => (Seen::Held, None),
        Renewed::Waiting { held_for } => (Seen::Waiting, held_for),
        Renewed::Gone => (Seen::Gone, None),
    }
}

fn broken(holder: Option<Holder>) -> Seen {
    Seen::Broken(holder.map(|h| (h.owner, h.fence)))
}

/// Which fence of Redis is which fence of the model: a map that must only grow upwards.
#[derive(Default)]
struct Fences(BTreeMap<Fence, Fence>);

impl Fences {
    fn pair(&mut self, model: Fence, real: Fence) -> TestCaseResult {
        match self.0.get(&model) {
            Some(known) => prop_assert_eq!(*known, real, "the fence of a claim has changed"),
            None => {
                if let Some((m, r)) = self.0.last_key_value() {
                    prop_assert!(*m < model && *r < real, "a fence went back");
                }
                self.0.insert(model, real);
            }
        }
        Ok(())
    }

    fn same(&mut self, model: &Seen, real: &Seen) -> TestCaseResult {
        match (model, real) {
            (Seen::Granted(m), Seen::Granted(r)) | (Seen::Queued(m), Seen::Queued(r)) => {
                self.pair(*m, *r)
            }
            (Seen::Busy(a, Some(m)), Seen::Busy(b, Some(r))) if a == b => self.pair(*m, *r),
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

async fn check(real: &Real, name: Name, ops: Vec<Op>) -> TestCaseResult {
    let mut model = Model {
        line: MemoryLine::default(),
        fence: 0,
        now: Clock::manual().now(),
    };
    let mut fences = Fences::default();
    let mut places = BTreeMap::new();
    for op in &ops {
        let (expected, expected_wakes, expected_left) = model.apply(&name, op);
        let (seen, wakes, left) = real.apply(&name, op, &places).await;
        fences.same(&expected, &seen)?;
        if let (Op::Acquire { owner, .. }, Seen::Granted(f) | Seen::Queued(f)) = (op, &seen) {
            places.insert(*owner, *f);
        }
        prop_assert_eq!(expected_wakes.len(), wakes.len(), "after {:?}", op);
        for ((claim, fence), (real_claim, real_fence)) in expected_wakes.iter().zip(&wakes) {
            prop_assert_eq!(claim, real_claim);
            fences.pair(*fence, *real_fence)?;
        }
        close(expected_left, left)?;
        let Ok((holder, waiters)) =
            rules::inspect(&mut model.line.with(&mut || unreachable!()), model.now);
        let state = real.locks.inspect(name.clone()).await.unwrap();
        prop_assert_eq!(waiters, state.waiters, "after {:?}", op);
        prop_assert_eq!(
            holder.as_ref().map(|h| &h.owner),
            state.holder.as_ref().map(|h| &h.owner),
            "after {:?}",
            op
        );
        if let (Some(holder), Some(real)) = (holder, state.holder) {
            fences.pair(holder.fence.unwrap(), real.fence.unwrap())?;
            close(holder.remaining, real.remaining)?;
        }
    }
    Ok(())
}

/// The model's time stands still, and Redis's does not.
fn close(model: Option<Duration>, real: Option<Duration>) -> TestCaseResult {
    match (model, real) {
        (Some(model), Some(real)) => {
            let apart = model.abs_diff(real);
            prop_assert!(apart < Duration::from_secs(20), "{model:?} and {real:?}");
        }
        (model, real) => prop_assert_eq!(model, real),
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    #[test]
    fn the_scripts_decide_as_the_rules_do(ops in ops()) {
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
            let real = REAL.get_or_init(|| Real::connect(server)).await;
            assert_eq!(real.backend.capabilities().kind, "redis");
            // A name of its own for each case: nothing is ever flushed.
            let name = Name::new("test", None, &format!("case-{:x}", rand::random::<u128>()));
            check(real, name.unwrap(), ops).await
        })?;
    }
}
