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
use windlass_core::store::limit::LimitRequest;

/// A cost that is never granted: more than any bucket takes to fill after any wait, which is far
/// below 2^54.
const NEVER: u64 = 1 << 60;

impl BatchedDecision for LimitRequest {
    fn name(&self) -> &Name {
        &self.name
    }

    fn fence_use(&self) -> FenceUse {
        FenceUse::None
    }

    fn command<'a>(
        script: &Script,
        requests: impl ExactSizeIterator<Item = &'a LimitRequest> + Clone,
        keys: &Keys,
        _fence_counter: &str,
    ) -> Cmd {
        let mut command = redis::cmd("EVALSHA");
        command.arg(script.digest()).arg(requests.len());
        let mut plans: Vec<(&LimitRequest, Vec<usize>)> = Vec::new();
        for (i, request) in requests.enumerate() {
            command.arg(keys.limit(&request.name));
            let alike = |(plan, _): &&mut (&LimitRequest, _)| {
                plan.want == request.want && plan.rules == request.rules
            };
            match plans.iter_mut().rev().take(SEARCHED).find(alike) {
                Some((_, numbers)) => numbers.push(i + 1),
                None => plans.push((request, vec![i + 1])),
            }
        }
        command.arg(plans.len());
        let listed = plans.len() > 1;
        for (plan, numbers) in plans {
            write_plan(&mut command, &plan.rules, &plan.want, numbers.len());
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
