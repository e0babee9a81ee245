//! The promise of the sliding log: never more than the limit in any interval, and never a denial
//! without need.

use proptest::prelude::*;

use super::super::*;
use super::{SECOND, START, retry, take};

/// Decides from the definition alone: keeps every admitted call for ever, and before each call tries
/// all intervals.
#[derive(Default)]
struct Reference {
    admitted: Vec<(u64, u64)>,
}

impl Reference {
    /// The units in the fullest interval `[x, x + period)`. It is enough to let `x` be the time of a
    /// call.
    fn fullest(calls: &[(u64, u64)], period: u64) -> u64 {
        let within = |x: u64| {
            let inside = calls.iter().filter(|(at, _)| (x..x + period).contains(at));
            inside.map(|(_, units)| units).sum()
        };
        calls.iter().map(|(x, _)| within(*x)).max().unwrap_or(0)
    }

    /// Whether one more call, later than all others, exceeds the limit in any interval with it.
    fn fits(&self, at: u64, units: u64, limit: u64, period: u64) -> bool {
        let mut calls = self.admitted.clone();
        calls.push((at, units));
        calls.retain(|(other, _)| other + period > at);
        Reference::fullest(&calls, period) <= limit
    }
}

/// Pauses: many within one period, some of exactly one, some longer.
fn moves(period: u64) -> impl Strategy<Value = Vec<(u64, u64)>> {
    let pause = prop_oneof![
        2 => Just(0u64),
        4 => 0..period / 4 + 2,
        1 => Just(period),
        1 => period.saturating_sub(1)..period + 2,
        1 => 0..3 * period,
    ];
    prop::collection::vec((pause, 1u64..6), 1..60)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1000, ..ProptestConfig::default() })]

    /// Exact and maximal: a call is admitted if and only if no interval of the period then has more
    /// than the limit.
    #[test]
    fn log_admits_all_that_fits_and_nothing_more(
        (limit, period, moves) in (1u64..20, prop_oneof![1u64..40, Just(60 * SECOND)])
            .prop_flat_map(|(limit, period)| (Just(limit), Just(period), moves(period))),
    ) {
        let rules = [Rule::log(limit, period).unwrap()];
        let (mut states, mut now) = (RuleStates::default(), START);
        let mut reference = Reference::default();
        for (pause, cost) in moves {
            now += pause;
            let fits = reference.fits(now, cost, limit, period);
            // The answers before the call are exact, too.
            let wait = retry(&rules, &states, now, cost);
            match wait {
                None => prop_assert!(cost > limit),
                Some(wait) => {
                    prop_assert!(reference.fits(now + wait, cost, limit, period));
                    prop_assert!(wait == 0 || !reference.fits(now + wait - 1, cost, limit, period));
                }
            }
            let seen = status(&rules, &advance(&rules, &states, now).unwrap(), now, cost);
            let left = (1..=limit).filter(|n| reference.fits(now, *n, limit, period)).count();
            prop_assert_eq!(seen.remaining, left as u64);
            let whole = now + seen.reset_after.unwrap();
            prop_assert!(reference.fits(whole, limit, limit, period));
            prop_assert!(whole == now || !reference.fits(whole - 1, limit, limit, period));

            prop_assert_eq!(take(&rules, &mut states, now, cost), fits);
            if fits {
                reference.admitted.push((now, cost));
            }
            // As a store keeps it.
            states = states.to_string().parse().unwrap();
        }
        prop_assert!(Reference::fullest(&reference.admitted, period) <= limit);
    }

    /// Several logs decide as each of them would alone, all or nothing.
    #[test]
    fn logs_decide_together(
        quotas in prop::collection::vec((1u64..12, 1u64..60), 2..4),
        moves in moves(30),
    ) {
        let rules: Vec<Rule> = quotas.iter().map(|(n, p)| Rule::log(*n, *p).unwrap()).collect();
        let (mut states, mut now) = (RuleStates::default(), START);
        let mut reference = Reference::default();
        for (pause, cost) in moves {
            now += pause;
            let fits = quotas.iter().all(|(n, p)| reference.fits(now, cost, *n, *p));
            prop_assert_eq!(take(&rules, &mut states, now, cost), fits);
            if fits {
                reference.admitted.push((now, cost));
            }
        }
    }
}

/// The case in which a sliding window of the same quota admits 197 in one minute: 100 at the end of
/// a window, and more as soon as they begin to fade.
#[test]
fn log_admits_100_where_a_sliding_window_admits_197() {
    let minute = 60 * SECOND;
    let in_one_minute = |rule: Rule| {
        let rules = [rule];
        let mut states = RuleStates::default();
        let mut admitted = Vec::new();
        // The first call starts the window; the others come at its end.
        let early = std::iter::repeat_n(START, 1);
        let burst = std::iter::repeat_n(START + minute - SECOND, 99);
        let later = (0..60_000).map(|i| START + minute - SECOND + i * 1_000);
        for now in early.chain(burst).chain(later) {
            if take(&rules, &mut states, now, 1) {
                admitted.push((now, 1));
            }
        }
        Reference::fullest(&admitted, minute)
    };
    assert_eq!(in_one_minute(Rule::log(100, minute).unwrap()), 100);
    assert_eq!(in_one_minute(Rule::sliding(100, minute).unwrap()), 197);
}

#[test]
fn a_log_is_bounded_by_its_limit() {
    let limit = 500;
    let rules = [Rule::log(limit, SECOND).unwrap()];
    let mut states = RuleStates::default();
    for i in 0..4 * limit {
        take(&rules, &mut states, START + i * SECOND / limit / 2, 1);
    }
    // Two words for a call, and the letter, the period and the three numbers of the log.
    let words = states.to_string().split(' ').count() as u64;
    assert_eq!(words, 2 * limit + 4);
    // Calls of one microsecond share an entry.
    let mut states = RuleStates::default();
    for _ in 0..3 {
        take(&rules, &mut states, START, 2);
    }
    let expected = format!("l{limit} {SECOND} 6 {START} {START} 6");
    assert_eq!(states.to_string(), expected);
}

#[test]
fn a_damaged_log_is_not_read() {
    for text in [
        "l",
        "l5",
        "l5 x",
        "l5 60 ",
        "l5 60 1",
        "l5 60 1 100 100",
        "l5 60 2 100 100 1",
        "l5 60 1 100 101 1",
        "l5 60 2 100 101 1 1",
        "l5 60 2 100 101 1 2 1",
    ] {
        assert!(text.parse::<RuleState>().is_err(), "{text:?}");
    }
    for text in [
        "l5 60",
        "l 60",
        "l5 60 1 100 100 1",
        "l5 60 4 100 103 1 3 3",
    ] {
        let state: RuleState = text.parse().unwrap();
        assert_eq!(state.to_string(), text);
    }
}

/// Calls keep their times when the period changes.
#[test]
fn a_log_of_another_period() {
    let minute = [Rule::log(5, 60 * SECOND).unwrap()];
    let hour = [Rule::log(5, 3600 * SECOND).unwrap()];
    let mut states = RuleStates::default();
    assert!(take(&minute, &mut states, START, 2));
    let now = START + 30 * SECOND;
    assert!(take(&hour, &mut states, now, 3));
    assert_eq!(retry(&hour, &states, now, 1), Some(3570 * SECOND));
    assert_eq!(retry(&hour, &states, now, 3), Some(3600 * SECOND));
    assert_eq!(retry(&minute, &states, now, 1), Some(30 * SECOND));
}
