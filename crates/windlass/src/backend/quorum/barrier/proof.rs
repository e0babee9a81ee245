//! A barrier over a quorum decides exactly as the rules do: what is written and read back at every step, while
//! time passes, and when a change comes through whose answer was lost; and on real nodes.

use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use proptest::prelude::*;
use proptest::test_runner::TestCaseResult;
use windlass_testkit::{Flavor, RedlockNodes};

use super::value::State;
use super::{Answer, Ask, decide};
use crate::backend::quorum::register::{Found, LONGEST_KEEP, Next};
use crate::backend::quorum::{Address, Quorum};
use crate::backend::redis::proof::Fences;
use crate::backend::redis::proof::model::{Model, Seen, acquired, renewed};
use crate::backend::redis::proof::ops::{LITTLE, Op, ask, name_owner, ops, renewal, wake};
use crate::backend::rules::claims as rules;
use crate::backend::rules::line::MemoryLine;
use crate::backend::{Backend, Kind, Occupancy, WakeUps};
use crate::lease::{Clock, Fence};
use crate::name::Name;

const KIND: Kind = Kind::Barrier;
const MAX_TTL: Duration = Duration::from_secs(3600);

#[derive(Clone, Debug)]
enum Step {
    /// And whether the first try came through, but was not heard.
    Op(Op, bool),
    Pass(Duration),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let passed = prop::collection::vec(prop::option::of(1..200_000u64), 50);
    let again = prop::collection::vec(any::<bool>(), 50);
    (ops(KIND, 3), again, passed).prop_map(|(ops, again, passed)| {
        let mut steps = Vec::new();
        for (op, (again, passed)) in ops.into_iter().zip(again.into_iter().zip(passed)) {
            steps.push(Step::Op(op, again));
            steps.extend(passed.map(|ms| Step::Pass(Duration::from_millis(ms))));
        }
        steps
    })
}

fn model() -> Model {
    Model {
        line: MemoryLine::default(),
        fence: 0,
        now: Clock::manual().now() + Duration::from_secs(1000),
    }
}

/// The value that the nodes keep, and their number.
struct Kept {
    found: Option<Found>,
    number: u64,
}

impl Kept {
    fn state(&self) -> State {
        State::read(self.found.as_ref()).unwrap()
    }

    fn keep(&mut self, value: Vec<u8>, left: Duration) {
        let value = value.into();
        self.found = Some(Found { value, left });
    }

    /// Has the value changed, and tells the last answer and whether there is any news.
    fn change(&mut self, mut asked: Vec<Ask>, times: usize) -> (Answer, bool) {
        let mut told = None;
        let mut any_news = false;
        for _ in 0..times {
            self.number += 1;
            let found = self.found.as_ref();
            let (mut answers, next) = decide(found, self.number, MAX_TTL, &mut asked).unwrap();
            if let Next::Becomes {
                value,
                keep,
                news,
                highest,
            } = next
            {
                any_news |= news;
                assert!(highest + 1 >= self.number, "{highest} and {}", self.number);
                // As nodes do that accept it.
                self.number = self.number.max(highest);
                self.keep(value, keep);
            }
            told = answers.pop();
        }
        (told.expect("it was asked once at least"), any_news)
    }

    fn apply(&mut self, name: &Name, op: &Op, again: bool) -> (Seen, Option<Duration>, bool) {
        let times = if again { 2 } else { 1 };
        let asked = match op {
            Op::Acquire { .. } => Ask::Acquire(ask(KIND, name, op)),
            Op::Renew { .. } => Ask::Renew(renewal(KIND, name, op, None)),
            Op::Release { owner, claim } => Ask::Release {
                owner: name_owner(*owner),
                claim: claim.map(|claim| wake(*owner, claim)),
                found: None,
            },
            Op::Expire { owner } | Op::Age { owner } => {
                let mut state = self.state();
                match op {
                    Op::Age { .. } => state.line.end_by(&name_owner(*owner), state.now + LITTLE),
                    _ => state.line.expire(&name_owner(*owner)),
                }
                if self.found.is_some() {
                    self.keep(state.write(LONGEST_KEEP), LONGEST_KEEP);
                }
                return (Seen::Nothing, None, false);
            }
            other => unreachable!("{other:?} is not for barriers"),
        };
        let (answer, news) = self.change(vec![asked], times);
        let (seen, left) = match answer {
            Answer::Acquired(outcome) => acquired(outcome.unwrap()),
            Answer::Renewed(outcome) => renewed(outcome),
            Answer::Released(outcome) => (Seen::Released(outcome), None),
            Answer::Look(_) => unreachable!("nobody looked"),
        };
        (seen, left, news)
    }
}

fn same_sight(expected: &Occupancy, seen: &Occupancy, fences: &mut Fences) -> TestCaseResult {
    let numbers = |o: &Occupancy| (o.size, o.used, o.waiters);
    prop_assert_eq!(numbers(expected), numbers(seen));
    prop_assert_eq!(expected.open.is_some(), seen.open.is_some());
    if let (Some(model), Some(real)) = (expected.open, seen.open) {
        fences.pair(model, real)?;
    }
    let by_owner = |o: &Occupancy| -> BTreeMap<String, Fence> {
        let holders = o.holders.iter();
        holders
            .map(|h| (h.owner.clone(), h.fence.unwrap()))
            .collect()
    };
    let (expected, seen) = (by_owner(expected), by_owner(seen));
    prop_assert!(expected.keys().eq(seen.keys()), "{expected:?} and {seen:?}");
    for (expected, seen) in expected.values().zip(seen.values()) {
        fences.pair(*expected, *seen)?;
    }
    Ok(())
}

/// Those times are the same, but for rounding.
fn same_time(model: Option<Duration>, real: Option<Duration>) -> TestCaseResult {
    let apart = match (model, real) {
        (Some(model), Some(real)) => model.abs_diff(real),
        (None, None) => Duration::ZERO,
        (model, real) => return Err(TestCaseError::fail(format!("{model:?} and {real:?}"))),
    };
    prop_assert!(apart < Duration::from_millis(1), "{model:?} and {real:?}");
    Ok(())
}

fn check(steps: Vec<Step>) -> TestCaseResult {
    let name = Name::new("test", None, "phase").unwrap();
    let (mut model, mut fences) = (model(), Fences::default());
    let mut kept = Kept {
        found: None,
        number: 1000,
    };
    for step in &steps {
        let (op, again) = match step {
            Step::Op(op, again) => (op, *again),
            Step::Pass(time) => {
                model.now = model.now + *time;
                if let Some(found) = &mut kept.found {
                    found.left -= *time;
                }
                continue;
            }
        };
        let expected = model.apply(KIND, &name, op);
        let (seen, left, news) = kept.apply(&name, op, again);
        fences.same(KIND, &expected.seen, &seen)?;
        same_time(expected.left, left)?;
        // Whoever asks again may cause some that is needless.
        prop_assert!(news == expected.news || again && news, "news after {op:?}");
        let state = kept.state();
        for (claim, fence) in &expected.wakes {
            let owner = claim / 2;
            // Whoever asks as another claim of the same owner has taken its place since.
            let held = |claim| state.holds(&name_owner(owner), wake(owner, claim));
            let held = held(0).or(held(1));
            prop_assert!(held.is_some(), "{owner} has come in, after {op:?}");
            fences.pair(*fence, held.unwrap())?;
        }
        let mut none = || Fence::new(0);
        let mut line = model.line.with(&mut none);
        let Ok(expected) = rules::inspect(&mut line, KIND, name.as_str(), model.now, 100);
        let seen = state.occupancy(&name, 100);
        same_sight(&expected, &seen, &mut fences)?;
        for (expected, seen) in expected.holders.iter().zip(&seen.holders) {
            same_time(expected.remaining, seen.remaining)?;
            same_time(expected.age, seen.age)?;
        }
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 500, ..ProptestConfig::default() })]

    #[test]
    fn a_barrier_over_a_quorum_decides_as_the_rules_do(steps in steps()) {
        check(steps)?;
    }
}

/// Of several nodes that keep the same, and whose clocks do not agree, the one counts that says the least has passed:
/// see [`Found::left`]. Here: that what has passed is what counts.
#[test]
fn what_is_written_says_how_long_ago_it_was() {
    let mut kept = Kept {
        found: None,
        number: 7,
    };
    let name = Name::new("test", None, "phase").unwrap();
    let enter = Op::Acquire {
        owner: 1,
        claim: 0,
        line_up: true,
        record_now: true,
        ttl: 60,
        share: crate::backend::Share {
            size: 3,
            ..crate::backend::Share::ONLY
        },
    };
    let (seen, ..) = kept.apply(&name, &enter, false);
    assert_eq!(seen, Seen::Granted(Fence::new(8)), "the number itself");
    for (passed, left) in [(0, 60), (20, 40), (59, 1), (60, 0)] {
        kept.found.as_mut().unwrap().left = LONGEST_KEEP - Duration::from_secs(passed);
        let seen = kept.state().occupancy(&name, 1);
        let remaining = seen.holders.first().and_then(|h| h.remaining);
        let expected = (left > 0).then_some(Duration::from_secs(left));
        assert_eq!(remaining, expected, "after {passed} s");
    }
    // A node whose clock was set back.
    kept.found.as_mut().unwrap().left = 2 * LONGEST_KEEP;
    assert_eq!(kept.state().occupancy(&name, 1).used, 1);
    let foreign = Found {
        value: b"1 7 3\n".as_slice().into(),
        left: Duration::ZERO,
    };
    let e = State::read(Some(&foreign)).map(drop).unwrap_err();
    assert_eq!(e.kind(), crate::ErrorKind::WrongType);
}

struct Deaf;

impl WakeUps for Deaf {
    fn granted(&self, _: u64, _: Option<Fence>) {}

    fn missed(&self) {}
}

async fn check_real(real: &dyn Backend, ops: Vec<Op>) -> TestCaseResult {
    let name = format!("case-{:x}", rand::random::<u128>());
    let name = Name::new("test", None, &name).unwrap();
    let (mut model, mut fences) = (model(), Fences::default());
    let claims = real.claims();
    for op in &ops {
        let seen = match op {
            Op::Acquire { .. } => acquired(claims.acquire(ask(KIND, &name, op)).await.unwrap()).0,
            Op::Renew { .. } => {
                let batch = vec![renewal(KIND, &name, op, None)];
                let mut answers = claims.renew(batch).await.unwrap();
                renewed(answers.remove(0).unwrap()).0
            }
            Op::Release { owner, claim } => {
                let claim = claim.map(|claim| wake(*owner, claim));
                let owner = name_owner(*owner);
                let answer = claims.release(KIND, name.clone(), owner, claim);
                Seen::Released(answer.await.unwrap())
            }
            _ => continue,
        };
        let expected = model.apply(KIND, &name, op).seen;
        fences.same(KIND, &expected, &seen)?;
        let mut none = || Fence::new(0);
        let mut line = model.line.with(&mut none);
        let Ok(expected) = rules::inspect(&mut line, KIND, name.as_str(), model.now, 100);
        let seen = claims.inspect(KIND, name.clone(), 100).await.unwrap();
        same_sight(&expected, &seen, &mut fences)?;
    }
    Ok(())
}

proptest! {
    // Few: each operation takes two rounds, and the decisions are checked above.
    #![proptest_config(ProptestConfig { cases: 15, ..ProptestConfig::default() })]

    #[test]
    fn a_barrier_on_real_nodes_decides_as_the_rules_do(ops in ops(KIND, 3)) {
        static BED: OnceLock<(tokio::runtime::Runtime, RedlockNodes)> = OnceLock::new();
        let (runtime, nodes) = BED.get_or_init(|| {
            let runtime = tokio::runtime::Builder::new_multi_thread()
                .worker_threads(1)
                .enable_all()
                .build()
                .unwrap();
            (runtime, RedlockNodes::durable(3, Flavor::Valkey).unwrap())
        });
        static REAL: tokio::sync::OnceCell<Arc<dyn Backend>> = tokio::sync::OnceCell::const_new();
        runtime.block_on(async {
            let real = REAL.get_or_init(|| async {
                let nobody: Weak<Deaf> = Weak::new();
                let url = nodes.url("node_timeout=10s&max_ttl=1h");
                let address = Address::parse(&url).unwrap();
                let (clock, timeout) = (Clock::system(), Duration::from_secs(30));
                let quorum = Quorum::open(address, "test".into(), clock, timeout, 7, nobody);
                quorum.await.unwrap()
            }).await;
            check_real(&**real, ops).await
        })?;
    }
}
