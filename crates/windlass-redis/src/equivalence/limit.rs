//! Rate limiters: the script decides as the rules do.
//!
//! The script reports the time of its decision, so the rules decide for the same moment, and every
//! answer and every state must be the same to the last digit. To let time pass, the stored state is
//! moved back on both sides.

use std::sync::{Arc, LazyLock};

use proptest::prelude::*;
use proptest::test_runner::TestCaseResult;

use super::fixture::RedisFixture;
use crate::keys::Keys;
use windlass_core::Owner;
use windlass_core::error::ErrorKind;
use windlass_core::name::Name;
use windlass_core::rules::limit::{
    self as rules, HoldRecord, LimitOp, MAX_LOG_UNITS, Rule, RuleState, RuleStates, UnsettledHold,
};
use windlass_core::store::limit::{
    HoldOutcome, HoldRequest, LimitOutcome, LimitRequest, LimitStore, SettleOutcome, SettleRequest,
};

const SECOND: u64 = 1_000_000;

#[derive(Clone, Debug)]
enum Op {
    /// By which list of quotas, and what.
    Request(usize, Request),
    /// Time passes: a share of the time that the limiter takes to recover, in thousandths.
    Pass(u64),
    /// The reported retry time passes, or a microsecond less.
    PassUntilAllowed(u64, bool),
    /// The clock steps back: by a share of the time that the limiter takes to recover, in thousandths.
    StepBack(u64),
    /// The state is deleted; earlier loans and reservations are still out.
    Reset,
}

#[derive(Clone, Debug)]
enum Request {
    Peek,
    Take(u64),
    Reserve(u64, u64),
    /// How much, and for how long: a share of the time that the limiter takes to recover, in
    /// thousandths.
    Lend(u64, u64),
    /// Which prefetched units, and how much of them, in quarters.
    Return(usize, u64),
    Cancel(usize),
    /// In percent of each limit, from the second quota on in reverse order.
    Hold(u64, u64),
    /// Which hold, open or settled, and the true cost in percent of each estimate.
    Settle(usize, u64),
}

/// A hold that the model knows.
struct ModelHold {
    owner: Owner,
    rules: Arc<[Rule]>,
    /// `None` once it is settled.
    record: Option<HoldRecord>,
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
        3 => (amount.clone(), period.clone()).prop_map(|(a, p)| Rule::sliding(a, p).unwrap()),
        3 => (amount, period).prop_map(|(a, p)| Rule::log(a.min(MAX_LOG_UNITS), p).unwrap()),
    ]
}

fn ops() -> impl Strategy<Value = Vec<Op>> {
    // In percent of the limit.
    let cost = prop_oneof![Just(0u64), 1u64..10, 10u64..60, 95u64..130];
    let request = prop_oneof![
        1 => Just(Request::Peek),
        6 => cost.clone().prop_map(Request::Take),
        2 => (cost.clone(), 0u64..3_000).prop_map(|(c, w)| Request::Reserve(c, w)),
        2 => (cost, prop_oneof![1 => Just(0u64), 4 => 1u64..400]).prop_map(|(c, l)| Request::Lend(c, l)),
        2 => (0usize..4, 0u64..5).prop_map(|(i, q)| Request::Return(i, q)),
        1 => (0usize..4).prop_map(Request::Cancel),
        3 => (0u64..110, 0u64..110).prop_map(|(a, b)| Request::Hold(a, b)),
        3 => (0usize..6, prop_oneof![0u64..101, 100u64..2_000, Just(1_000_000)])
            .prop_map(|(i, p)| Request::Settle(i, p)),
    ];
    let op = prop_oneof![
        // Mostly by the first list of quotas; the others stand for changed quotas.
        6 => (prop::sample::select(vec![0usize, 0, 0, 0, 1, 2]), request).prop_map(|(i, a)| Op::Request(i, a)),
        2 => (0u64..1_200).prop_map(Op::Pass),
        1 => (0u64..130, any::<bool>()).prop_map(|(c, at)| Op::PassUntilAllowed(c, at)),
        1 => (0u64..5_000).prop_map(Op::StepBack),
        1 => Just(Op::Reset),
    ];
    prop::collection::vec(op, 1..30)
}

static REDIS: LazyLock<RedisFixture> = LazyLock::new(RedisFixture::start);

struct RealLimiters {
    limits: Arc<dyn LimitStore>,
    redis: &'static RedisFixture,
}

impl RealLimiters {
    fn of(redis: &'static RedisFixture) -> RealLimiters {
        let limits = redis.backend.limits();
        RealLimiters { limits, redis }
    }

    fn stored(&self, name: &Name) -> RuleStates {
        let key = Keys::default().limit(name);
        match self.redis.server.command(&["GET", &key]).unwrap().as_str() {
            "(nil)" => RuleStates::default(),
            text => text.parse().unwrap(),
        }
    }

    /// Moves the stored state back in time, and returns it.
    fn set_back(&self, name: &Name, by: u64) -> RuleStates {
        let states = self.stored(name).moved(by, 0);
        self.keep(name, &states);
        states
    }

    /// Moves the stored state ahead in time, and returns it.
    fn set_ahead(&self, name: &Name, by: u64) -> RuleStates {
        let states = self.stored(name).moved(0, by);
        self.keep(name, &states);
        states
    }

    /// The server has stored this state, with its expiry. Stores it for longer.
    fn check_stored(&self, name: &Name, model: &RuleStates, now: u64) -> TestCaseResult {
        let left: i64 = self
            .redis
            .server
            .command(&["PTTL", &Keys::default().limit(name)])
            .unwrap()
            .parse()
            .unwrap();
        let end = rules::ends(model, now);
        let most = end.saturating_sub(now).div_ceil(1_000) as i64 + 2;
        prop_assert_ne!(left, -1, "no expiry");
        prop_assert!(left <= most, "{} is longer than {}", left, most);
        // Shorter by the duration of the call; gone, if that was longer than the expiry.
        prop_assert!(
            left >= most - 1_000 || left == -2 && most < 1_000,
            "{} and {}",
            left,
            most
        );
        let stored = self.stored(name);
        if !(stored.is_empty() && most < 1_000) {
            prop_assert_eq!(&stored, model, "at {}", now);
        }
        self.keep(name, model);
        Ok(())
    }

    /// Moves the records of holds in time, on both sides.
    fn move_holds(&self, name: &Name, holds: &mut [ModelHold], from: u64, to: u64) {
        for hold in holds {
            if let Some(record) = &mut hold.record {
                *record = record.moved(from, to);
                self.keep_hold(name, &hold.owner, record);
            }
        }
    }

    fn keep_hold(&self, name: &Name, owner: &Owner, record: &HoldRecord) {
        let (key, text) = (Keys::default().hold(name, owner), record.to_string());
        self.redis
            .server
            .command(&["SET", &key, &text, "PX", "600000"])
            .unwrap();
    }

    fn stored_hold(&self, name: &Name, owner: &Owner) -> String {
        let key = Keys::default().hold(name, owner);
        self.redis.server.command(&["GET", &key]).unwrap()
    }

    /// Stores a state for longer than the test takes: the script decides by its clock, not by the
    /// expiry.
    fn keep(&self, name: &Name, states: &RuleStates) {
        if !states.is_empty() {
            let (key, text) = (Keys::default().limit(name), states.to_string());
            self.redis
                .server
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

/// The time that a limiter takes to recover.
fn span(rules: &[Rule]) -> u64 {
    let each = |rule: &Rule| match rule {
        Rule::Bucket(b) => b.full.us,
        Rule::Allowance { .. } => SECOND,
        Rule::Fixed { period, .. } | Rule::Log { period, .. } => *period,
        Rule::Sliding { period, .. } => 2 * period,
    };
    rules.iter().map(each).max().unwrap_or(0).max(1)
}

/// The states of a reply are those of the rules. Only sliding logs are shortened in the reply to a
/// single take, so that it is short; its status is the same.
fn same_states(
    rules: &[Rule],
    want: &LimitOp,
    outcome: &LimitOutcome,
    expected: &RuleStates,
) -> TestCaseResult {
    let single = match want {
        LimitOp::Take(cost) | LimitOp::Reserve(cost, _) => Some(*cost),
        LimitOp::Lease(costs, 0) if costs.len() == 1 => Some(costs[0]),
        _ => None,
    };
    let now = outcome.now;
    let log = |state: &RuleState| matches!(state, RuleState::Log { .. });
    let Some(cost) = single else {
        prop_assert_eq!(&outcome.states, expected, "{:?} at {}", want, now);
        return Ok(());
    };
    prop_assert_eq!(outcome.states.len(), expected.len());
    prop_assert_eq!(outcome.states.mark(), expected.mark());
    for (i, (state, expected)) in outcome.states.iter().zip(expected.iter()).enumerate() {
        if !log(expected) {
            prop_assert_eq!(state, expected, "{:?} at {}", want, now);
            continue;
        }
        let words = state.to_string().split(' ').count();
        prop_assert!(words <= 8, "{} is not short", state);
        if let Some(rule) = rules.get(i).copied() {
            let alone = |state: &RuleState| {
                let states: RuleStates = [state.clone()].into_iter().collect();
                rules::status(&[rule], &states, now, cost)
            };
            prop_assert_eq!(
                alone(state),
                alone(expected),
                "{:?} at {}: {}",
                want,
                now,
                expected
            );
        }
    }
    Ok(())
}

async fn check(
    real: &RealLimiters,
    name: Name,
    lists: [Vec<Rule>; 2],
    ops: Vec<Op>,
) -> TestCaseResult {
    let [some, others] = lists;
    // The first list in another order, after one more quota.
    let mixed = others[..1]
        .iter()
        .chain(some.iter().rev())
        .copied()
        .collect();
    let lists: [Arc<[Rule]>; 3] = [some, others, mixed].map(Arc::from);
    let mut model = RuleStates::default();
    let mut loans: Vec<(u64, u64, u64, u64)> = Vec::new();
    let mut reserved: Vec<(u64, RuleStates)> = Vec::new();
    let mut holds: Vec<ModelHold> = Vec::new();
    let mut last = 0;
    for op in ops {
        let (rules, request) = match op {
            Op::Pass(share) => {
                let by = span(&lists[0]) / 1_000 * share;
                model = real.set_back(&name, by);
                real.move_holds(&name, &mut holds, by, 0);
                loans
                    .iter_mut()
                    .for_each(|loan| loan.1 = loan.1.saturating_sub(by));
                reserved.iter_mut().for_each(|r| r.1 = r.1.moved(by, 0));
                continue;
            }
            Op::PassUntilAllowed(cost, at_it) => {
                let cost = percent(&lists[0], cost);
                let Ok(states) = rules::advance(&lists[0], &model, last) else {
                    continue;
                };
                if let Some(wait) = rules::status(&lists[0], &states, last, cost).retry_after {
                    // The server's clock moves on by more than a microsecond until the next call.
                    // The tests of the rules check the exact moment.
                    let by = wait.saturating_sub(u64::from(!at_it));
                    model = real.set_back(&name, by);
                    real.move_holds(&name, &mut holds, by, 0);
                    loans
                        .iter_mut()
                        .for_each(|loan| loan.1 = loan.1.saturating_sub(by));
                    reserved.iter_mut().for_each(|r| r.1 = r.1.moved(by, 0));
                }
                continue;
            }
            Op::StepBack(share) => {
                // Not beyond what Lua can count exactly, however often.
                let by = (span(&lists[0]) / 1_000 * share).min(30 * 86_400 * SECOND);
                model = real.set_ahead(&name, by);
                real.move_holds(&name, &mut holds, 0, by);
                loans.iter_mut().for_each(|loan| loan.1 += by);
                reserved.iter_mut().for_each(|r| r.1 = r.1.moved(0, by));
                continue;
            }
            Op::Reset => {
                let was = real.limits.reset(name.clone()).await.unwrap();
                prop_assert_eq!(was, !model.is_empty());
                model = RuleStates::default();
                continue;
            }
            Op::Request(i, request) => (Arc::clone(&lists[i]), request),
        };
        let request = match request {
            Request::Hold(first, others) => {
                let owner = Owner::new(&format!("hold-{}", holds.len())).unwrap();
                let each = rules.iter().enumerate();
                let costs = each.map(|(i, rule)| match i {
                    0 => percent(&[*rule], first),
                    _ => percent(&[*rule], others),
                });
                let request = HoldRequest {
                    name: name.clone(),
                    rules: Arc::clone(&rules),
                    owner: owner.clone(),
                    costs: costs.collect(),
                    ttl: 600 * SECOND,
                };
                let outcome = match real.limits.hold(request.clone()).await {
                    Ok(HoldOutcome::Decided(outcome)) => outcome,
                    Ok(HoldOutcome::OwnerInUse) => panic!("{owner:?} is new"),
                    Err(e) => {
                        prop_assert_eq!(e.kind(), ErrorKind::WrongType, "{:?}", e);
                        let expected = rules::hold(&rules, &model, last, &request.costs);
                        prop_assert!(expected.is_err(), "{:?} should be {:?}", e, expected);
                        continue;
                    }
                };
                last = outcome.now;
                let (expected, record) = rules::hold(&rules, &model, last, &request.costs).unwrap();
                prop_assert_eq!(outcome.granted, expected.granted, "{:?}", request);
                if expected.changed {
                    model = expected.states;
                    real.check_stored(&name, &model, last)?;
                }
                let text = record
                    .as_ref()
                    .map_or("(nil)".to_owned(), HoldRecord::to_string);
                prop_assert_eq!(real.stored_hold(&name, &owner), text);
                if record.is_some() {
                    let again = real.limits.hold(request).await.unwrap();
                    prop_assert_eq!(again, HoldOutcome::OwnerInUse);
                    holds.push(ModelHold {
                        owner,
                        rules,
                        record,
                    });
                }
                continue;
            }
            Request::Settle(i, share) => {
                let count = holds.len().max(1);
                let Some(hold) = holds.get_mut(i % count) else {
                    continue;
                };
                let estimates = hold.record.iter().flat_map(|record| &record.quotas);
                let actual: Vec<u64> = estimates
                    .map(|quota| {
                        let units = u128::from(quota.units()) * u128::from(share) / 100;
                        units.min(u128::from(rules::MAX_UNITS)) as u64
                    })
                    .collect();
                // Sometimes with other quotas.
                let rules = if share % 7 == 0 {
                    rules
                } else {
                    Arc::clone(&hold.rules)
                };
                let request = SettleRequest {
                    name: name.clone(),
                    rules: Arc::clone(&rules),
                    owner: hold.owner.clone(),
                    actual,
                };
                let outcome = real.limits.settle(request.clone()).await;
                let Some(record) = &hold.record else {
                    prop_assert_eq!(outcome.unwrap(), SettleOutcome::AlreadySettled);
                    continue;
                };
                let (now, states, quotas) = match outcome {
                    Ok(SettleOutcome::Settled {
                        now,
                        states,
                        quotas,
                    }) => (now, states, quotas),
                    other => {
                        let expected = rules::settle(&rules, &model, last, record, &request.actual);
                        match (&expected, &other) {
                            (Err(UnsettledHold::OtherQuotas), Ok(SettleOutcome::OtherQuotas)) => {}
                            (Err(UnsettledHold::Mismatch(_)), Err(e)) => {
                                prop_assert_eq!(e.kind(), ErrorKind::WrongType);
                            }
                            _ => prop_assert!(false, "{:?} should be {:?}", other, expected),
                        }
                        let text = real.stored_hold(&name, &hold.owner);
                        prop_assert_eq!(text, record.to_string(), "it stays open");
                        continue;
                    }
                };
                last = now;
                let (expected, settled) =
                    rules::settle(&rules, &model, now, record, &request.actual).unwrap();
                prop_assert_eq!(
                    quotas,
                    settled,
                    "{:?} of {:?} on {:?}",
                    request,
                    record,
                    model
                );
                prop_assert_eq!(&states, &expected.states, "{:?} of {:?}", request, record);
                prop_assert_eq!(real.stored_hold(&name, &hold.owner), "s");
                hold.record = None;
                if expected.changed {
                    model = expected.states;
                    real.check_stored(&name, &model, now)?;
                }
                prop_assert_eq!(&real.stored(&name), &model, "{:?}", request);
                continue;
            }
            request => request,
        };
        let want = match request {
            Request::Hold(..) | Request::Settle(..) => unreachable!("handled above"),
            Request::Peek => LimitOp::Peek,
            Request::Take(cost) => LimitOp::Take(percent(&rules, cost)),
            Request::Reserve(cost, wait) => {
                LimitOp::Reserve(percent(&rules, cost), span(&rules) / 1_000 * wait)
            }
            Request::Lend(cost, life) => {
                let cost = percent(&rules, cost);
                let life = span(&rules) / 1_000 * life;
                LimitOp::Lease(vec![cost, cost / 3 + 1, cost / 9 + 1], life)
            }
            Request::Return(i, quarters) => match loans.get(i % loans.len().max(1)) {
                Some((units, at, life, mark)) => {
                    LimitOp::ReturnLeased(units * quarters / 4, *at, *life, *mark)
                }
                None => continue,
            },
            Request::Cancel(i) => match reserved.get(i % reserved.len().max(1)) {
                Some((units, after)) => LimitOp::Cancel(*units, after.clone()),
                None => continue,
            },
        };
        let asked = LimitRequest {
            name: name.clone(),
            rules: Arc::clone(&rules),
            want: want.clone(),
        };
        let before = real.redis.micros();
        let outcome = match real.limits.decide(asked).await {
            Ok(outcome) => outcome,
            Err(e) => {
                prop_assert_eq!(e.kind(), ErrorKind::WrongType, "{:?}", e);
                let expected = rules::decide(&rules, &model, last, &want);
                prop_assert!(expected.is_err(), "{:?} should be {:?}", e, expected);
                prop_assert_eq!(&real.stored(&name), &model);
                continue;
            }
        };
        let now = outcome.now;
        let by_server = before..=real.redis.micros();
        prop_assert!(by_server.contains(&now), "{} is not the server's time", now);
        last = now;
        let expected = rules::decide(&rules, &model, now, &want).unwrap();
        prop_assert_eq!(
            outcome.granted,
            expected.granted,
            "{:?} at {} on {:?}",
            want,
            now,
            model
        );
        same_states(&rules, &want, &outcome, &expected.states)?;
        if expected.changed {
            model = expected.states;
            real.check_stored(&name, &model, now)?;
        }
        prop_assert_eq!(&real.stored(&name), &model, "{:?} at {}", want, now);
        match (&want, outcome.granted) {
            (LimitOp::Lease(_, life), Some(units)) => {
                loans.push((units, now, *life, outcome.states.mark()));
            }
            (LimitOp::Reserve(..), Some(units)) => reserved.push((units, outcome.states)),
            _ => {}
        }
    }
    Ok(())
}

fn check_case(lists: [Vec<Rule>; 2], ops: Vec<Op>) -> TestCaseResult {
    REDIS.case(|redis, name| async move { check(&RealLimiters::of(redis), name, lists, ops).await })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    #[test]
    fn the_limit_script_decides_as_the_rules_do(
        one in rule(), other in rule(), ops in ops()
    ) {
        check_case([vec![one], vec![other]], ops)?;
    }

    #[test]
    fn the_limit_script_decides_by_several_quotas_as_the_rules_do(
        some in prop::collection::vec(rule(), 1..4),
        others in prop::collection::vec(rule(), 1..4),
        ops in ops(),
    ) {
        check_case([some, others], ops)?;
    }
}

/// The order in which the script decides a batch: plan by plan, and single token buckets before the
/// rest.
fn order(requests: &[LimitRequest]) -> Vec<usize> {
    let alike = |a: &LimitRequest, b: &LimitRequest| a.rules == b.rules && a.want == b.want;
    let common = |request: &LimitRequest| {
        matches!(request.rules[..], [Rule::Bucket(_)]) && !matches!(request.want, LimitOp::Take(0))
    };
    let first = |i: usize| {
        requests
            .iter()
            .position(|request| alike(request, &requests[i]))
    };
    let mut order: Vec<usize> = (0..requests.len()).collect();
    order.sort_by_key(|&i| (!common(&requests[i]), first(i), i));
    order
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    /// Many decisions in one call, on the same keys and on others, of one limiter and of several.
    #[test]
    fn the_limit_script_decides_a_batch_as_the_rules_do(
        lists in prop::collection::vec(prop::collection::vec(rule(), 1..3), 1..4),
        // Few different costs, so that plans are shared.
        batches in prop::collection::vec(
            prop::collection::vec((any::<prop::sample::Index>(), 0usize..3, 0u64..2), 1..12), 1..4),
    ) {
        let result: TestCaseResult = REDIS.case(|redis, name| async move {
            let real = RealLimiters::of(redis);
            let lists: Vec<Arc<[Rule]>> = lists.into_iter().map(Arc::from).collect();
            let mut model = std::collections::HashMap::<Name, RuleStates>::new();
            for batch in batches {
                let requests: Vec<LimitRequest> = batch
                    .into_iter()
                    .map(|(list, key, cost)| {
                        let list = list.index(lists.len());
                        let name = format!("{name}-{list}-{key}");
                        LimitRequest {
                            name: Name::new("test", None, &name).unwrap(),
                            rules: Arc::clone(&lists[list]),
                            want: LimitOp::Take(percent(&lists[list], cost * 40)),
                        }
                    })
                    .collect();
                let outcomes = real.limits.decide_all(requests.clone()).await.unwrap();
                prop_assert_eq!(outcomes.len(), requests.len());
                for i in order(&requests) {
                    let (request, outcome) = (&requests[i], outcomes[i].as_ref().unwrap());
                    let stored = model.entry(request.name.clone()).or_default();
                    let expected =
                        rules::decide(&request.rules, stored, outcome.now, &request.want).unwrap();
                    prop_assert_eq!(outcome.granted, expected.granted, "{} {:?}", i, requests);
                    same_states(&request.rules, &request.want, outcome, &expected.states)?;
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
