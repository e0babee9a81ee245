//! Counters in Redis.

use redis::Value;

use super::errors::unexpected_reply;
use super::{Redis, keys, script};
use windlass_core::error::Result;
use windlass_core::name::Name;
use windlass_core::rules::counter::width;
use windlass_core::store::Pending;
use windlass_core::store::counter::{
    Counted, CounterRequest, CounterStore, other_amount, other_kind,
};

fn read(answer: &[Value]) -> Result<Counted> {
    let strange = || unexpected_reply(&answer);
    let number = |i: usize| -> Result<i64> {
        match answer.get(i) {
            Some(Value::Int(number)) => Ok(*number),
            Some(Value::BulkString(text)) => std::str::from_utf8(text)
                .ok()
                .and_then(|text| text.parse().ok())
                .ok_or_else(strange),
            _ => Err(strange()),
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
        _ => Err(strange()),
    }
}

/// In milliseconds, never less than it is.
fn millis(micros: u64) -> String {
    micros.div_ceil(1_000).max(1).to_string()
}

impl CounterStore for Redis {
    fn add(&self, ask: CounterRequest) -> Pending<'_, Counted> {
        Box::pin(async move {
            let addition = &ask.addition;
            let once = match &ask.operation {
                Some(operation) => keys::counter_op(&ask.name, &operation.id),
                None => keys::counter(&ask.name),
            };
            let remember = ask.operation.as_ref().map(|o| millis(o.remember));
            let mut command = redis::cmd("EVALSHA");
            command
                .arg(script::COUNTER_ADD.digest())
                .arg(2)
                .arg(keys::counter(&ask.name))
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
                .arg(ask.operation.as_ref().map_or(0, |o| o.number));
            let answer: Vec<Value> = self.router.run(&script::COUNTER_ADD, &command).await?;
            read(&answer)
        })
    }

    fn reset(&self, name: Name) -> Pending<'_, i64> {
        Box::pin(async move {
            let mut command = redis::cmd("EVALSHA");
            command
                .arg(script::COUNTER_RESET.digest())
                .arg(1)
                .arg(keys::counter(&name));
            Ok(self.router.run(&script::COUNTER_RESET, &command).await?)
        })
    }
}
