//! The command that decides a batch of requests; `scripts/limit/fast_path.lua` describes its keys and
//! arguments.
//!
//! Requests of one batch that want the same of the same quotas, for different keys, share a *plan*:
//! the quotas are sent once.

use redis::Cmd;

use crate::batch::BatchedDecision;
use crate::keys::Keys;
use crate::master_epoch::FenceUse;
use crate::script::Script;
use windlass_core::name::Name;
use windlass_core::rules::limit::{LimitOp, Rule, RuleState, Span};
use windlass_core::store::limit::{HoldRequest, LimitRequest, SettleRequest};

/// A cost that is never granted: more than any bucket takes to fill after any wait, which is far
/// below 2^54.
const NEVER: u64 = 1 << 60;

/// A decision on a limiter.
#[derive(Clone, Debug)]
pub(crate) enum LimitDecision {
    Request(LimitRequest),
    Hold(HoldRequest),
    Settle(SettleRequest),
}

impl LimitDecision {
    /// Whether two decisions share a plan.
    fn is_alike(&self, other: &LimitDecision) -> bool {
        match (self, other) {
            (LimitDecision::Request(a), LimitDecision::Request(b)) => {
                a.want == b.want && a.rules == b.rules
            }
            _ => false,
        }
    }
}

impl BatchedDecision for LimitDecision {
    fn name(&self) -> &Name {
        match self {
            LimitDecision::Request(request) => &request.name,
            LimitDecision::Hold(request) => &request.name,
            LimitDecision::Settle(request) => &request.name,
        }
    }

    fn fence_use(&self) -> FenceUse {
        FenceUse::None
    }

    fn command<'a>(
        script: &Script,
        decisions: impl ExactSizeIterator<Item = &'a LimitDecision> + Clone,
        keys: &Keys,
        _fence_counter: &str,
    ) -> Cmd {
        let mut command = redis::cmd("EVALSHA");
        let count = decisions.len();
        let hold_key = |decision: &LimitDecision| match decision {
            LimitDecision::Request(_) => None,
            LimitDecision::Hold(request) => Some(keys.hold(&request.name, &request.owner)),
            LimitDecision::Settle(request) => Some(keys.hold(&request.name, &request.owner)),
        };
        let hold_keys: Vec<String> = decisions.clone().filter_map(hold_key).collect();
        command.arg(script.digest()).arg(count + hold_keys.len());
        let mut plans: Vec<(&LimitDecision, Vec<usize>)> = Vec::new();
        for (i, decision) in decisions.enumerate() {
            command.arg(keys.limit(decision.name()));
            let alike = |(plan, _): &&mut (&LimitDecision, _)| plan.is_alike(decision);
            match plans.iter_mut().rev().take(SEARCHED).find(alike) {
                Some((_, numbers)) => numbers.push(i + 1),
                None => plans.push((decision, vec![i + 1])),
            }
        }
        command.arg(hold_keys);
        command.arg(plans.len());
        let listed = plans.len() > 1;
        let mut holds = count;
        for (plan, numbers) in plans {
            match plan {
                LimitDecision::Request(request) => {
                    write_plan(&mut command, &request.rules, &request.want, numbers.len());
                }
                LimitDecision::Hold(HoldRequest {
                    rules, costs, ttl, ..
                }) => {
                    holds += 1;
                    let ttl = ttl.div_ceil(1_000).max(1);
                    write_hold(&mut command, "H", ttl, rules, costs, holds);
                }
                LimitDecision::Settle(SettleRequest { rules, actual, .. }) => {
                    holds += 1;
                    write_hold(&mut command, "S", 0, rules, actual, holds);
                }
            }
            if listed {
                for number in numbers {
                    command.arg(number);
                }
            }
        }
        command
    }
}

/// How many of the last plans a request is compared with: a batch of many different ones gains
/// nothing.
const SEARCHED: usize = 8;

/// The plan of one hold, or of its settlement, whose key is that of this index.
fn write_hold(command: &mut Cmd, verb: &str, ttl: u64, rules: &[Rule], units: &[u64], key: usize) {
    command.arg(verb).arg(ttl).arg(rules.len()).arg(1).arg(1);
    write_rules(command, rules);
    let units = |i: usize| units.get(i).copied().unwrap_or(0);
    for (i, rule) in rules.iter().enumerate() {
        let cost = match rule {
            Rule::Bucket(b) if verb == "H" && units(i) > b.burst => Span::whole(NEVER),
            Rule::Bucket(b) => match b.time_for(units(i)) {
                // Beyond any debt, so that the fraction does not matter.
                cost if cost.us >= NEVER => Span::whole(NEVER),
                cost => cost,
            },
            _ => Span::whole(units(i)),
        };
        command.arg(cost.us).arg(cost.part);
    }
    command.arg(key);
    for i in 0..rules.len() {
        command.arg(units(i));
    }
}

fn write_rules(command: &mut Cmd, rules: &[Rule]) {
    for rule in rules {
        let (kind, amount, period, full, lend) = match rule {
            Rule::Bucket(b) => ("t", b.amount, b.period, b.full, b.lease_time()),
            Rule::Allowance { burst } => ("z", 0, 0, Span::whole(*burst), 0),
            Rule::Fixed { limit, period } => ("f", 0, *period, Span::whole(*limit), 0),
            Rule::Sliding { limit, period } => ("s", 0, *period, Span::whole(*limit), 0),
            Rule::Log { limit, period } => ("l", 0, *period, Span::whole(*limit), 0),
        };
        command.arg(kind).arg(amount).arg(period);
        command
            .arg(full.us)
            .arg(full.part)
            .arg(lend)
            .arg(rule.limit());
    }
}

fn write_plan(command: &mut Cmd, rules: &[Rule], want: &LimitOp, decisions: usize) {
    let (verb, wait, costs): (&str, u64, &[u64]) = match want {
        LimitOp::Peek => ("P", 0, &[]),
        LimitOp::Take(cost) => ("T", 0, std::slice::from_ref(cost)),
        LimitOp::Reserve(cost, wait) => ("T", *wait, std::slice::from_ref(cost)),
        LimitOp::Lease(costs, 0) => ("T", 0, costs),
        LimitOp::Lease(costs, life) => ("L", *life, costs),
        LimitOp::ReturnLeased(cost, at, ..) => ("R", *at, std::slice::from_ref(cost)),
        LimitOp::Cancel(cost, _) => ("C", 0, std::slice::from_ref(cost)),
    };
    command
        .arg(verb)
        .arg(wait)
        .arg(rules.len())
        .arg(costs.len())
        .arg(decisions);
    write_rules(command, rules);
    let takes = !matches!(want, LimitOp::ReturnLeased(..) | LimitOp::Cancel(..));
    for &units in costs {
        for rule in rules {
            let cost = match rule {
                Rule::Bucket(b) if takes && units > b.burst => Span::whole(NEVER),
                Rule::Bucket(b) => b.time_for(units),
                _ => Span::whole(units),
            };
            command.arg(cost.us).arg(cost.part);
        }
    }
    if let LimitOp::ReturnLeased(_, _, life, mark) = want {
        command.arg(*mark).arg(*life);
    }
    if let LimitOp::Cancel(_, after) = want {
        command.arg(after.mark());
        for (i, rule) in rules.iter().enumerate() {
            let then = match (rule, after.get(i)) {
                (
                    Rule::Bucket(b),
                    Some(&RuleState::Bucket {
                        amount,
                        period,
                        tat,
                        ..
                    }),
                ) if (amount, period) == (b.amount, b.period) => tat,
                // The rate has changed: as if its time had come, so that nothing is given back.
                _ => Span::whole(0),
            };
            command.arg(then.us).arg(then.part);
        }
    }
}
