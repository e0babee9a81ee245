//! The quota is never exceeded, whatever mix of takes, reservations, leases, returns and crashes.

use std::collections::{BTreeSet, VecDeque};

use proptest::prelude::*;

use super::super::*;
use super::{START, bucket_of, retry};

const SECOND: u64 = 1_000_000;

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, ..ProptestConfig::default() })]

    /// The units used within any time never exceed the burst plus the units refilled within that
    /// time.
    #[test]
    fn a_bucket_is_never_exceeded(
        (amount, period, burst) in (1u64..40, 1u64..2_000, 1u64..60),
        moves in prop::collection::vec((0u64..500, 1u64..20, 0u64..3, 0u64..2_000), 1..80),
    ) {
        let rule = Rule::bucket(amount, period, burst).unwrap();
        let mut fleet = Fleet::new(rule);
        // A client that waits for a reservation acts at a whole microsecond, up to one late.
        fleet.late = 1;
        let mut open: VecDeque<(u64, RuleStates, usize)> = VecDeque::new();
        for (wait, cost, kind, max_wait) in moves {
            fleet.now += wait;
            match kind {
                0 => fleet.take(cost),
                1 => {
                    let outcome = fleet.apply(&LimitOp::Reserve(cost, max_wait));
                    if outcome.granted.is_some() {
                        let b = bucket_of(&rule);
                        let Some(&RuleState::Bucket { tat, .. }) = outcome.states.get(0) else {
                            unreachable!()
                        };
                        let ready = tat.minus(b.full, b.amount).ceil().max(fleet.now);
                        prop_assert!(ready <= fleet.now + max_wait, "the wait is too long");
                        fleet.uses.push((ready, cost));
                        open.push_back((cost, outcome.states, fleet.uses.len() - 1));
                    }
                }
                _ => {
                    // The last or the first: later ones rely on its units, or do not.
                    let one = if max_wait % 2 == 0 { open.pop_back() } else { open.pop_front() };
                    if let Some((cost, after, index)) = one
                        && fleet.uses[index].0 > fleet.now
                    {
                        fleet.apply(&LimitOp::Cancel(cost, after));
                        fleet.uses[index].1 = 0;
                    }
                }
            }
        }
        fleet.check()?;
    }

    /// The same, when several processes lease units, use them late or never, return some, or crash,
    /// and others take units from the store.
    #[test]
    fn leasing_never_exceeds_the_quota(
        (amount, period, burst) in (1u64..40, 1u64..2_000, 4u64..200),
        moves in moves_of_a_fleet(),
    ) {
        let rule = Rule::bucket(amount, period, burst).unwrap();
        run_leases(rule, moves)?;
    }

    #[test]
    fn leasing_never_exceeds_a_window(
        kind in 0..3,
        (limit, period) in (1u64..100, 100u64..20_000),
        moves in moves_of_a_fleet(),
    ) {
        let rule = match kind {
            0 => Rule::sliding(limit, period),
            1 => Rule::fixed(limit, period),
            _ => Rule::log(limit, period),
        };
        let rule = rule.unwrap();
        run_leases(rule, moves)?;
    }
}

/// Time before (jitter and steps), cost, kind of operation, and the client.
type Moves = Vec<(u64, u64, u64, u64, usize)>;

fn moves_of_a_fleet() -> impl Strategy<Value = Moves> {
    let steps = prop_oneof![3 => 0u64..2, 3 => 2u64..14, 1 => 0u64..70];
    // In sixteenths of the limit.
    let cost = prop_oneof![1u64..3, 1u64..14];
    prop::collection::vec((0u64..2_000, steps, cost, 0u64..10, 0usize..3), 1..80)
}

fn run_leases(rule: Rule, moves: Moves) -> Result<(), TestCaseError> {
    let mut fleet = Fleet::new(rule);
    // What each client has leased: units, when, valid until, mark.
    let mut leases: [Option<(u64, u64, u64, u64)>; 3] = [None; 3];
    let step = match rule {
        Rule::Bucket(b) => (b.full.us / 64).max(1),
        Rule::Fixed { period, .. } | Rule::Sliding { period, .. } | Rule::Log { period, .. } => {
            (period / 64).max(1)
        }
        Rule::Allowance { .. } => 1,
    };
    for (jitter, steps, cost, kind, client) in moves {
        // Each client leases for another time, up to the longest.
        let life = (rule.longest_lease() >> client).max(1);
        fleet.now += steps * step + jitter % step;
        let cost = (rule.limit() * cost / 16).max(1);
        match kind {
            0..=2 if leases[client].is_none() => {
                let outcome = fleet.apply(&LimitOp::Lease(vec![cost, cost / 2 + 1, 1], life));
                if let Some(units) = outcome.granted {
                    let valid =
                        rule.lease_validity(outcome.states.get(0).unwrap(), fleet.now, life);
                    let mark = outcome.states.mark();
                    leases[client] = Some((units, fleet.now, fleet.now + valid, mark));
                }
            }
            0..=3 => {
                if let Some((units, _, until, _)) = &mut leases[client]
                    && fleet.now < *until
                {
                    let used = cost.min(*units);
                    *units -= used;
                    fleet.uses.push((fleet.now, used));
                }
            }
            4 | 5 => {
                if let Some((units, at, _, mark)) = leases[client].take() {
                    fleet.apply(&LimitOp::ReturnLeased(units, at, life, mark));
                }
            }
            // A crash: nothing is returned.
            6 => leases[client] = None,
            7 => fleet.take(cost % rule.limit() + 1),
            // Takes all that remains, so that units that were granted twice show up.
            _ => {
                let seen = advance(&fleet.rules, &fleet.states, fleet.now).unwrap();
                fleet.take(status(&fleet.rules, &seen, fleet.now, 1).remaining);
            }
        }
    }
    fleet.check()
}

/// The clients of one limiter, and the units that they have used, by time.
struct Fleet {
    rules: [Rule; 1],
    states: RuleStates,
    now: u64,
    late: u64,
    uses: Vec<(u64, u64)>,
    /// The starts of all windows ever stored.
    windows: BTreeSet<u64>,
}

impl Fleet {
    fn new(rule: Rule) -> Fleet {
        Fleet {
            rules: [rule],
            states: RuleStates::default(),
            now: START,
            late: 0,
            uses: Vec::new(),
            windows: BTreeSet::new(),
        }
    }

    fn apply(&mut self, want: &LimitOp) -> RuleOutcome {
        let outcome = decide(&self.rules, &self.states, self.now, want).unwrap();
        if outcome.changed {
            self.states = outcome.states.clone();
            if let Some(&RuleState::Fixed { start, .. } | &RuleState::Sliding { start, .. }) =
                outcome.states.get(0)
            {
                self.windows.insert(start);
            }
        }
        outcome
    }

    fn used_within(&self, from: u64, to: u64) -> u64 {
        let within = self.uses.iter().filter(|(at, _)| (from..to).contains(at));
        within.map(|(_, units)| units).sum()
    }

    fn take(&mut self, cost: u64) {
        if cost > 0 && self.apply(&LimitOp::Take(cost)).granted.is_some() {
            self.uses.push((self.now, cost));
        }
    }

    /// Checks all pairs of uses directly against the definition of the quota.
    fn check(mut self) -> Result<(), TestCaseError> {
        self.uses.sort_unstable();
        match self.rules[0] {
            Rule::Bucket(b) => {
                for (i, (from, _)) in self.uses.iter().enumerate() {
                    let mut sum = 0;
                    for (to, units) in &self.uses[i..] {
                        sum += units;
                        // sum ≤ burst + (to - from) · amount / period
                        let refilled = u128::from(to - from + self.late) * u128::from(b.amount);
                        let most = u128::from(b.burst) * u128::from(b.period) + refilled;
                        prop_assert!(
                            u128::from(sum) * u128::from(b.period) <= most,
                            "{} units within {} µs: {:?}",
                            sum,
                            to - from,
                            self.uses
                        );
                    }
                }
            }
            Rule::Fixed { limit, period } => {
                for start in &self.windows {
                    let sum = self.used_within(*start, start + period);
                    prop_assert!(sum <= limit, "{} units in one window", sum);
                }
            }
            Rule::Sliding { limit, period } => {
                for (at, _) in &self.uses {
                    let start = *self.windows.range(..=at).next_back().unwrap();
                    prop_assert!(at - start < period, "used after the window");
                    let before = self.used_within(start - period, start);
                    let now = self.used_within(start, at + 1);
                    let sum = u128::from(before) * u128::from(period - (at - start))
                        + u128::from(now) * u128::from(period);
                    prop_assert!(
                        sum <= u128::from(limit) * u128::from(period),
                        "{} and {} units",
                        before,
                        now
                    );
                }
            }
            Rule::Log { limit, period } => {
                for (from, _) in &self.uses {
                    let sum = self.used_within(*from, from + period);
                    prop_assert!(sum <= limit, "{} units in one period", sum);
                }
            }
            Rule::Allowance { burst } => {
                prop_assert!(self.uses.iter().map(|u| u.1).sum::<u64>() <= burst);
            }
        }
        Ok(())
    }
}

/// As in Go's x/time/rate: units that later reservations rely on are not returned.
#[test]
fn a_cancelled_reservation_returns_units_that_later_ones_do_not_need() {
    let rules = [Rule::bucket(1, SECOND, 1).unwrap()];
    let reserve = |states: &mut RuleStates, cost| {
        let outcome = decide(&rules, states, START, &LimitOp::Reserve(cost, 100 * SECOND)).unwrap();
        *states = outcome.states.clone();
        outcome.states
    };
    let wait = |states: &RuleStates| retry(&rules, states, START, 1).unwrap() / SECOND;
    let mut states = RuleStates::default();
    reserve(&mut states, 1);
    let first = reserve(&mut states, 1);
    assert_eq!(wait(&states), 2);
    let second = reserve(&mut states, 1);
    assert_eq!(wait(&states), 3);
    let cancelled = decide(&rules, &states, START, &LimitOp::Cancel(1, first.clone())).unwrap();
    assert_eq!(cancelled.granted, None, "the second one relies on it");
    let cancelled = decide(&rules, &states, START, &LimitOp::Cancel(1, second)).unwrap();
    assert_eq!(wait(&cancelled.states), 2);
    let cancelled = decide(
        &rules,
        &cancelled.states,
        START,
        &LimitOp::Cancel(1, first.clone()),
    );
    assert_eq!(wait(&cancelled.unwrap().states), 1);
    let late = decide(&rules, &states, START + SECOND, &LimitOp::Cancel(1, first)).unwrap();
    assert_eq!(late.granted, None, "it was due");
}

/// Units returned by one client must not be taken from the lease of another: the second lease has
/// moved the bucket's time past the first one.
#[test]
fn returning_units_leaves_other_leases_alone() {
    let mut fleet = Fleet::new(Rule::bucket(1, 1, 100).unwrap());
    assert_eq!(fleet.apply(&LimitOp::Lease(vec![5], 25)).granted, Some(5));
    fleet.now += 10;
    assert_eq!(fleet.apply(&LimitOp::Lease(vec![60], 25)).granted, Some(60));
    fleet.now += 1;
    let mark = fleet.states.mark();
    fleet.apply(&LimitOp::ReturnLeased(5, START, 25, mark));
    fleet.now += 23;
    let left = status(&fleet.rules, &fleet.states, fleet.now, 1).remaining;
    fleet.take(left);
    fleet.uses.push((fleet.now, 60));
    fleet.check().unwrap();
}

/// Unused units return, and a single client can lease at the full rate.
#[test]
fn unused_leased_units_are_returned() {
    let rules = [Rule::bucket(1000, SECOND, 1000).unwrap()];
    let lease = |states: &mut RuleStates, now, units| {
        let outcome = decide(&rules, states, now, &LimitOp::Lease(vec![units], SECOND)).unwrap();
        *states = outcome.states;
        outcome.granted
    };
    let mut states = RuleStates::default();
    assert_eq!(lease(&mut states, START, 750), Some(750), "three quarters");
    assert_eq!(lease(&mut states, START, 1), None);
    let unused = LimitOp::ReturnLeased(700, START, SECOND, states.mark());
    let returned = decide(&rules, &states, START + 1000, &unused).unwrap();
    assert_eq!(returned.granted, Some(700));
    states = returned.states;
    assert_eq!(lease(&mut states, START + 1000, 690), Some(690));
    assert_eq!(lease(&mut states, START + 1000, 100), None);
    // At the full rate, chunk after chunk.
    let (mut states, mut used) = (RuleStates::default(), 0);
    for i in 0..100 {
        used += lease(&mut states, START + i * 100_000, 100).unwrap_or(0);
    }
    assert_eq!(used, 10_000);
}
