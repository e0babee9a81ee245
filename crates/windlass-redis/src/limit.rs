//! Rate limiters: one script decides, many requests in one call (`scripts/limit/`). How requests become
//! its arguments: `command.rs`.

pub(crate) mod command;
mod list;

use std::sync::Arc;

use redis::Value;

use self::command::LimitDecision;
use super::batch::Batcher;
use super::errors::unexpected_reply;
use super::router::Router;
use windlass_core::error::{Error, ErrorKind, Result};
use windlass_core::name::Name;
use windlass_core::rules::limit::{
    LimitOp, RuleStates, SettledQuota, Span, advance, charged_units,
};
use windlass_core::store::Pending;
use windlass_core::store::limit::{
    HoldOutcome, HoldRequest, LimitOutcome, LimitRequest, LimitStore, LimiterPage, LimiterQuery,
    SettleOutcome, SettleRequest, mismatch,
};

/// Decisions in one script call: bounds how long the script blocks the server (about 3 µs each).
const MAX_DECISIONS: usize = 1_000;

/// The limiters of one client.
#[derive(Debug)]
pub(super) struct RedisLimiters {
    router: Arc<Router>,
    batcher: Batcher<LimitDecision>,
}

impl RedisLimiters {
    pub(super) fn new(router: Arc<Router>, batcher: Batcher<LimitDecision>) -> RedisLimiters {
        RedisLimiters { router, batcher }
    }
}

impl LimitStore for RedisLimiters {
    fn decide(&self, request: LimitRequest) -> Pending<'static, LimitOutcome> {
        let decision = LimitDecision::Request(request.clone());
        let reply = self.batcher.decide(decision);
        Box::pin(async move { parse_reply(&request, &reply.await.map_err(explain)?) })
    }

    fn decide_all(&self, requests: Vec<LimitRequest>) -> Pending<'_, Vec<Result<LimitOutcome>>> {
        Box::pin(async move {
            let batches = requests
                .chunks(MAX_DECISIONS)
                .map(|some| {
                    let each = some.iter().cloned();
                    each.map(LimitDecision::Request).collect()
                })
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

    fn hold(&self, request: HoldRequest) -> Pending<'static, HoldOutcome> {
        let decision = LimitDecision::Hold(request.clone());
        let reply = self.batcher.decide(decision);
        Box::pin(async move { parse_hold(&request, &reply.await.map_err(explain)?) })
    }

    fn settle(&self, request: SettleRequest) -> Pending<'static, SettleOutcome> {
        let decision = LimitDecision::Settle(request.clone());
        let reply = self.batcher.decide(decision);
        Box::pin(async move { parse_settlement(&request, &reply.await.map_err(explain)?) })
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

fn text_of(reply: &Value) -> Result<&str> {
    match reply {
        Value::BulkString(bytes) => std::str::from_utf8(bytes).map_err(|_| unexpected_reply(reply)),
        Value::SimpleString(text) => Ok(text.as_str()),
        _ => Err(unexpected_reply(reply)),
    }
}

/// Reads the reply to a hold: "E" if its owner has one, else "<k> <now> <state>".
fn parse_hold(request: &HoldRequest, reply: &Value) -> Result<HoldOutcome> {
    if text_of(reply)? == "E" {
        return Ok(HoldOutcome::OwnerInUse);
    }
    let highest = request.costs.iter().copied().max().unwrap_or(0);
    let asked = LimitRequest {
        name: request.name.clone(),
        rules: Arc::clone(&request.rules),
        want: LimitOp::Take(highest),
    };
    parse_reply(&asked, reply).map(HoldOutcome::Decided)
}

/// Reads the reply to a settlement: "N", "D" or "Q" if there is no such hold, it is settled, or it was
/// made with other quotas; else "<quotas> <now> <state>", with `estimate:us:part` for each quota.
fn parse_settlement(request: &SettleRequest, reply: &Value) -> Result<SettleOutcome> {
    let unexpected = || unexpected_reply(reply);
    let text = text_of(reply)?;
    match text {
        "N" => return Ok(SettleOutcome::NotFound),
        "D" => return Ok(SettleOutcome::AlreadySettled),
        "Q" => return Ok(SettleOutcome::OtherQuotas),
        _ => {}
    }
    let mut parts = text.splitn(3, ' ');
    let mut part = || parts.next().ok_or_else(unexpected);
    let moved = part()?;
    let now: u64 = part()?.parse().map_err(|_| unexpected())?;
    let stored: RuleStates = part()?.parse().map_err(|()| unexpected())?;
    let states = advance(&request.rules, &stored, now).map_err(mismatch)?;
    let quota = |(i, text): (usize, &str)| {
        let numbers: Vec<u64> = text.split(':').map_while(|n| n.parse().ok()).collect();
        let (&[estimate, us, part], Some(rule)) = (numbers.as_slice(), request.rules.get(i)) else {
            return Err(unexpected());
        };
        let actual = request.actual.get(i).copied().unwrap_or(0);
        let charged = charged_units(rule, estimate, actual, Span { us, part });
        Ok(SettledQuota { estimate, charged })
    };
    let quotas = moved.split(',').enumerate().map(quota);
    Ok(SettleOutcome::Settled {
        now,
        states,
        quotas: quotas.collect::<Result<_>>()?,
    })
}

/// Reads "<k> <now> <state>", the reply to one request.
fn parse_reply(request: &LimitRequest, reply: &Value) -> Result<LimitOutcome> {
    let unexpected = || unexpected_reply(reply);
    let text = text_of(reply)?;
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
