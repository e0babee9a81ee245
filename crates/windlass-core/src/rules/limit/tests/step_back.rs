//! Clocks that step back.

use proptest::prelude::*;

use super::super::*;
use super::{START, moves, retry, rule, take};

const SECOND: u64 = 1_000_000;

/// The longest time in which a quota recovers.
fn recovery(rule: &Rule) -> u64 {
    match rule {
        Rule::Bucket(b) => b.full.ceil(),
        Rule::Allowance { .. } => u64::MAX,
        Rule::Fixed { period, .. } | Rule::Log { period, .. } => *period,
        Rule::Sliding { period, .. } => 2 * period,
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, ..ProptestConfig::default() })]

    /// However far the clock steps back, the quota is whole again after its own time.
    #[test]
    fn a_clock_that_steps_back_blocks_for_one_period_at_most(
        rule in rule(),
        moves in moves(),
        step in 1u64..3_600 * SECOND,
        leases in any::<bool>(),
    ) {
        // Nothing is ever taken from an empty quota.
        prop_assume!(rule.limit() > 0);
        let rules = [rule];
        let (mut states, mut now) = (RuleStates::default(), START);
        for (wait, cost) in moves {
            take(&rules, &mut states, now, cost);
            if leases {
                let lease = LimitOp::Lease(vec![cost, 1], rule.longest_lease().max(1));
                states = decide(&rules, &states, now, &lease).unwrap().states;
            }
            now += wait * 1_000;
        }
        // Behind all that was written: a lease cannot be told from a reservation otherwise.
        let now = START - step;
        let left = |states: &RuleStates, now| {
            let seen = advance(&rules, states, now).unwrap();
            status(&rules, &seen, now, 1).remaining
        };
        let before = left(&states, now);
        let taken = take(&rules, &mut states, now, 1);
        prop_assert_eq!(taken, before > 0);
        if !matches!(rule, Rule::Allowance { .. }) {
            prop_assert!(ends(&states, now) <= now + recovery(&rule).max(1) + 1);
            let end = now + recovery(&rule) + 1;
            prop_assert_eq!(left(&states, end), rule.limit());
        }
        // Denied or not, the state is as of the new clock: time passes.
        if let Some(wait) = retry(&rules, &states, now, 1).filter(|wait| *wait > 0) {
            prop_assert!(wait <= recovery(&rule).max(1));
            prop_assert!(take(&rules, &mut states, now + wait, 1), "after {}", wait);
        }
    }

    /// What was used before the step counts as used just now.
    #[test]
    fn a_clock_that_steps_back_frees_nothing(
        rule in rule(),
        costs in prop::collection::vec(1u64..50, 1..20),
        step in 1u64..3_600 * SECOND,
    ) {
        let rules = [rule];
        let mut states = RuleStates::default();
        for cost in costs {
            take(&rules, &mut states, START, cost);
        }
        let left = |now| {
            let seen = advance(&rules, &states, now).unwrap();
            status(&rules, &seen, now, 1).remaining
        };
        prop_assert!(left(START - step) <= left(START));
    }
}

/// The reported case.
#[test]
fn an_hour_back_does_not_block_for_an_hour() {
    let hour = 3_600 * SECOND;
    for rule in [
        Rule::bucket(10, SECOND, 10).unwrap(),
        Rule::fixed(10, SECOND).unwrap(),
        Rule::sliding(10, SECOND).unwrap(),
        Rule::log(10, SECOND).unwrap(),
    ] {
        let rules = [rule];
        let mut states = RuleStates::default();
        assert!(take(&rules, &mut states, START, 10));
        assert!(!take(&rules, &mut states, START - hour, 1), "{rule:?}");
        let wait = retry(&rules, &states, START - hour, 1).unwrap();
        assert!(wait <= 2 * SECOND, "{rule:?}: {wait}");
        assert!(
            take(&rules, &mut states, START - hour + wait, 1),
            "{rule:?}"
        );
    }
}

/// A bucket may be far ahead because of reservations: these are kept.
#[test]
fn a_reservation_is_kept() {
    let rules = [Rule::bucket(1, SECOND, 1).unwrap()];
    let reserve = LimitOp::Reserve(1, 100 * SECOND);
    let mut states = RuleStates::default();
    for _ in 0..50 {
        states = decide(&rules, &states, START, &reserve).unwrap().states;
    }
    assert_eq!(retry(&rules, &states, START, 1), Some(50 * SECOND));
    assert_eq!(retry(&rules, &states, START + SECOND, 1), Some(49 * SECOND));
    assert_eq!(
        retry(&rules, &states, START - 1, 1),
        Some(SECOND),
        "the clock is behind the first"
    );
}
