//! Rate limiters: one script decides, many requests in one call (`scripts/limit/`). How requests become
//! its arguments: `command.rs`.

mod command;
mod list;

use std::sync::Arc;

use redis::Value;

use super::batch::Batcher;
use super::errors::unexpected_reply;
use super::router::Router;
use windlass_core::error::{Error, ErrorKind, Result};
use windlass_core::name::Name;
use windlass_core::rules::limit::{LimitOp, RuleStates, advance};
use windlass_core::store::Pending;
use windlass_core::store::limit::{
    LimitOutcome, LimitRequest, LimitStore, LimiterPage, LimiterQuery, mismatch,
};

/// Decisions in one script call: bounds how long the script blocks the server (about 3 µs each).
const MAX_DECISIONS: usize = 1_000;

/// The limiters of one client.
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
