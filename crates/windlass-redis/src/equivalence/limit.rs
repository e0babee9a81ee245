//! The limiter's script decides exactly as the rules do.
//!
//! The script says by which time it decided, so the rules are asked for the same moment, and every
//! answer and every state must be the same to the last digit. Time is moved by hand: what is stored is
//! set back, on both sides.

use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use proptest::prelude::*;
use proptest::test_runner::TestCaseResult;
use windlass_testkit::RedisServer;

use crate::{Redis, keys};
use windlass_core::Fence;
use windlass_core::error::ErrorKind;
use windlass_core::name::Name;
use windlass_core::rules::limit::{self as rules, LimitOp, Rule, RuleStates};
use windlass_core::store::GrantListener;
use windlass_core::store::limit::{LimitRequest, LimitStore};

const SECOND: u64 = 1_000_000;

#[derive(Clone, Debug)]
enum Op {
    Ask(usize, Ask),
    /// So much of the time that the limiter takes to recover passes, in thousandths.
    Pass(u64),
    /// Exactly as much time passes as was said to be needed, or a microsecond less.
    PassUntilAllowed(u64, bool),
    /// All is forgotten; what was lent and reserved before is still out.
    Reset,
}

#[derive(Clone, Debug)]
enum Ask {
    Peek,
    Take(u64),
    Reserve(u64, u64),
    Lend(u64),
    /// Which loan, and how much of it, in quarters.
    Return(usize, u64),
    Cancel(usize),
}

fn rule() -> impl Strategy<Value = Rule> {
    let amount = prop_oneof![1u64..20, 1u64..2_000_000, Just(999_999_999_989)];
    let period = prop_oneof![
        Just(SECOND),
        Just(60 * SECOND),
        1_000u64..100_000_000_000,
        Just(86_400 * SECOND)
    ];
    let burst = prop_oneof![0u64..5, 0u64..3_000, Just(999_999_999_989)];
    prop_oneof![
        4 => (amount.clone(), period.clone(), burst.clone())
            .prop_filter_map("too long", |(a, p, b)| Rule::bucket(a, p, b).ok()),
        1 => burst.prop_map(|burst| Rule::bucket(0, SECOND, burst).unwrap()),
        1 => (amount.clone(), period.clone()).prop_map(|(a, p)| Rule::fixed(a, p).unwrap()),
        3 => (amount, period).prop_map(|(a, p)| Rule::sliding(a, p).unwrap()),
    ]
}

fn ops() -> impl Strategy<Value = Vec<Op>> {
    // In percent of all there can be.
    let cost = prop_oneof![Just(0u64), 1u64..10, 10u64..60, 95u64..130];
    let ask = prop_oneof![
        1 => Just(Ask::Peek),
        6 => cost.clone().prop_map(Ask::Take),
        2 => (cost.clone(), 0u64..3_000).prop_map(|(c, w)| Ask::Reserve(c, w)),
        2 => cost.prop_map(Ask::Lend),
        2 => (0usize..4, 0u64..5).prop_map(|(i, q)| Ask::Return(i, q)),
        1 => (0usize..4).prop_map(Ask::Cancel),
    ];
    let op = prop_oneof![
        // Mostly by the first list of quotas; the others come in when quotas change.
        6 => (prop::sample::select(vec![0usize, 0, 0, 0, 1, 2]), ask).prop_map(|(i, a)| Op::Ask(i, a)),
        2 => (0u64..1_200).prop_map(Op::Pass),
        1 => (0u64..130, any::<bool>()).prop_map(|(c, at)| Op::PassUntilAllowed(c, at)),
        1 => Just(Op::Reset),
    ];
    prop::collection::vec(op, 1..30)
}

struct Nobody;

impl GrantListener for Nobody {
    fn granted(&self, _claim: u64, _fence: Option<Fence>) {}

    fn missed(&self) {}
}

struct Real {
    limits: Arc<dyn LimitStore>,
    server: &'static RedisServer,
}

impl Real {
    async fn connect(server: &'static RedisServer) -> Real {
        let timeout = Duration::from_secs(5);
        let nobody: Weak<Nobody> = Weak::new();
        let backend = Redis::open(&server.url(), timeout, rand::random(), nobody)
            .await
            .unwrap();
        Real {
            limits: backend.limits(),
            server,
        }
    }

    /// The server's time.
    fn micros(&self) -> u64 {
        let script = "local t = redis.call('TIME') return t[1] .. ' ' .. t[2]";
        let text = self.server.command(&["EVAL", script, "0"]).unwrap();
        let (seconds, micros) = text.split_once(' ').unwrap();
        seconds.parse::<u64>().unwrap() * SECOND + micros.parse::<u64>().unwrap()
    }

    fn stored(&self, name: &Name) -> RuleStates {
        let key = keys::limit(name);
        match self.server.command(&["GET", &key]).unwrap().as_str() {
            "(nil)" => RuleStates::default(),
            text => text.parse().unwrap(),
        }
    }

    /// Sets what is stored back by so much, and gives it.
    fn set_back(&self, name: &Name, by: u64) -> RuleStates {
        let states = self.stored(name).moved(by, 0);
        self.keep(name, &states);
        states
    }

    /// Stores it for longer than the test takes: only the time by which the script decides counts.
    fn keep(&self, name: &Name, states: &RuleStates) {
        if !states.is_empty() {
            let (key, text) = (keys::limit(name), states.to_string());
            self.server
                .command(&["SET", &key, &text, "PX", "600000"])
                .unwrap();
        }
    }
}

fn percent(rules: &[Rule], percent: u64) -> u64 {
    let limit = rules.iter().map(Rule::limit).min().unwrap_or(0);
    match percent {
        0 => 0,
        p => (u128::from(limit) * u128::from(p) / 100).max(1) as u64,
    }
}

/// The time in which a limiter recovers.
fn span(rules: &[Rule]) -> u64 {
    let each = |rule: &Rule| match rule {
        Rule::Bucket(b) => b.full.us,
        Rule::Allowance { .. } => SECOND,
        Rule::Fixed { period, .. } => *period,
        Rule::Sliding { period, .. } => 2 * period,
    };
    rules.iter().map(each).max().unwrap_or(0).max(1)
}

async fn check(real: &Real, name: Name, lists: [Vec<Rule>; 2], ops: Vec<Op>) -> TestCaseResult {
    let [some, others] = lists;
    // The first ones in another order, and behind one more.
    let mixed = others[..1]
        .iter()
        .chain(some.iter().rev())
        .copied()
        .collect();
    let lists: [Arc<[Rule]>; 3] = [some, others, mixed].map(Arc::from);
    let mut model = RuleStates::default();
    let mut loans: Vec<(u64, u64, u64)> = Vec::new();
    let mut reserved: Vec<(u64, RuleStates)> = Vec::new();
    let mut last = 0;
    for op in ops {
        let (rules, ask) = match op {
            Op::Pass(share) => {
                let by = span(&lists[0]) / 1_000 * share;
                model = real.set_back(&name, by);
                loans
                    .iter_mut()
                    .for_each(|loan| loan.1 = loan.1.saturating_sub(by));
                reserved.iter_mut().for_each(|r| r.1 = r.1.moved(by, 0));
                continue;
            }
            Op::PassUntilAllowed(cost, at_it) => {
                let cost = percent(&lists[0], cost);
                let Ok(states) = rules::bring_up(&lists[0], &model, last) else {
                    continue;
                };
                if let Some(wait) = rules::standing(&lists[0], &states, last, cost).retry_after {
                    // The server's clock goes on, by more than a microsecond: only the rules can be
                    // asked for one moment. See the tests of the rules for that.
                    let by = wait.saturating_sub(u64::from(!at_it));
                    model = real.set_back(&name, by);
                    loans
                        .iter_mut()
                        .for_each(|loan| loan.1 = loan.1.saturating_sub(by));
                    reserved.iter_mut().for_each(|r| r.1 = r.1.moved(by, 0));
                }
                continue;
            }
            Op::Reset => {
                let was = real.limits.reset(name.clone()).await.unwrap();
                prop_assert_eq!(was, !model.is_empty());
                model = RuleStates::default();
                continue;
            }
            Op::Ask(i, ask) => (Arc::clone(&lists[i]), ask),
        };
        let want = match ask {
            Ask::Peek => LimitOp::Peek,
            Ask::Take(cost) => LimitOp::Take(percent(&rules, cost)),
            Ask::Reserve(cost, wait) => {
                LimitOp::Reserve(percent(&rules, cost), span(&rules) / 1_000 * wait)
            }
            Ask::Lend(cost) => {
                let cost = percent(&rules, cost);
                LimitOp::Lend(vec![cost, cost / 3 + 1, cost / 9 + 1])
            }
            Ask::Return(i, quarters) => match loans.get(i % loans.len().max(1)) {
                Some((units, at, mark)) => LimitOp::Return(units * quarters / 4, *at, *mark),
                None => continue,
            },
            Ask::Cancel(i) => match reserved.get(i % reserved.len().max(1)) {
                Some((units, after)) => LimitOp::Cancel(*units, after.clone()),
                None => continue,
            },
        };
        let asked = LimitRequest {
            name: name.clone(),
            rules: Arc::clone(&rules),
            want: want.clone(),
        };
        let before = real.micros();
        let verdict = match real.limits.decide(asked).await {
            Ok(verdict) => verdict,
            Err(e) => {
                prop_assert_eq!(e.kind(), ErrorKind::WrongType, "{:?}", e);
                let expected = rules::decide(&rules, &model, last, &want);
                prop_assert!(expected.is_err(), "{:?} should be {:?}", e, expected);
                prop_assert_eq!(&real.stored(&name), &model);
                continue;
            }
        };
        let now = verdict.now;
        let by_server = before..=real.micros();
        prop_assert!(by_server.contains(&now), "{} is not the server's time", now);
        last = now;
        let expected = rules::decide(&rules, &model, now, &want).unwrap();
        prop_assert_eq!(
            verdict.granted,
            expected.granted,
            "{:?} at {} on {:?}",
            want,
            now,
            model
        );
        prop_assert_eq!(
            &verdict.states,
            &expected.states,
            "{:?} at {} on {:?}",
            want,
            now,
            model
        );
        if expected.changed {
            model = expected.states;
            let left: i64 = real
                .server
                .command(&["PTTL", &keys::limit(&name)])
                .unwrap()
                .parse()
                .unwrap();
            let end = rules::ends(&model, now);
            let most = end.saturating_sub(now).div_ceil(1_000) as i64 + 2;
            prop_assert_ne!(left, -1, "no end");
            prop_assert!(left <= most, "{} is longer than {}", left, most);
            // Shorter by as long as it took to ask; gone, if that was longer than it was to live.
            prop_assert!(
                left >= most - 1_000 || left == -2 && most < 1_000,
                "{} and {}",
                left,
                most
            );
            let stored = real.stored(&name);
            if !(stored.is_empty() && most < 1_000) {
                prop_assert_eq!(&stored, &model, "{:?} at {}", want, now);
            }
            real.keep(&name, &model);
        }
        prop_assert_eq!(&real.stored(&name), &model, "{:?} at {}", want, now);
        match (&want, verdict.granted) {
            (LimitOp::Lend(_), Some(units)) => loans.push((units, now, verdict.states.mark())),
            (LimitOp::Reserve(..), Some(units)) => reserved.push((units, verdict.states)),
            _ => {}
        }
    }
    Ok(())
}

fn real() -> (&'static tokio::runtime::Runtime, &'static RedisServer) {
    static RUNTIME: OnceLock<(tokio::runtime::Runtime, RedisServer)> = OnceLock::new();
    let (runtime, server) = RUNTIME.get_or_init(|| {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .unwrap();
        (runtime, RedisServer::start().unwrap())
    });
    (runtime, server)
}

fn prove(lists: [Vec<Rule>; 2], ops: Vec<Op>) -> TestCaseResult {
    static REAL: tokio::sync::OnceCell<Real> = tokio::sync::OnceCell::const_new();
    let (runtime, server) = real();
    runtime.block_on(async {
        let real = REAL.get_or_init(|| Real::connect(server)).await;
        let name = Name::new("test", None, &format!("case-{:x}", rand::random::<u128>()));
        check(real, name.unwrap(), lists, ops).await
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    #[test]
    fn the_limit_script_decides_as_the_rules_do(
        one in rule(), other in rule(), ops in ops()
    ) {
        prove([vec![one], vec![other]], ops)?;
    }

    #[test]
    fn the_limit_script_decides_by_several_quotas_as_the_rules_do(
        some in prop::collection::vec(rule(), 1..4),
        others in prop::collection::vec(rule(), 1..4),
        ops in ops(),
    ) {
        prove([some, others], ops)?;
    }
}

/// The order in which a batch is decided: plan by plan, and what is common before what is not.
fn order(asks: &[LimitRequest]) -> Vec<usize> {
    let alike = |a: &LimitRequest, b: &LimitRequest| a.rules == b.rules && a.want == b.want;
    let common = |ask: &LimitRequest| {
        matches!(ask.rules[..], [Rule::Bucket(_)]) && !matches!(ask.want, LimitOp::Take(0))
    };
    let first = |i: usize| asks.iter().position(|ask| alike(ask, &asks[i]));
    let mut order: Vec<usize> = (0..asks.len()).collect();
    order.sort_by_key(|&i| (!common(&asks[i]), first(i), i));
    order
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    /// Many decisions in one call, on the same keys and on others, of one limiter and of several.
    #[test]
    fn the_limit_script_decides_a_batch_as_the_rules_do(
        lists in prop::collection::vec(prop::collection::vec(rule(), 1..3), 1..4),
        // Percent of all there can be: few, so that plans are shared.
        batches in prop::collection::vec(
            prop::collection::vec((any::<prop::sample::Index>(), 0usize..3, 0u64..2), 1..12), 1..4),
    ) {
        static REAL: tokio::sync::OnceCell<Real> = tokio::sync::OnceCell::const_new();
        let (runtime, server) = real();
        let result: TestCaseResult = runtime.block_on(async {
            let real = REAL.get_or_init(|| Real::connect(server)).await;
            let case = rand::random::<u128>();
            let lists: Vec<Arc<[Rule]>> = lists.into_iter().map(Arc::from).collect();
            let mut model = std::collections::HashMap::<Name, RuleStates>::new();
            for batch in batches {
                let asks: Vec<LimitRequest> = batch
                    .into_iter()
                    .map(|(list, key, cost)| {
                        let list = list.index(lists.len());
                        let name = format!("case-{case:x}-{list}-{key}");
                        LimitRequest {
                            name: Name::new("test", None, &name).unwrap(),
                            rules: Arc::clone(&lists[list]),
                            want: LimitOp::Take(percent(&lists[list], cost * 40)),
                        }
                    })
                    .collect();
                let verdicts = real.limits.decide_all(asks.clone()).await.unwrap();
                prop_assert_eq!(verdicts.len(), asks.len());
                for i in order(&asks) {
                    let (ask, verdict) = (&asks[i], verdicts[i].as_ref().unwrap());
                    let stored = model.entry(ask.name.clone()).or_default();
                    let expected =
                        rules::decide(&ask.rules, stored, verdict.now, &ask.want).unwrap();
                    prop_assert_eq!(verdict.granted, expected.granted, "{} {:?}", i, asks);
                    prop_assert_eq!(&verdict.states, &expected.states, "{} {:?}", i, asks);
                    if expected.changed {
                        *stored = expected.states;
                    }
                }
                for (name, states) in &model {
                    real.keep(name, states);
                }
            }
            Ok(())
        });
        result?;
    }
}
