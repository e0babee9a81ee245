//! Rate limiters: one script decides, many requests in one call (`scripts/limit/`).
//!
//! Requests of one batch that want the same of the same quotas, for different keys, share a *plan*:
//! the quotas are sent once.

mod list;

use std::sync::Arc;

use redis::{Cmd, Value};

use super::batch::{BatchedDecision, Batcher};
use super::errors::unexpected_reply;
use super::keys::Keys;
use super::master_epoch::FenceUse;
use super::router::Router;
use super::script::Script;
use windlass_core::error::{Error, ErrorKind, Result};
use windlass_core::name::Name;
use windlass_core::rules::limit::{LimitOp, Rule, RuleState, RuleStates, Span, advance};
use windlass_core::store::Pending;
use windlass_core::store::limit::{
    LimitOutcome, LimitRequest, LimitStore, LimiterPage, LimiterQuery, mismatch,
};

/// Decisions in one script call: bounds how long the script blocks the server (about 3 µs each).
const MAX_DECISIONS: usize = 1_000;
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

/// Reads "<k> <now> <state>", the reply to one request.
fn parse_reply(request: &LimitRequest, reply: &Value) -> Result<LimitOutcome> {
    let unexpected = || unexpected_reply(reply);
    let text = match reply {
        Value::BulkString(bytes) => std::str::from_utf8(bytes).map_err(|_| unexpected())?,
        Value::SimpleString(text) => text.as_str(),
        _ => return Err(unexpected()),
    };
    let mut parts = text.splitn(3, ' ');
    let mut part = || parts.next().ok_or_else(unexpected);
    let which: usize = part()?.parse().map_err(|_| unexpected())?;
    let now: u64 = part()?.parse().map_err(|_| unexpected())?;
    let stored: RuleStates = part()?.parse().map_err(|()| unexpected())?;
    let states = advance(&request.rules, &stored, now).map_err(mismatch)?;
    let granted = match (&request.want, which) {
        (_, 0) | (LimitOp::Peek, _) => None,
        (LimitOp::Lease(costs, _), which) => Some(*costs.get(which - 1).ok_or_else(unexpected)?),
        (
            LimitOp::Take(cost)
            | LimitOp::Reserve(cost, _)
            | LimitOp::ReturnLeased(cost, ..)
            | LimitOp::Cancel(cost, _),
            _,
        ) => Some(*cost),
    };
    Ok(LimitOutcome {
        granted,
        now,
        states,
    })
}

/// The key of a limiter holds no other data, unless another program wrote to it.
fn explain(error: Error) -> Error {
    if error.kind() != ErrorKind::WrongType {
        return error;
    }
    Error::new(
        ErrorKind::WrongType,
        "call",
        "the limiter's key holds data that is not the state of a limiter",
    )
    .with_hint("another program wrote to it; choose another name, or reset the limiter")
}

#[derive(Debug)]
pub(super) struct RedisLimiters {
    router: Arc<Router>,
    batcher: Batcher<LimitRequest>,
}

impl RedisLimiters {
    pub(super) fn new(router: Arc<Router>, batcher: Batcher<LimitRequest>) -> RedisLimiters {
        RedisLimiters { router, batcher }
    }
}

impl LimitStore for RedisLimiters {
    fn decide(&self, request: LimitRequest) -> Pending<'static, LimitOutcome> {
        let reply = self.batcher.decide(request.clone());
        Box::pin(async move { parse_reply(&request, &reply.await.map_err(explain)?) })
    }

    fn decide_all(&self, requests: Vec<LimitRequest>) -> Pending<'_, Vec<Result<LimitOutcome>>> {
        Box::pin(async move {
            let batches = requests
                .chunks(MAX_DECISIONS)
                .map(<[LimitRequest]>::to_vec)
                .collect();
            let replies = self.batcher.decide_many(batches).await;
            let parse = |(reply, request): (Result<Value>, &LimitRequest)| {
                reply
                    .map_err(explain)
                    .and_then(|reply| parse_reply(request, &reply))
            };
            Ok(replies.into_iter().zip(&requests).map(parse).collect())
        })
    }

    fn reset(&self, name: Name) -> Pending<'_, bool> {
        Box::pin(async move {
            let mut command = redis::cmd("DEL");
            command.arg(self.router.keys().limit(&name));
            let deleted: u64 = self.router.query(&command).await?;
            Ok(deleted > 0)
        })
    }

    fn list(&self, query: LimiterQuery) -> Pending<'_, LimiterPage> {
        Box::pin(list::list(&self.router, query))
    }
}
