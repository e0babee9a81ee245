//! The arithmetic of limiters, at times chosen by the test.

mod changed_quota;
mod hold;
mod lease;
mod log;
mod step_back;

use proptest::prelude::*;

use super::rule::Bucket;
use super::*;

const SECOND: u64 = 1_000_000;
pub(super) const START: u64 = 1_790_000_000 * SECOND;

pub(super) fn take(rules: &[Rule], states: &mut RuleStates, now: u64, cost: u64) -> bool {
    let outcome = decide(rules, states, now, &LimitOp::Take(cost)).unwrap();
    if outcome.changed {
        *states = outcome.states;
    }
    outcome.granted.is_some()
}

pub(super) fn retry(rules: &[Rule], states: &RuleStates, now: u64, cost: u64) -> Option<u64> {
    let states = advance(rules, states, now).unwrap();
    status(rules, &states, now, cost).retry_after
}

/// Any quota, also with rates that are not whole numbers of microseconds.
pub(super) fn rule() -> impl Strategy<Value = Rule> {
    let amount = prop_oneof![1u64..20, 1u64..2_000_000];
    let period = prop_oneof![
        1u64..50,
        Just(SECOND),
        Just(60 * SECOND),
        1u64..100_000_000_000
    ];
    let burst = prop_oneof![0u64..5, 0u64..3_000];
    prop_oneof![
        3 => (amount.clone(), period.clone(), burst.clone())
            .prop_filter_map("too long", |(a, p, b)| Rule::bucket(a, p, b).ok()),
        1 => burst.prop_map(|burst| Rule::bucket(0, SECOND, burst).unwrap()),
        2 => (amount.clone(), period.clone()).prop_map(|(a, p)| Rule::fixed(a, p).unwrap()),
        2 => (amount.clone(), period.clone()).prop_map(|(a, p)| Rule::sliding(a, p).unwrap()),
        2 => (amount, period)
            .prop_map(|(a, p)| Rule::log(a.min(MAX_LOG_UNITS), p).unwrap()),
    ]
}

/// The calls of a client: the wait before each, as a percentage of the retry-after, and its cost.
fn moves() -> impl Strategy<Value = Vec<(u64, u64)>> {
    prop::collection::vec((prop_oneof![Just(0u64), 0u64..300], 1u64..50), 1..60)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, ..ProptestConfig::default() })]

    /// Denied one microsecond before, allowed at it; and a denied call is not charged.
    #[test]
    fn retry_after_is_exact(rules in prop::collection::vec(rule(), 1..4), moves in moves()) {
        let (mut states, mut now) = (RuleStates::default(), START);
        for (share, cost) in moves {
            if take(&rules, &mut states, now, cost) {
                prop_assert!(rules.iter().all(|rule| cost <= rule.limit()));
                continue;
            }
            let before = states.clone();
            match retry(&rules, &states, now, cost) {
                None => {
                    for later in [1, SECOND, 86_400 * SECOND] {
                        prop_assert!(!take(&rules, &mut states, now + later, cost), "never");
                    }
                }
                Some(wait) => {
                    prop_assert!(wait > 0);
                    prop_assert!(!take(&rules, &mut states, now + wait - 1, cost), "too early");
                    prop_assert_eq!(&states, &before, "a denied call was charged");
                    let mut then = states.clone();
                    prop_assert!(take(&rules, &mut then, now + wait, cost), "not at {}", wait);
                    now += u64::try_from(u128::from(wait) * u128::from(share) / 100).unwrap();
                }
            }
        }
    }

    #[test]
    fn taking_in_place_decides_as_decide_does(rule in rule(), moves in moves()) {
        let rules = [rule];
        let (mut states, mut now) = (RuleStates::default(), START);
        for (wait, cost) in moves {
            let want = LimitOp::Take(cost);
            let expected = decide(&rules, &states, now, &want).unwrap();
            let mut in_place = states.clone();
            if let Some((taken, seen)) = take_in_place(&rules, &mut in_place, now, cost) {
                prop_assert_eq!(taken, expected.granted.is_some());
                prop_assert_eq!(seen, status(&rules, &expected.states, now, cost));
                prop_assert_eq!(&in_place, &expected.states);
            } else {
                prop_assert_eq!(&in_place, &states, "nothing changed");
            }
            if expected.changed {
                states = expected.states;
            }
            now += wait * 1_000;
        }
    }

    /// `remaining` units can be taken at once, and one more cannot.
    #[test]
    fn remaining_is_exact(rules in prop::collection::vec(rule(), 1..3), moves in moves()) {
        let (mut states, mut now) = (RuleStates::default(), START);
        for (wait, cost) in moves {
            take(&rules, &mut states, now, cost);
            now += wait * 1_000;
            let seen = advance(&rules, &states, now).unwrap();
            let left = status(&rules, &seen, now, 1).remaining;
            prop_assert!(!take(&rules, &mut states.clone(), now, left + 1));
            prop_assert!(left == 0 || take(&rules, &mut states.clone(), now, left));
        }
    }

    #[test]
    fn a_state_that_has_ended_is_as_good_as_none(rule in rule(), moves in moves()) {
        let rules = [rule];
        let (mut states, mut now) = (RuleStates::default(), START);
        for (wait, cost) in moves {
            take(&rules, &mut states, now, cost);
            now += wait * 1_000;
        }
        let end = ends(&states, now);
        if !matches!(rule, Rule::Allowance { .. }) {
            let seen = advance(&rules, &states, end.max(now)).unwrap();
            let left = status(&rules, &seen, end.max(now), 1);
            prop_assert_eq!((left.remaining, left.reset_after), (rule.limit(), Some(0)));
        }
    }

    #[test]
    fn states_are_read_as_they_were_written(
        rules in prop::collection::vec(rule(), 1..4),
        moves in moves(),
    ) {
        let (mut states, mut now) = (RuleStates::default(), START);
        for (wait, cost) in moves {
            take(&rules, &mut states, now, cost);
            if let Ok(RuleOutcome { states: leased, changed: true, .. }) =
                decide(&rules, &states, now, &LimitOp::Lease(vec![cost, 1], SECOND))
            {
                states = leased;
            }
            now += wait;
            prop_assert_eq!(states.to_string().parse::<RuleStates>().unwrap(), states.clone());
        }
    }
}

pub(super) fn bucket_of(rule: &Rule) -> &Bucket {
    match rule {
        Rule::Bucket(bucket) => bucket,
        _ => unreachable!("only called for buckets"),
    }
}

#[test]
fn of_ten_calls_at_three_a_minute_three_are_allowed() {
    let rules = [Rule::fixed(3, 60 * SECOND).unwrap()];
    let mut states = RuleStates::default();
    let answers: Vec<bool> = (0..10)
        .map(|i| take(&rules, &mut states, START + i, 1))
        .collect();
    assert_eq!(answers.iter().filter(|yes| **yes).count(), 3);
    assert!(answers[..3].iter().all(|yes| *yes));
    assert!(!take(&rules, &mut states, START + 60 * SECOND - 1, 1));
    assert!(take(&rules, &mut states, START + 60 * SECOND, 1));
}

#[test]
fn a_burst_of_two_then_one_a_second() {
    let rules = [Rule::bucket(1, SECOND, 2).unwrap()];
    let mut states = RuleStates::default();
    let mut at = |now| take(&rules, &mut states, START + now, 1);
    assert_eq!([at(0), at(0), at(0)], [true, true, false]);
    assert_eq!(
        [at(SECOND - 1), at(SECOND), at(SECOND)],
        [false, true, false]
    );
    assert_eq!([at(2 * SECOND), at(2 * SECOND)], [true, false]);
}

/// Three a second is three a second after a year, to the microsecond.
#[test]
fn a_year_of_traffic_does_not_drift() {
    const STEP: u64 = 2000;
    for (amount, period) in [(3, SECOND), (7, SECOND), (997, 60 * SECOND)] {
        // A burst of two, so that a call that is a fraction of a microsecond late loses nothing.
        let rules = [Rule::bucket(amount, period, 2).unwrap()];
        let (mut states, mut now) = (RuleStates::default(), START);
        let calls = 365 * 24 * 3600 * SECOND / period * amount / STEP;
        // One call as soon as it is allowed; the others of each step are added at once.
        for call in 0..calls {
            assert!(take(&rules, &mut states, now, 1), "call {call}");
            states = match states.get(0) {
                Some(&RuleState::Bucket {
                    limit,
                    amount,
                    period,
                    tat,
                    leased,
                    ..
                }) => {
                    let b = bucket_of(&rules[0]);
                    let tat = tat.plus(b.time_for(STEP - 1), b.amount);
                    [RuleState::Bucket {
                        limit,
                        amount,
                        period,
                        tat,
                        leased,
                        refunds: None,
                    }]
                    .into_iter()
                    .collect()
                }
                _ => unreachable!(),
            };
            // So far ahead only by reservations.
            states.set_mark(START);
            now += retry(&rules, &states, now, 1).unwrap();
        }
        let exact = (u128::from(calls * STEP) - 1) * u128::from(period) / u128::from(amount);
        // Each call is up to a microsecond late, and that does not add up.
        let took = u128::from(now - START);
        assert!(took >= exact && took <= exact + 1, "{took} and {exact}");
    }
}

#[test]
fn a_rate_of_zero_allows_the_burst_and_no_more() {
    let rules = [Rule::bucket(0, SECOND, 5).unwrap()];
    let mut states = RuleStates::default();
    assert!(take(&rules, &mut states, START, 3));
    assert!(!take(&rules, &mut states, START, 3));
    assert!(take(&rules, &mut states, START + 1_000_000 * SECOND, 2));
    assert!(!take(&rules, &mut states, START + 2_000_000 * SECOND, 1));
    assert_eq!(retry(&rules, &states, START, 1), None);
}

#[test]
fn a_cost_of_zero_is_always_allowed() {
    for rule in [
        Rule::bucket(0, 1, 0),
        Rule::bucket(1, 1, 0),
        Rule::fixed(0, 1),
        Rule::sliding(0, 1),
        Rule::log(0, 1),
    ] {
        let rules = [rule.unwrap()];
        let mut states = RuleStates::default();
        assert!(take(&rules, &mut states, START, 0));
        assert!(!take(&rules, &mut states, START, 1));
        assert_eq!(retry(&rules, &states, START, 1), None, "never");
    }
}

#[test]
fn rules_out_of_range_are_rejected() {
    assert_eq!(Rule::bucket(1, 0, 1), Err(InvalidRule::PeriodTooShort));
    assert_eq!(Rule::fixed(1, MAX_PERIOD_MICROS), Err(InvalidRule::TooLong));
    assert_eq!(
        Rule::bucket(1, MAX_PERIOD_MICROS / 2, 3),
        Err(InvalidRule::TooLong)
    );
    assert_eq!(Rule::sliding(MAX_UNITS + 1, 1), Err(InvalidRule::TooMany));
    assert_eq!(
        Rule::log(MAX_LOG_UNITS + 1, 1),
        Err(InvalidRule::TooManyForLog)
    );
    assert_eq!(Rule::log(MAX_UNITS + 1, 1), Err(InvalidRule::TooMany));
    assert!(Rule::log(MAX_LOG_UNITS, 1).is_ok());
    let largest = [Rule::bucket(MAX_UNITS - 1, 86_400 * SECOND, MAX_UNITS).unwrap()];
    let mut states = RuleStates::default();
    assert!(take(&largest, &mut states, START, MAX_UNITS));
    assert!(!take(&largest, &mut states, START, 1));
}

#[test]
fn a_changed_quota_keeps_the_usage() {
    let slow = [Rule::bucket(1, 3600 * SECOND, 10).unwrap()];
    let fast = [Rule::bucket(1000, SECOND, 10).unwrap()];
    let mut states = RuleStates::default();
    assert!(take(&slow, &mut states, START, 10));
    // Ten units are ten units, and not ten hours.
    assert_eq!(retry(&fast, &states, START, 1), Some(1_000));
    assert!(!take(&fast, &mut states, START, 1));
    assert!(take(&fast, &mut states, START + 1_000, 1));
    assert_eq!(retry(&slow, &states, START + 1_000, 1), Some(3600 * SECOND));
    // To nothing and back.
    let never = [Rule::bucket(0, SECOND, 10).unwrap()];
    assert_eq!(retry(&never, &states, START + 1_000, 1), None);
}

#[test]
fn another_algorithm_is_a_mismatch() {
    let (bucket, window) = (Rule::bucket(1, 1, 9).unwrap(), Rule::fixed(1, 1).unwrap());
    let mut states = RuleStates::default();
    assert!(take(&[bucket], &mut states, START, 1));
    let mismatch = decide(&[window], &states, START, &LimitOp::Take(1));
    let Err(Mismatch { stored, requested }) = mismatch else {
        panic!("{mismatch:?}")
    };
    assert_eq!((stored, requested), ("token-bucket", "fixed-window"));
}
