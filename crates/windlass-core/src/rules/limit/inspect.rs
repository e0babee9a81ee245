//! What can be seen of a limiter by somebody who brings no quota.

use super::{Rule, RuleState, RuleStates};

/// One quota of a limiter, by what is stored of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QuotaUsage {
    /// The algorithm's name, as [`Rule::algorithm`] has it.
    pub algorithm: &'static str,
    /// So many units come in, or are in a window; `None` if that is not known.
    pub amount: Option<u64>,
    /// In so many microseconds; `None` for a bucket into which nothing comes in.
    pub period: Option<u64>,
    /// Units that one call could have at most; `None` if that is not known.
    pub limit: Option<u64>,
    /// Units that could be had now; `None` if the limit is not known.
    pub remaining: Option<u64>,
    /// Microseconds until all units are there again; `None` for never.
    pub reset_after: Option<u64>,
}

/// All quotas of which anything is left to be seen.
pub fn usage(states: &RuleStates, now: u64) -> Vec<QuotaUsage> {
    let live = states.iter().filter(|state| state.ends(now) > now);
    live.filter_map(|state| seen(state, now)).collect()
}

fn seen(state: RuleState, now: u64) -> Option<QuotaUsage> {
    let limit = state.limit();
    let units = limit.unwrap_or(0);
    let (rule, amount, period) = match state {
        RuleState::Bucket { amount, period, .. } => {
            let rule = Rule::bucket(amount, period, units).ok()?;
            (rule, Some(amount), Some(period))
        }
        RuleState::Allowance { .. } => (Rule::Allowance { burst: units }, Some(0), None),
        RuleState::Fixed { period, .. } => (Rule::fixed(units, period).ok()?, limit, Some(period)),
        RuleState::Sliding { period, .. } => {
            (Rule::sliding(units, period).ok()?, limit, Some(period))
        }
    };
    // When all is there again does not depend on how much that is.
    let standing = rule.standing(rule.bring_up(state, now), now, 0);
    Some(QuotaUsage {
        algorithm: rule.algorithm(),
        amount,
        period,
        limit,
        remaining: limit.map(|_| standing.remaining),
        reset_after: standing.reset_after,
    })
}

#[cfg(test)]
mod tests {
    use super::super::tests::{START, rule, take};
    use super::super::{bring_up, standing};
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// Who looks without a quota sees what those who bring it are told.
        #[test]
        fn it_is_seen_as_those_see_it_who_ask(
            rule in rule(),
            moves in prop::collection::vec((0u64..200_000_000, 1u64..50), 1..20),
        ) {
            let (mut states, mut now) = (RuleStates::default(), START);
            for (pause, cost) in moves {
                now += pause;
                take(&[rule], &mut states, now, cost);
                let written: RuleStates = states.to_string().parse().unwrap();
                let up = bring_up(&[rule], &states, now).unwrap();
                let told = standing(&[rule], &up, now, 1);
                match usage(&written, now)[..] {
                    [seen] => {
                        prop_assert_eq!(seen.algorithm, rule.algorithm());
                        prop_assert_eq!(seen.limit, Some(rule.limit()));
                        prop_assert_eq!(seen.remaining, Some(told.remaining));
                        prop_assert_eq!(seen.reset_after, told.reset_after);
                    }
                    // Nothing was taken, or it is as if nothing had been.
                    [] => prop_assert_eq!(told.remaining, rule.limit()),
                    _ => unreachable!(),
                }
            }
        }
    }

    #[test]
    fn each_quota_is_seen_by_itself_and_what_has_ended_is_not() {
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

    /// Another burst is seen once a call was allowed by it.
    #[test]
    fn the_limit_is_that_of_the_last_call_that_was_allowed() {
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
    fn what_was_written_without_a_limit_is_read_and_says_so() {
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
