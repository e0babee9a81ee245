//! Limiters in Redis.

mod list;

use redis::{Cmd, Value};

use super::batch::Decision;
use super::errors::unexpected_reply;
use super::master_epoch::FenceUse;
use super::script::Script;
use super::{Redis, keys};
use windlass_core::error::{Error, ErrorKind, Result};
use windlass_core::name::Name;
use windlass_core::rules::limit::{LimitOp, Rule, RuleState, RuleStates, Span, bring_up};
use windlass_core::store::Pending;
use windlass_core::store::limit::{
    LimitOutcome, LimitRequest, LimitStore, LimiterEntry, LimiterQuery, mismatch,
};

/// Decisions in one call of `decide_all`: bounds how long the server is kept from others (about
/// 3 µs each).
const AT_ONCE: usize = 1_000;
/// More than any bucket takes to fill after any wait, which is far below 2^54: what is never granted.
const NEVER: u64 = 1 << 60;

impl Decision for LimitRequest {
    fn name(&self) -> &Name {
        &self.name
    }

    fn fence_use(&self) -> FenceUse {
        FenceUse::None
    }

    fn command<'a>(
        script: &Script,
        asks: impl ExactSizeIterator<Item = &'a LimitRequest> + Clone,
        _fence_counter: &str,
    ) -> Cmd {
        let mut command = redis::cmd("EVALSHA");
        command.arg(script.digest()).arg(asks.len());
        // Most of a batch wants the same of the same limiter, for different keys.
        let mut plans: Vec<(&LimitRequest, Vec<usize>)> = Vec::new();
        for (i, ask) in asks.enumerate() {
            command.arg(keys::limit(&ask.name));
            let alike = |(plan, _): &&mut (&LimitRequest, _)| {
                plan.want == ask.want && plan.rules == ask.rules
            };
            match plans.iter_mut().rev().take(SEARCHED).find(alike) {
                Some((_, numbers)) => numbers.push(i + 1),
                None => plans.push((ask, vec![i + 1])),
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

/// How many of the last plans are compared with: a batch of many different ones gains nothing.
const SEARCHED: usize = 8;

fn write_plan(command: &mut Cmd, rules: &[Rule], want: &LimitOp, decisions: usize) {
    let (verb, wait, costs): (&str, u64, &[u64]) = match want {
        LimitOp::Peek => ("P", 0, &[]),
        LimitOp::Take(cost) => ("T", 0, std::slice::from_ref(cost)),
        LimitOp::Reserve(cost, wait) => ("T", *wait, std::slice::from_ref(cost)),
        LimitOp::Lend(costs) => ("L", 0, costs),
        LimitOp::Return(cost, at, _) => ("R", *at, std::slice::from_ref(cost)),
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
            Rule::Bucket(b) => ("t", b.amount, b.period, b.full, b.lend_time()),
            Rule::Allowance { burst } => ("z", 0, 0, Span::whole(*burst), 0),
            Rule::Fixed { limit, period } => ("f", 0, *period, Span::whole(*limit), 0),
            Rule::Sliding { limit, period } => ("s", 0, *period, Span::whole(*limit), 0),
        };
        command.arg(kind).arg(amount).arg(period);
        command
            .arg(full.us)
            .arg(full.part)
            .arg(lend)
            .arg(rule.limit());
    }
    let takes = !matches!(want, LimitOp::Return(..) | LimitOp::Cancel(..));
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
    if let LimitOp::Return(_, _, mark) = want {
        command.arg(*mark);
    }
    if let LimitOp::Cancel(_, after) = want {
        command.arg(after.mark());
        for (i, rule) in rules.iter().enumerate() {
            let then = match (rule, after.get(i)) {
                (
                    Rule::Bucket(b),
                    Some(RuleState::Bucket {
                        amount,
                        period,
                        tat,
                        ..
                    }),
                ) if (amount, period) == (b.amount, b.period) => tat,
                // Of another rate: as if its time had come, so that nothing is given back.
                _ => Span::whole(0),
            };
            command.arg(then.us).arg(then.part);
        }
    }
}

/// Reads "<k> <now> <state>".
fn verdict(ask: &LimitRequest, reply: &Value) -> Result<LimitOutcome> {
    let strange = || unexpected_reply(reply);
    let text = match reply {
        Value::BulkString(bytes) => std::str::from_utf8(bytes).map_err(|_| strange())?,
        Value::SimpleString(text) => text.as_str(),
        _ => return Err(strange()),
    };
    let mut parts = text.splitn(3, ' ');
    let mut part = || parts.next().ok_or_else(strange);
    let which: usize = part()?.parse().map_err(|_| strange())?;
    let now: u64 = part()?.parse().map_err(|_| strange())?;
    let stored: RuleStates = part()?.parse().map_err(|()| strange())?;
    let states = bring_up(&ask.rules, &stored, now).map_err(mismatch)?;
    let granted = match (&ask.want, which) {
        (_, 0) | (LimitOp::Peek, _) => None,
        (LimitOp::Lend(costs), which) => Some(*costs.get(which - 1).ok_or_else(strange)?),
        (
            LimitOp::Take(cost)
            | LimitOp::Reserve(cost, _)
            | LimitOp::Return(cost, ..)
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

/// What is stored under a limiter's key is always ours, unless somebody wrote there by hand.
fn explain(error: Error) -> Error {
    if error.kind() != ErrorKind::WrongType || error.hint().is_some_and(|h| h.contains("reset")) {
        return error;
    }
    Error::new(
        ErrorKind::WrongType,
        "call",
        "the limiter's key holds something that is not a limiter's state",
    )
    .with_hint("another program wrote to it; choose another name, or reset the limiter")
}

impl LimitStore for Redis {
    fn decide(&self, ask: LimitRequest) -> Pending<'static, LimitOutcome> {
        let answer = self.limits.decide(ask.clone());
        Box::pin(async move { verdict(&ask, &answer.await.map_err(explain)?) })
    }

    fn decide_all(&self, asks: Vec<LimitRequest>) -> Pending<'_, Vec<Result<LimitOutcome>>> {
        Box::pin(async move {
            let batches = asks.chunks(AT_ONCE).map(<[LimitRequest]>::to_vec).collect();
            let answers = self.limits.decide_many(batches).await;
            let read = |(answer, ask): (Result<Value>, &LimitRequest)| {
                answer
                    .map_err(explain)
                    .and_then(|answer| verdict(ask, &answer))
            };
            Ok(answers.into_iter().zip(&asks).map(read).collect())
        })
    }

    fn reset(&self, name: Name) -> Pending<'_, bool> {
        Box::pin(async move {
            let mut command = redis::cmd("DEL");
            command.arg(keys::limit(&name));
            let gone: u64 = self.router.query(&command).await?;
            Ok(gone > 0)
        })
    }

    fn list(&self, search: LimiterQuery) -> Pending<'_, LimiterEntry> {
        Box::pin(self.list_limits(search))
    }
}
