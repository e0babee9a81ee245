//! Quotas that change while they are in use, and leases and reservations that outlive a reset.

use proptest::prelude::*;

use super::super::*;
use super::{START, rule, take};

const SECOND: u64 = 1_000_000;

fn remaining(rules: &[Rule], states: &RuleStates, now: u64) -> u64 {
    let states = advance(rules, states, now).unwrap();
    status(rules, &states, now, 1).remaining
}

fn retry(rules: &[Rule], states: &RuleStates, now: u64) -> u64 {
    let states = advance(rules, states, now).unwrap();
    status(rules, &states, now, 1).retry_after.unwrap()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, ..ProptestConfig::default() })]

    /// Whatever the quotas before: denied one microsecond before, allowed at it.
    #[test]
    fn retry_after_is_exact_after_a_change(
        lists in prop::collection::vec(prop::collection::vec(rule(), 1..4), 2..4),
        moves in prop::collection::vec(
            (any::<prop::sample::Index>(), 0u64..150, 1u64..50), 1..40),
    ) {
        let (mut states, mut now) = (RuleStates::default(), START);
        for (list, share, cost) in moves {
            let rules = &lists[list.index(lists.len())];
            match decide(rules, &states, now, &LimitOp::Take(cost)) {
                // Another algorithm: start again.
                Err(_) => states = RuleStates::default(),
                Ok(outcome) => {
                    let wait = status(rules, &outcome.states, now, cost).retry_after;
                    if outcome.changed {
                        states = outcome.states;
                    }
                    if let (None, Some(wait)) = (outcome.granted, wait) {
                        prop_assert!(!take(rules, &mut states.clone(), now + wait - 1, cost));
                        prop_assert!(take(rules, &mut states.clone(), now + wait, cost));
                        now += wait * share / 100;
                    }
                }
            }
        }
    }

    /// Changing the quota and back never frees units.
    #[test]
    fn changing_back_frees_nothing(
        (one, other) in (rule(), rule()),
        costs in prop::collection::vec(1u64..50, 1..20),
        pause in 0u64..3 * SECOND,
    ) {
        // A sliding window that has ended under the other period fades by that period. A sliding
        // log forgets the calls that are over under a shorter one.
        prop_assume!(!matches!(
            (one, other),
            (Rule::Sliding { .. }, Rule::Sliding { .. }) | (Rule::Log { .. }, Rule::Log { .. })
        ));
        let (one, other) = ([one], [other]);
        let mut states = RuleStates::default();
        for cost in costs {
            take(&one, &mut states, START, cost);
        }
        let now = START + pause;
        let before = remaining(&one, &states, now);
        let back = advance(&other, &states, now).and_then(|there| advance(&one, &there, now));
        if let Ok(back) = back {
            prop_assert!(remaining(&one, &back, now) <= before);
        }
    }

    /// Rules in another order find the same states.
    #[test]
    fn the_order_does_not_matter(
        rules in prop::collection::vec(rule(), 1..5).prop_shuffle(),
        turn in 0usize..5,
        costs in prop::collection::vec(1u64..50, 1..20),
    ) {
        let mut turned = rules.clone();
        turned.rotate_left(turn % rules.len());
        let (mut states, mut others) = (RuleStates::default(), RuleStates::default());
        for (i, cost) in costs.into_iter().enumerate() {
            let now = START + 1_000 * i as u64;
            // One limiter is used in one order, the other in both orders in turns.
            let list = if i % 2 == 0 { &rules } else { &turned };
            let expected = take(&rules, &mut states, now, cost);
            prop_assert_eq!(take(list, &mut others, now, cost), expected);
        }
    }
}

#[test]
fn a_longer_fixed_window_keeps_its_start() {
    let minute = [Rule::fixed(5, 60 * SECOND).unwrap()];
    let hour = [Rule::fixed(5, 3600 * SECOND).unwrap()];
    let mut states = RuleStates::default();
    assert!(take(&minute, &mut states, START, 5));
    let now = START + 30 * SECOND;
    assert_eq!(retry(&hour, &states, now), 3570 * SECOND);
    assert!(!take(&hour, &mut states, now, 1));
    assert!(!take(&hour, &mut states, START + 3600 * SECOND - 1, 1));
    assert!(take(&hour, &mut states, START + 3600 * SECOND, 1));
}

#[test]
fn a_shorter_fixed_window_ends_one_period_from_now_at_the_latest() {
    let hour = [Rule::fixed(5, 3600 * SECOND).unwrap()];
    let minute = [Rule::fixed(5, 60 * SECOND).unwrap()];
    let mut states = RuleStates::default();
    assert!(take(&hour, &mut states, START, 5));
    assert_eq!(retry(&minute, &states, START + 10 * SECOND), 50 * SECOND);
    assert_eq!(retry(&minute, &states, START + 600 * SECOND), 60 * SECOND);
    assert_eq!(
        retry(&minute, &states, START + 3590 * SECOND),
        10 * SECOND,
        "not after its old end"
    );
    // Two clients with different periods do not keep it from ending.
    let mut now = START;
    while now < START + 3700 * SECOND {
        now += 7 * SECOND;
        if take(&minute, &mut states, now, 1) {
            break;
        }
        assert!(!take(&hour, &mut states, now, 1));
    }
    assert!(now <= START + 3661 * SECOND, "{}", (now - START) / SECOND);
}

#[test]
fn sliding_windows_of_another_period() {
    let hour = [Rule::sliding(60, 3600 * SECOND).unwrap()];
    let minute = [Rule::sliding(60, 60 * SECOND).unwrap()];
    let mut states = RuleStates::default();
    assert!(take(&minute, &mut states, START, 60));
    // A minute and a half on, half of it has faded; but it was within the hour.
    let now = START + 90 * SECOND;
    assert_eq!(remaining(&minute, &states, now), 30);
    assert_eq!(remaining(&hour, &states, now), 0);
    // Units used within the hour may have been used just now.
    let mut states = RuleStates::default();
    assert!(take(&hour, &mut states, START, 60));
    let now = START + 1800 * SECOND;
    assert_eq!(remaining(&minute, &states, now), 0);
    assert!(!take(&minute, &mut states, now, 1));
    assert_eq!(remaining(&minute, &states, now + 30 * SECOND), 30);
}

/// A reset ends leases and reservations, even one made a microsecond earlier.
#[test]
fn units_of_an_earlier_state_are_not_returned() {
    for rule in [
        Rule::bucket(1, SECOND, 100).unwrap(),
        Rule::bucket(0, SECOND, 100).unwrap(),
        Rule::fixed(100, 60 * SECOND).unwrap(),
        Rule::sliding(100, 60 * SECOND).unwrap(),
    ] {
        let rules = [rule];
        let lease = |now| {
            decide(
                &rules,
                &RuleStates::default(),
                now,
                &LimitOp::Lease(vec![40], SECOND),
            )
            .unwrap()
        };
        let (early, late) = (lease(START), lease(START + 1));
        let returned = |mark| {
            let want = LimitOp::ReturnLeased(40, START + 1, SECOND, mark);
            decide(&rules, &late.states, START + 2, &want).unwrap()
        };
        assert_eq!(returned(early.states.mark()).granted, None, "{rule:?}");
        assert_eq!(returned(0).granted, None, "{rule:?}");
        assert_eq!(returned(late.states.mark()).granted, Some(40), "{rule:?}");
    }
    let rules = [Rule::bucket(1, SECOND, 10).unwrap()];
    let reserve = |states: &RuleStates, now| {
        let want = LimitOp::Reserve(10, 100 * SECOND);
        decide(&rules, states, now, &want).unwrap().states
    };
    let early = reserve(&reserve(&RuleStates::default(), START), START);
    let late = reserve(&reserve(&RuleStates::default(), START + 1), START + 1);
    let cancel = |after: RuleStates| {
        let outcome = decide(&rules, &late, START + 2, &LimitOp::Cancel(10, after));
        outcome.unwrap().granted
    };
    assert_eq!(cancel(early), None);
    assert_eq!(cancel(late.clone()), Some(10));
}
