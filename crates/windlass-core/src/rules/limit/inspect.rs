//! The usage of a limiter, for inspection without its quotas.

use super::{Rule, RuleState, RuleStates, step_back};

/// The usage of one quota, from its stored state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct QuotaUsage {
    /// The algorithm: see [`Rule::algorithm`].
    pub algorithm: &'static str,
    /// Units that refill in a period, or units of a window; `None` if not known.
    pub amount: Option<u64>,
    /// The period in microseconds; `None` for a bucket that never refills.
    pub period: Option<u64>,
    /// The most units that one call can take; `None` if not known.
    pub limit: Option<u64>,
    /// Units available now; `None` if the limit is not known.
    pub remaining: Option<u64>,
    /// Microseconds until the quota is whole again; `None` for never.
    pub reset_after: Option<u64>,
}

/// The usage of all quotas that are not whole.
pub fn usage(states: &RuleStates, now: u64) -> Vec<QuotaUsage> {
    let live = states.iter().filter(|state| state.ends(now) > now);
    live.filter_map(|state| quota_usage(state, now, step_back::mark(states, now)))
        .collect()
}

fn quota_usage(state: &RuleState, now: u64, mark: u64) -> Option<QuotaUsage> {
    let limit = state.limit();
    let units = limit.unwrap_or(0);
    let (rule, amount, period) = match *state {
        RuleState::Bucket { amount, period, .. } => {
            let rule = Rule::bucket(amount, period, units).ok()?;
            (rule, Some(amount), Some(period))
        }
        RuleState::Allowance { .. } => (Rule::Allowance { burst: units }, Some(0), None),
        RuleState::Fixed { period, .. } => (Rule::fixed(units, period).ok()?, limit, Some(period)),
        RuleState::Sliding { period, .. } => {
            (Rule::sliding(units, period).ok()?, limit, Some(period))
        }
        RuleState::Log { period, .. } => (Rule::log(units, period).ok()?, limit, Some(period)),
    };
    // The reset time does not depend on the limit, which may be unknown.
    let state = step_back::lower(&rule, state, now, mark);
    let status = rule.status(&rule.advance(&state, now), now, 0);
    Some(QuotaUsage {
        algorithm: rule.algorithm(),
        amount,
        period,
        limit,
        remaining: limit.map(|_| status.remaining),
        reset_after: status.reset_after,
    })
}

#[cfg(test)]
mod tests {
    use super::super::tests::{START, rule, take};
    use super::super::{advance, status};
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn usage_equals_the_status_that_callers_get(
            rule in rule(),
            moves in prop::collection::vec((0u64..200_000_000, 1u64..50), 1..20),
        ) {
            let (mut states, mut now) = (RuleStates::default(), START);
            for (pause, cost) in moves {
                now += pause;
                take(&[rule], &mut states, now, cost);
                let written: RuleStates = states.to_string().parse().unwrap();
                let up = advance(&[rule], &states, now).unwrap();
                let status = status(&[rule], &up, now, 1);
                match usage(&written, now)[..] {
                    [seen] => {
                        prop_assert_eq!(seen.algorithm, rule.algorithm());
                        prop_assert_eq!(seen.limit, Some(rule.limit()));
                        prop_assert_eq!(seen.remaining, Some(status.remaining));
                        prop_assert_eq!(seen.reset_after, status.reset_after);
                    }
                    // Nothing was taken, or the quota is whole again.
                    [] => prop_assert_eq!(status.remaining, rule.limit()),
                    _ => unreachable!(),
                }
            }
        }
    }

    #[test]
    fn each_quota_is_listed_until_it_is_whole() {
        let hour = 3_600_000_000;
        let rules = [
            Rule::bucket(10, 1_000_000, 20).unwrap(),
            Rule::fixed(100, hour).unwrap(),
            Rule::bucket(0, 1, 7).unwrap(),
        ];
        let mut states = RuleStates::default();
        assert!(usage(&states, START).is_empty());
        assert!(take(&rules, &mut states, START, 5));
        let seen = usage(&states, START);
        let left: Vec<_> = seen.iter().map(|s| (s.limit, s.remaining)).collect();
        let some = |limit, left| (Some(limit), Some(left));
        assert_eq!(left, [some(20, 15), some(100, 95), some(7, 2)]);
        let again: Vec<_> = seen.iter().map(|seen| seen.reset_after).collect();
        assert_eq!(again, [Some(500_000), Some(hour), None]);
        assert_eq!((seen[0].amount, seen[0].period), (Some(1), Some(100_000)));
        assert_eq!((seen[1].amount, seen[1].period), (Some(100), Some(hour)));
        assert_eq!((seen[2].amount, seen[2].period), (Some(0), None));
        assert_eq!(usage(&states, START + 500_000).len(), 2);
        assert_eq!(usage(&states, START + hour).len(), 1);
    }

    #[test]
    fn the_limit_is_that_of_the_last_allowed_call() {
        let (large, small) = (
            Rule::bucket(1, 1_000_000, 20),
            Rule::bucket(1, 1_000_000, 5),
        );
        let (large, small) = ([large.unwrap()], [small.unwrap()]);
        let mut states = RuleStates::default();
        let limit = |states: &RuleStates| usage(states, START)[0].limit;
        assert!(take(&large, &mut states, START, 3));
        assert!(!take(&small, &mut states, START, 4));
        assert_eq!(limit(&states), Some(20));
        assert!(take(&small, &mut states, START, 1));
        assert_eq!(limit(&states), Some(5));
    }

    #[test]
    fn a_state_without_a_limit_is_read_and_its_limit_is_unknown() {
        let text = format!(
            "t 1 1000000 {} 0,z 3,f 60000000 {START} 4",
            START + 2_000_000
        );
        let states: RuleStates = text.parse().unwrap();
        assert_eq!(states.to_string(), text);
        let seen = usage(&states, START);
        assert_eq!(seen.len(), 3);
        for one in &seen {
            assert_eq!((one.limit, one.remaining), (None, None));
        }
        assert_eq!(seen[0].reset_after, Some(2_000_000));
        for bad in [
            "t-1 1 1 1 1",
            "tx 1 1 1 1",
            "20 1 1 1 1",
            "ä 1 1 1 1",
            "t",
            "",
        ] {
            assert!(bad.parse::<RuleState>().is_err(), "{bad:?}");
        }
    }
}
