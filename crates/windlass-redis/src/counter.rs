//! Counters: one script adds within bounds, another resets.

use std::sync::Arc;

use redis::Value;

use super::errors::unexpected_reply;
use super::router::Router;
use super::script;
use windlass_core::error::Result;
use windlass_core::name::Name;
use windlass_core::rules::counter::width;
use windlass_core::store::Pending;
use windlass_core::store::counter::{
    Counted, CounterRequest, CounterStore, other_amount, other_kind,
};

/// Reads the reply of `scripts/counter/add.lua`.
fn parse_reply(reply: &[Value]) -> Result<Counted> {
    let unexpected = || unexpected_reply(&reply);
    let number = |i: usize| -> Result<i64> {
        match reply.get(i) {
            Some(Value::Int(number)) => Ok(*number),
            Some(Value::BulkString(text)) => std::str::from_utf8(text)
                .ok()
                .and_then(|text| text.parse().ok())
                .ok_or_else(unexpected),
            _ => Err(unexpected()),
        }
    };
    match number(0)? {
        added @ (0 | 1) => Ok(Counted {
            value: number(1)?,
            added: added == 1,
            repeated: number(2)? == 1,
        }),
        2 => Err(other_amount(number(1)?)),
        3 => Err(other_kind()),
        _ => Err(unexpected()),
    }
}

/// Microseconds as milliseconds, rounded up.
fn millis(micros: u64) -> String {
    micros.div_ceil(1_000).max(1).to_string()
}

#[derive(Debug)]
pub(super) struct RedisCounters {
    router: Arc<Router>,
}

impl RedisCounters {
    pub(super) fn new(router: Arc<Router>) -> RedisCounters {
        RedisCounters { router }
    }
}

impl CounterStore for RedisCounters {
    fn add(&self, request: CounterRequest) -> Pending<'_, Counted> {
        Box::pin(async move {
            let addition = &request.addition;
            let once = match &request.operation {
                Some(operation) => self.router.keys().counter_op(&request.name, &operation.id),
                None => self.router.keys().counter(&request.name),
            };
            let remember = request.operation.as_ref().map(|o| millis(o.remember));
            let mut command = redis::cmd("EVALSHA");
            command
                .arg(script::COUNTER_ADD.digest())
                .arg(2)
                .arg(self.router.keys().counter(&request.name))
                .arg(once)
                .arg(addition.amount)
                .arg(addition.min)
                .arg(addition.max)
                .arg(addition.expire.map(millis).unwrap_or_default())
                .arg(
                    addition
                        .window
                        .map(|w| width(w).to_string())
                        .unwrap_or_default(),
                )
                .arg(remember.unwrap_or_default())
                .arg(request.operation.as_ref().map_or(0, |o| o.number));
            let reply: Vec<Value> = self.router.run(&script::COUNTER_ADD, &command).await?;
            parse_reply(&reply)
        })
    }

    fn reset(&self, name: Name) -> Pending<'_, i64> {
        Box::pin(async move {
            let mut command = redis::cmd("EVALSHA");
            command
                .arg(script::COUNTER_RESET.digest())
                .arg(1)
                .arg(self.router.keys().counter(&name));
            Ok(self.router.run(&script::COUNTER_RESET, &command).await?)
        })
    }
}
