//! Holds: whatever is refunded, no more is admitted than if the true cost had been charged at once.

use super::*;

#[derive(Clone, Debug)]
enum Op {
    Take(u64),
    /// The estimate, in percent of the limit.
    Hold(u64),
    /// Which hold, and the true cost in percent of its estimate.
    Settle(usize, u64),
    Reserve(u64, u64),
    Cancel(usize),
    Lease(u64, u64),
    /// A share of the time that the bucket takes to refill, in thousandths.
    Pass(u64),
}

fn ops(settled: std::ops::Range<u64>) -> impl Strategy<Value = Vec<Op>> {
    let cost = prop_oneof![1u64..10, 10u64..60, 95u64..101];
    let op = prop_oneof![
        4 => cost.clone().prop_map(Op::Take),
        4 => cost.clone().prop_map(Op::Hold),
        4 => (0usize..6, settled).prop_map(|(i, p)| Op::Settle(i, p)),
        1 => (cost.clone(), 0u64..2_000).prop_map(|(c, w)| Op::Reserve(c, w)),
        1 => (0usize..3).prop_map(Op::Cancel),
        1 => (cost, 1u64..300).prop_map(|(c, l)| Op::Lease(c, l)),
        6 => prop_oneof![0u64..50, 0u64..1_200].prop_map(Op::Pass),
    ];
    prop::collection::vec(op, 1..60)
}

fn percent(limit: u64, percent: u64) -> u64 {
    (limit * percent / 100).max(1)
}

fn span(rule: &Rule) -> u64 {
    match rule {
        Rule::Bucket(b) => b.full.us,
        Rule::Fixed { period, .. } | Rule::Sliding { period, .. } | Rule::Log { period, .. } => {
            *period
        }
        Rule::Allowance { .. } => SECOND,
    }
}

/// Something that a client did: when, and with how many units. Leased units are used at the end of
/// their time, reserved ones as soon as they are due.
type Act = (u64, u64);

/// Runs the operations on one quota. Returns what was done, with true costs, and the final state.
fn run(rule: Rule, ops: &[Op], with_leases: bool) -> (Vec<Act>, RuleStates, u64) {
    let rules = [rule];
    let (mut states, mut now) = (RuleStates::default(), START);
    let mut acts: Vec<Act> = Vec::new();
    let mut holds: Vec<(usize, HoldRecord)> = Vec::new();
    let mut reserved: Vec<(usize, u64, RuleStates)> = Vec::new();
    for op in ops {
        let apply = |want: &LimitOp, states: &mut RuleStates| {
            let outcome = decide(&rules, states, now, want).unwrap();
            if outcome.changed {
                *states = outcome.states;
            }
            outcome.granted
        };
        match *op {
            Op::Take(cost) => {
                let cost = percent(rule.limit(), cost);
                if apply(&LimitOp::Take(cost), &mut states).is_some() {
                    acts.push((now, cost));
                }
            }
            Op::Hold(cost) => {
                let cost = percent(rule.limit(), cost);
                let (outcome, record) = hold(&rules, &states, now, &[cost]).unwrap();
                if outcome.changed {
                    states = outcome.states;
                }
                if let Some(record) = record {
                    // As stores keep it.
                    let record = record.to_string().parse().unwrap();
                    holds.push((acts.len(), record));
                    acts.push((now, cost));
                }
            }
            Op::Settle(i, share) if !holds.is_empty() => {
                let (act, record) = holds.remove(i % holds.len());
                let actual = record.quotas[0].units() * share / 100;
                let (outcome, settled) = settle(&rules, &states, now, &record, &[actual]).unwrap();
                let estimate = record.quotas[0].units();
                assert_eq!(settled[0].estimate, estimate);
                let between = actual.min(estimate)..=actual.max(estimate);
                assert!(between.contains(&settled[0].charged), "{settled:?}");
                if outcome.changed {
                    states = outcome.states.to_string().parse().unwrap();
                }
                acts[act].1 = actual;
            }
            Op::Reserve(cost, wait) => {
                let cost = percent(rule.limit(), cost);
                let wait = span(&rule) * wait / 1_000;
                if apply(&LimitOp::Reserve(cost, wait), &mut states).is_some() {
                    let due = match (rule, states.get(0)) {
                        (Rule::Bucket(b), Some(&RuleState::Bucket { tat, .. })) => {
                            tat.minus(b.full, b.amount).ceil().max(now)
                        }
                        _ => now,
                    };
                    reserved.push((acts.len(), cost, states.clone()));
                    acts.push((due, cost));
                }
            }
            Op::Cancel(i) if !reserved.is_empty() => {
                let (act, cost, after) = reserved.remove(i % reserved.len());
                if apply(&LimitOp::Cancel(cost, after), &mut states).is_some() && acts[act].0 > now
                {
                    acts[act].1 = 0;
                }
            }
            Op::Lease(cost, life) if with_leases => {
                let cost = percent(rule.limit(), cost);
                let life = (span(&rule) * life / 1_000).min(rule.longest_lease());
                if life > 0 && apply(&LimitOp::Lease(vec![cost], life), &mut states).is_some() {
                    let state = states.get(0).unwrap();
                    let validity = rule.lease_validity(state, now, life);
                    acts.push((now + validity.saturating_sub(1), cost));
                }
            }
            Op::Pass(share) => now += span(&rule) * share / 1_000,
            Op::Settle(..) | Op::Cancel(_) | Op::Lease(..) => {}
        }
    }
    (acts, states, now)
}

fn bucket() -> impl Strategy<Value = Rule> {
    (
        1u64..2_000,
        prop_oneof![Just(SECOND), 1_000u64..100_000_000],
        1u64..3_000,
    )
        .prop_filter_map("too long", |(a, p, b)| Rule::bucket(a, p, b).ok())
}

fn window() -> impl Strategy<Value = Rule> {
    let units = 1u64..3_000;
    prop_oneof![
        (units.clone(), 1_000u64..100_000_000).prop_map(|(n, p)| Rule::fixed(n, p).unwrap()),
        (units.clone(), 1_000u64..100_000_000).prop_map(|(n, p)| Rule::sliding(n, p).unwrap()),
        (units.clone(), 1_000u64..100_000_000).prop_map(|(n, p)| Rule::log(n, p).unwrap()),
        units.prop_map(|n| Rule::bucket(0, SECOND, n).unwrap()),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 4000, ..ProptestConfig::default() })]

    /// A bucket that is charged what was done, when it was done, would have allowed all of it.
    #[test]
    fn settling_never_admits_more_than_the_bucket_has(rule in bucket(), ops in ops(0..101)) {
        let (mut acts, _, _) = run(rule, &ops, true);
        acts.sort();
        let Rule::Bucket(b) = rule else { unreachable!() };
        let mut tat = Span::whole(0);
        for &(at, units) in &acts {
            tat = tat.max(Span::whole(at)).plus(b.time_for(units), b.amount);
            // A microsecond, because acts are at whole ones.
            let latest = b.full.plus(Span::whole(at + 1), b.amount);
            prop_assert!(tat <= latest, "{:?} over {:?} at {} of {:?}", tat, latest, at, acts);
        }
    }

    /// The state of a window is the same as if the true costs had been charged in the first place,
    /// also when they exceed the estimate while the window lasts.
    #[test]
    fn settled_window_counts_the_true_cost(rule in window(), ops in ops(0..300)) {
        let ops: Vec<Op> = ops
            .into_iter()
            .filter(|op| !matches!(op, Op::Reserve(..) | Op::Cancel(_) | Op::Lease(..)))
            .collect();
        // What exceeds an estimate is charged when it is settled, so let no time pass before.
        let over = ops.iter().any(|op| matches!(op, Op::Settle(_, share) if *share > 100));
        let ops: Vec<Op> = match over {
            true => ops.into_iter().filter(|op| !matches!(op, Op::Pass(_))).collect(),
            false => ops,
        };
        // An empty sliding window begins again with any call, which may be that of a settlement.
        let mut passed = 0;
        let ops: Vec<Op> = ops
            .into_iter()
            .filter(|op| match (op, rule) {
                (Op::Pass(share), Rule::Sliding { .. }) => {
                    passed += share;
                    passed < 1_900
                }
                _ => true,
            })
            .collect();
        let (acts, states, now) = run(rule, &ops, false);
        let mut expected = advance(&[rule], &RuleStates::default(), START).unwrap();
        let mut touched = false;
        for &(at, units) in &acts {
            let up = match touched {
                true => advance(&[rule], &expected, at).unwrap(),
                false => advance(&[rule], &RuleStates::default(), at).unwrap(),
            };
            touched = true;
            let mut state = up.get(0).unwrap().clone();
            match &mut state {
                RuleState::Fixed { count, .. } | RuleState::Sliding { count, .. } => *count += units,
                RuleState::Allowance { used, .. } => *used += units,
                RuleState::Log { calls, .. } if units > 0 => *calls = calls.with(at, units),
                _ => {}
            }
            expected = [state].into_iter().collect();
        }
        if !touched {
            return Ok(());
        }
        let seen = advance(&[rule], &states, now).unwrap();
        let expected = advance(&[rule], &expected, now).unwrap();
        prop_assert_eq!(seen.get(0), expected.get(0), "{:?}", acts);
    }

    /// What is left after an estimate was settled at once is exactly what is left after the true cost
    /// was charged, in every quota.
    #[test]
    fn settling_at_once_is_exact(
        rules in prop::collection::vec(prop_oneof![bucket(), window()], 1..4),
        estimate in 1u64..100, actual in 0u64..100,
    ) {
        let limit = rules.iter().map(Rule::limit).min().unwrap();
        let (estimate, actual) = (percent(limit, estimate), limit * actual / 100);
        let costs = vec![estimate; rules.len()];
        let (outcome, record) = hold(&rules, &RuleStates::default(), START, &costs).unwrap();
        let record = record.unwrap();
        let costs = vec![actual; rules.len()];
        let (outcome, settled) = settle(&rules, &outcome.states, START, &record, &costs).unwrap();
        prop_assert!(settled.iter().all(|quota| quota.charged == actual));
        let mut states = RuleStates::default();
        prop_assert!(take(&rules, &mut states, START, actual));
        let states = advance(&rules, &states, START).unwrap();
        for units in [1, limit] {
            prop_assert_eq!(
                status(&rules, &outcome.states, START, units),
                status(&rules, &states, START, units)
            );
        }
    }
}

/// Each quota has its own cost, and one that lacks units denies the whole hold.
#[test]
fn each_quota_is_charged_its_own_cost() {
    let rules = [
        Rule::bucket(10, 60 * SECOND, 10).unwrap(),
        Rule::fixed(1_000, 3_600 * SECOND).unwrap(),
        Rule::bucket(0, SECOND, 500).unwrap(),
    ];
    let left = |states: &RuleStates| -> Vec<u64> {
        let each = rules.iter().enumerate();
        each.map(|(i, rule)| rule.status(states.get(i).unwrap(), START, 1).remaining)
            .collect()
    };
    let (outcome, record) = hold(&rules, &RuleStates::default(), START, &[1, 600, 30]).unwrap();
    let first = record.unwrap();
    assert_eq!(left(&outcome.states), [9, 400, 470]);
    let (denied, record) = hold(&rules, &outcome.states, START, &[1, 401, 0]).unwrap();
    assert!(record.is_none() && !denied.changed);
    let (outcome, settled) = settle(&rules, &outcome.states, START, &first, &[1, 250, 45]).unwrap();
    assert_eq!(left(&outcome.states), [9, 750, 455]);
    let charged: Vec<u64> = settled.iter().map(|quota| quota.charged).collect();
    assert_eq!(charged, [1, 250, 45]);
}

/// A low estimate is charged in full even when others have taken what was left, and their refunds
/// do not undo it.
#[test]
fn what_exceeds_the_limit_is_charged() {
    for rule in [
        Rule::bucket(100, 60 * SECOND, 100).unwrap(),
        Rule::bucket(0, SECOND, 100).unwrap(),
        Rule::fixed(100, 60 * SECOND).unwrap(),
        Rule::sliding(100, 60 * SECOND).unwrap(),
        Rule::log(100, 60 * SECOND).unwrap(),
    ] {
        let rules = [rule];
        let (outcome, first) = hold(&rules, &RuleStates::default(), START, &[60]).unwrap();
        let (outcome, second) = hold(&rules, &outcome.states, START, &[40]).unwrap();
        let settle_one = |states: &RuleStates, record: Option<HoldRecord>, actual| {
            let (outcome, settled) =
                settle(&rules, states, START, &record.unwrap(), &[actual]).unwrap();
            assert_eq!(settled[0].charged, actual);
            outcome.states
        };
        let states = settle_one(&outcome.states, first, 80);
        let states = settle_one(&states, second, 10);
        assert_eq!(status(&rules, &states, START, 1).remaining, 10, "{rule:?}");
    }
}

#[test]
fn debt_is_bounded() {
    let rules = [Rule::bucket(10, SECOND, 10).unwrap()];
    let (outcome, record) = hold(&rules, &RuleStates::default(), START, &[1]).unwrap();
    let most = MAX_UNITS;
    let (outcome, settled) =
        settle(&rules, &outcome.states, START, &record.unwrap(), &[most]).unwrap();
    assert_eq!(settled[0].charged, 170);
    let wait = status(&rules, &outcome.states, START, 1).retry_after;
    assert_eq!(wait, Some(16_100_000));
}

/// The estimate stays charged when its window is over, the limiter was reset, or the clock stepped
/// back; and with other quotas nothing is settled.
#[test]
fn late_or_foreign_settlement_refunds_nothing() {
    let window = [Rule::fixed(100, 60 * SECOND).unwrap()];
    let (_, record) = hold(&window, &RuleStates::default(), START, &[60]).unwrap();
    let record = record.unwrap();
    let later = START + 61 * SECOND;
    let mut states = RuleStates::default();
    assert!(take(&window, &mut states, later, 50));
    for (states, now) in [(&states, later), (&RuleStates::default(), START)] {
        let (outcome, settled) = settle(&window, states, now, &record, &[10]).unwrap();
        assert_eq!(settled[0].charged, 60);
        assert!(!outcome.changed);
        // The rest of a low estimate is charged now.
        let (outcome, settled) = settle(&window, states, now, &record, &[70]).unwrap();
        assert_eq!(settled[0].charged, 70);
        assert!(outcome.changed);
    }
    let (outcome, record) = hold(&window, &RuleStates::default(), START, &[60]).unwrap();
    let before = START - SECOND;
    let (back, settled) = settle(
        &window,
        &outcome.states,
        before,
        &record.clone().unwrap(),
        &[10],
    )
    .unwrap();
    assert_eq!(settled[0].charged, 60);
    assert_eq!(status(&window, &back.states, before, 1).remaining, 40);
    for other in [
        vec![Rule::fixed(100, 61 * SECOND).unwrap()],
        vec![Rule::sliding(100, 60 * SECOND).unwrap()],
        vec![window[0], window[0]],
    ] {
        let settled = settle(
            &other,
            &outcome.states,
            START,
            &record.clone().unwrap(),
            &[10],
        );
        assert_eq!(settled.unwrap_err(), UnsettledHold::OtherQuotas);
    }
}

/// Units that one refund has returned already are not returned by the next: one a second, up to ten.
#[test]
fn refund_to_an_earlier_hold_counts_for_a_later_one() {
    let rules = [Rule::bucket(1, SECOND, 10).unwrap()];
    let (outcome, first) = hold(&rules, &RuleStates::default(), START, &[5]).unwrap();
    let (outcome, second) = hold(&rules, &outcome.states, START, &[5]).unwrap();
    let at = START + 4 * SECOND;
    let (outcome, _) = settle(&rules, &outcome.states, at, &first.unwrap(), &[0]).unwrap();
    let (mut states, at) = (outcome.states, START + 8 * SECOND);
    assert!(take(&rules, &mut states, at, 9));
    let (outcome, _) = settle(&rules, &states, at, &second.unwrap(), &[0]).unwrap();
    // Nothing but the nine was used, of a bucket that was full.
    assert_eq!(status(&rules, &outcome.states, at, 1).remaining, 1);
}
