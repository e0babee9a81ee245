//! The scripts decide exactly as the rules do: the same random operations, against the rules and
//! against a real Redis, give the same outcomes, the same wake-ups, the same news and the same state.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, OnceLock, Weak};
use std::time::Duration;

use proptest::prelude::*;
use proptest::test_runner::TestCaseResult;
use windlass_testkit::RedisServer;

use super::Redis;
use crate::backend::rules::claims as rules;
use crate::backend::rules::line::MemoryLine;
use crate::backend::{
    Acquired, Ask, Backend, Channel, ClaimStore, Hears, Holder, IfHeld, IfOtherSize, Kind, Order,
    Refusal, Renewal, Renewed, SameOwner, Share, WakeAddress, WakeUps,
};
use crate::lease::{Clock, Fence, Moment, Owner};
use crate::name::Name;

const OWNERS: u64 = 5;

#[derive(Clone, Debug)]
enum Op {
    Acquire {
        owner: u64,
        claim: u64,
        line_up: bool,
        record_now: bool,
        ttl: u64,
        share: Share,
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
    /// Only for locks.
    Break,
    /// Not for locks.
    Shrink {
        owner: u64,
        claim: u64,
        weight: u32,
    },
    /// Only for semaphores.
    Resize {
        size: u32,
    },
    /// The owner's claim runs out, as if its ttl had passed.
    Expire {
        owner: u64,
    },
    /// Most of the owner's ttl has passed.
    Age {
        owner: u64,
    },
}

/// What is left of a claim that has aged: less than any ttl, by more than counts as close.
const LITTLE: Duration = Duration::from_secs(30);

fn shares(kind: Kind) -> BoxedStrategy<Share> {
    let share = |weight, size| Share {
        weight,
        size,
        ..Share::ONLY
    };
    match kind {
        Kind::Lock | Kind::Election | Kind::Once => Just(Share::ONLY).boxed(),
        Kind::ReadWrite => prop_oneof![Just(share(1, 1000)), Just(share(1000, 1000))].boxed(),
        Kind::Barrier => Just(share(1, 3)).boxed(),
        Kind::Semaphore => (
            // Of one weight mostly, so that few are refused.
            prop::sample::select(vec![1u32, 1, 1, 2, 3]),
            prop::sample::select(vec![3u32, 3, 3, 4]),
            any::<bool>(),
            any::<bool>(),
        )
            .prop_map(|(weight, size, adopt, barge)| Share {
                weight,
                size,
                if_other_size: match adopt {
                    true => IfOtherSize::Adopt,
                    false => IfOtherSize::Refuse,
                },
                order: match barge {
                    true => Order::Barging,
                    false => Order::Fifo,
                },
            })
            .boxed(),
    }
}

fn ops(kind: Kind) -> impl Strategy<Value = Vec<Op>> {
    let owner = 0..OWNERS;
    // Two claims may come as one owner.
    let claim = 0..2u64;
    let ttl = prop::sample::select(vec![60u64, 300, 3000]);
    let same_owner = prop::sample::select(vec![SameOwner::Respect, SameOwner::Replace]);
    let shrink =
        (owner.clone(), claim.clone(), 1..3u32).prop_map(|(owner, claim, weight)| Op::Shrink {
            owner,
            claim,
            weight,
        });
    let seldom = match kind {
        Kind::Lock => Just(Op::Break).boxed(),
        Kind::ReadWrite => shrink.boxed(),
        Kind::Semaphore => {
            prop_oneof![shrink, (2..5u32).prop_map(|size| Op::Resize { size })].boxed()
        }
        _ => owner.clone().prop_map(|owner| Op::Expire { owner }).boxed(),
    };
    let bools = (any::<bool>(), any::<bool>());
    let op = prop_oneof![
        6 => (owner.clone(), claim.clone(), bools, ttl.clone(), shares(kind)).prop_map(
            |(owner, claim, (line_up, record_now), ttl, share)| {
                Op::Acquire { owner, claim, line_up, record_now, ttl, share }
            }
        ),
        3 => (owner.clone(), claim.clone(), ttl, same_owner).prop_map(
            |(owner, claim, ttl, same_owner)| Op::Renew { owner, claim, ttl, same_owner }
        ),
        4 => (owner.clone(), prop::option::of(claim))
            .prop_map(|(owner, claim)| Op::Release { owner, claim }),
        1 => seldom,
        3 => owner.clone().prop_map(|owner| Op::Expire { owner }),
        3 => owner.prop_map(|owner| Op::Age { owner }),
    ];
    prop::collection::vec(op, 1..50)
}

fn cases() -> impl Strategy<Value = (Kind, Vec<Op>)> {
    prop::sample::select(Kind::ALL.to_vec())
        .prop_flat_map(|kind| ops(kind).prop_map(move |ops| (kind, ops)))
}

/// What must be equal on both sides. Fences are compared by their order.
#[derive(Clone, Debug, PartialEq)]
enum Seen {
    Granted(Fence),
    Queued(Fence),
    Busy(String, Option<Fence>),
    Refused(Refusal),
    Held(Fence),
    Waiting,
    Gone,
    Released(crate::backend::Released),
    Broken(Option<(String, Option<Fence>)>),
    Shrunk(bool),
    Resized(Option<u32>),
    Nothing,
}

/// An outcome, those woken, whether there was news, and the time left to whoever is in the way.
struct Told {
    seen: Seen,
    wakes: Vec<(u64, Fence)>,
    news: bool,
    left: Option<Duration>,
}

/// The rules' side.
struct Model {
    line: MemoryLine,
    fence: u64,
    now: Moment,
}

impl Model {
    fn apply(&mut self, kind: Kind, name: &Name, op: &Op) -> Told {
        let mut fence = self.fence;
        let mut draw = || {
            fence += 1;
            Fence::new(fence)
        };
        let now = self.now;
        let mut line = self.line.with(&mut draw);
        let told = |seen, left, wakes: Vec<(WakeAddress, Fence)>, news| Told {
            seen,
            wakes: wakes.into_iter().map(|(to, f)| (to.claim, f)).collect(),
            news,
            left,
        };
        let told = match op {
            Op::Acquire { .. } => {
                let Ok(decided) = rules::acquire(&mut line, now, &ask(kind, name, op));
                let (seen, left) = acquired(decided.outcome);
                told(seen, left, decided.wakes, decided.news)
            }
            Op::Renew { .. } => {
                let Ok(decided) = rules::renew(&mut line, now, &renewal(kind, name, op, None));
                let (seen, left) = renewed(decided.outcome);
                told(seen, left, decided.wakes, decided.news)
            }
            Op::Release { owner, claim } => {
                let claim = claim.map(|claim| wake(*owner, claim));
                let owner = name_owner(*owner);
                let Ok(decided) = rules::release(&mut line, kind, now, &owner, claim);
                let seen = Seen::Released(decided.outcome);
                told(seen, None, decided.wakes, decided.news)
            }
            Op::Break => {
                let Ok(decided) = rules::break_lock(&mut line, now);
                let seen = broken(decided.outcome);
                told(seen, None, decided.wakes, decided.news)
            }
            Op::Shrink {
                owner,
                claim,
                weight,
            } => {
                let claim = wake(*owner, *claim);
                let owner = name_owner(*owner);
                let Ok(decided) = rules::shrink(&mut line, kind, now, &owner, claim, *weight);
                let seen = Seen::Shrunk(decided.outcome);
                told(seen, None, decided.wakes, decided.news)
            }
            Op::Resize { size } => {
                let Ok(decided) = rules::resize(&mut line, kind, now, *size);
                let seen = Seen::Resized(decided.outcome);
                told(seen, None, decided.wakes, decided.news)
            }
            Op::Expire { owner } => {
                self.line.expire(&name_owner(*owner));
                told(Seen::Nothing, None, Vec::new(), false)
            }
            Op::Age { owner } => {
                self.line.end_by(&name_owner(*owner), now + LITTLE);
                told(Seen::Nothing, None, Vec::new(), false)
            }
        };
        self.fence = fence;
        told
    }
}

/// Redis's side.
struct Real {
    backend: Arc<dyn Backend>,
    claims: Arc<dyn ClaimStore>,
    woken: Arc<Woken>,
    server: &'static RedisServer,
}

#[derive(Default)]
struct Woken {
    wakes: Mutex<Vec<(u64, Fence)>>,
    news: Mutex<u64>,
}

impl WakeUps for Woken {
    fn granted(&self, claim: u64, fence: Option<Fence>) {
        self.wakes.lock().unwrap().push((claim, fence.unwrap()));
    }

    fn missed(&self) {}
}

impl Hears for Woken {
    fn heard(&self, _news: &[u8]) {
        *self.news.lock().unwrap() += 1;
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
            claims: backend.claims(),
            backend,
            woken,
            server,
        }
    }

    async fn apply(&self, kind: Kind, name: &Name, op: &Op, places: &BTreeMap<u64, Fence>) -> Told {
        let (seen, left) = match op {
            Op::Acquire { .. } => {
                let ask = ask(kind, name, op);
                let outcome = self.claims.acquire(ask.clone()).await.unwrap();
                if let Acquired::Granted { fence, recorded } = outcome {
                    self.record(&ask, fence, recorded).await;
                }
                acquired(outcome)
            }
            Op::Renew { owner, .. } => {
                let batch = vec![renewal(kind, name, op, places.get(owner).copied())];
                let answer = self.claims.renew(batch).await.unwrap().remove(0);
                renewed(answer.unwrap())
            }
            Op::Release { owner, claim } => {
                let claim = claim.map(|claim| wake(*owner, claim));
                let owner = name_owner(*owner);
                let answer = self.claims.release(kind, name.clone(), owner, claim);
                (Seen::Released(answer.await.unwrap()), None)
            }
            Op::Break => {
                let answer = self.claims.break_lock(name.clone());
                (broken(answer.await.unwrap()), None)
            }
            Op::Shrink {
                owner,
                claim,
                weight,
            } => {
                let (claim, owner) = (wake(*owner, *claim), name_owner(*owner));
                let name = name.clone();
                let answer = self.claims.shrink(kind, name, owner, claim, *weight);
                (Seen::Shrunk(answer.await.unwrap()), None)
            }
            Op::Resize { size } => {
                let answer = self.claims.resize(kind, name.clone(), *size);
                (Seen::Resized(answer.await.unwrap()), None)
            }
            Op::Expire { owner } => {
                self.expire(kind, name, &name_owner(*owner));
                (Seen::Nothing, None)
            }
            Op::Age { owner } => {
                self.age(kind, name, &name_owner(*owner));
                (Seen::Nothing, None)
            }
        };
        Told {
            seen,
            wakes: std::mem::take(&mut *self.woken.wakes.lock().unwrap()),
            news: std::mem::take(&mut *self.woken.news.lock().unwrap()) > 0,
            left,
        }
    }

    /// A grant that was not recorded at once is recorded by the keeper a little later.
    async fn record(&self, ask: &Ask, fence: Fence, recorded: bool) {
        if recorded || self.has_record(ask) {
            return;
        }
        let renewal = Renewal {
            kind: ask.kind,
            name: ask.name.clone(),
            owner: ask.owner.clone(),
            fence,
            ttl: ask.ttl,
            age: Duration::ZERO,
            note: None,
            wake: ask.wake,
            same_owner: SameOwner::Respect,
            write_anew: true,
            renewed: true,
        };
        let renewed = self.claims.renew(vec![renewal]).await.unwrap().remove(0);
        assert_eq!(renewed.unwrap(), Renewed::Held { fence });
    }

    fn has_record(&self, ask: &Ask) -> bool {
        let exists = match ask.kind {
            Kind::Lock => {
                let key = super::keys::claim(&ask.name, &ask.owner);
                self.server.command(&["EXISTS", &key])
            }
            kind => {
                let [room, _, _] = super::keys::room(kind, &ask.name);
                self.server.command(&["HEXISTS", &room, ask.owner.as_str()])
            }
        };
        exists.unwrap() == "1"
    }

    fn expire(&self, kind: Kind, name: &Name, owner: &Owner) {
        let run = |command: &[&str]| self.server.command(command).unwrap();
        let owner = owner.as_str();
        if kind == Kind::Lock {
            run(&[
                "DEL",
                &format!("{}{owner}", super::keys::claim_prefix(name)),
            ]);
            if run(&["GET", name.as_str()]) == owner {
                run(&["DEL", name.as_str()]);
            }
            return;
        }
        let [room, held, _] = super::keys::room(kind, name);
        run(&["ZADD", &held, "XX", "1", owner]);
        let record = run(&["HGET", &room, owner]);
        let mut fields: Vec<&str> = record.splitn(8, ' ').collect();
        if fields.len() > 4 {
            fields[3] = "1";
            run(&["HSET", &room, owner, &fields.join(" ")]);
        }
    }

    fn age(&self, kind: Kind, name: &Name, owner: &Owner) {
        let run = |command: &[&str]| self.server.command(command).unwrap();
        let owner = owner.as_str();
        if kind == Kind::Lock {
            let little = LITTLE.as_millis().to_string();
            let claim = format!("{}{owner}", super::keys::claim_prefix(name));
            run(&["PEXPIRE", &claim, &little]);
            if run(&["GET", name.as_str()]) == owner {
                run(&["PEXPIRE", name.as_str(), &little]);
            }
            return;
        }
        let [room, held, _] = super::keys::room(kind, name);
        let time = run(&["TIME"]);
        let seconds: u64 = time.lines().next().unwrap().parse().unwrap();
        let end = (seconds + LITTLE.as_secs()) * 1000;
        run(&["ZADD", &held, "XX", "LT", &end.to_string(), owner]);
        let record = run(&["HGET", &room, owner]);
        let mut fields: Vec<String> = record.splitn(8, ' ').map(str::to_owned).collect();
        if fields.len() > 4 && fields[3].parse::<u64>().unwrap() > end {
            fields[3] = end.to_string();
            run(&["HSET", &room, owner, &fields.join(" ")]);
        }
    }
}

/// As owners are drawn: others, without a record, pass for another library's, of which the rules know
/// nothing.
fn name_owner(owner: u64) -> Owner {
    Owner::new(&format!("host:1:{owner:032x}")).unwrap()
}

fn wake(owner: u64, claim: u64) -> WakeAddress {
    WakeAddress {
        client: 0,
        claim: owner * 2 + claim,
    }
}

fn ask(kind: Kind, name: &Name, op: &Op) -> Ask {
    let Op::Acquire {
        owner,
        claim,
        line_up,
        record_now,
        ttl,
        share,
    } = *op
    else {
        unreachable!("only called for acquire")
    };
    Ask {
        kind,
        name: name.clone(),
        owner: name_owner(owner),
        share,
        ttl: Duration::from_secs(ttl),
        if_held: if line_up {
            IfHeld::LineUp
        } else {
            IfHeld::Answer
        },
        note: None,
        heal_missing_ttl: false,
        renewed: true,
        record_now,
        wake: wake(owner, claim),
    }
}

fn renewal(kind: Kind, name: &Name, op: &Op, fence: Option<Fence>) -> Renewal {
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
        kind,
        name: name.clone(),
        owner: name_owner(owner),
        fence: fence.unwrap_or(Fence::new(1)),
        ttl: Duration::from_secs(ttl),
        age: Duration::ZERO,
        note: None,
        wake: wake(owner, claim),
        same_owner,
        write_anew: false,
        renewed: true,
    }
}

fn acquired(outcome: Acquired) -> (Seen, Option<Duration>) {
    match outcome {
        Acquired::Granted { fence, .. } => (Seen::Granted(fence), None),
        Acquired::Queued { place, held_for } => (Seen::Queued(place), held_for),
        Acquired::Busy(holder) => (Seen::Busy(holder.owner, holder.fence), holder.remaining),
        Acquired::Refused(refusal) => (Seen::Refused(refusal), None),
    }
}

fn renewed(outcome: Renewed) -> (Seen, Option<Duration>) {
    match outcome {
        Renewed::Held { fence } => (Seen::Held(fence), None),
        Renewed::Waiting { held_for } => (Seen::Waiting, held_for),
        Renewed::Gone => (Seen::Gone, None),
    }
}

fn broken(holder: Option<Holder>) -> Seen {
    Seen::Broken(holder.map(|h| (h.owner, h.fence)))
}

/// Which fence of Redis is which fence of the model: their order must be the same.
#[derive(Default)]
struct Fences(BTreeMap<Fence, Fence>);

impl Fences {
    fn pair(&mut self, model: Fence, real: Fence) -> TestCaseResult {
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

    fn same(&mut self, kind: Kind, model: &Seen, real: &Seen) -> TestCaseResult {
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
        line: MemoryLine::default(),
        fence: 0,
        now: Clock::manual().now(),
    };
    let channel = Channel {
        kind: kind.word(),
        name: name.clone(),
    };
    let ear: Weak<Woken> = Arc::downgrade(&real.woken);
    let listening = real.backend.news().listen(channel, ear).await.unwrap();
    let mut fences = Fences::default();
    let mut places = BTreeMap::new();
    for op in &ops {
        let expected = model.apply(kind, &name, op);
        let told = real.apply(kind, &name, op, &places).await;
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
    #![proptest_config(ProptestConfig { cases: 1000, ..ProptestConfig::default() })]

    #[test]
    fn the_scripts_decide_as_the_rules_do((kind, ops) in cases()) {
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
            check(real, kind, name.unwrap(), ops).await
        })?;
    }
}
