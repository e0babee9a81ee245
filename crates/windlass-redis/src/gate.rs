//! Gates in Redis.

use std::sync::Arc;
use std::time::Duration;

use redis::Value;

use super::errors::unexpected_reply;
use super::router::Router;
use super::{bytes, script};
use windlass_core::Fence;
use windlass_core::error::Result;
use windlass_core::name::Name;
use windlass_core::store::{Admission, GateState, GateStore, Pending};

#[derive(Debug)]
pub(super) struct RedisGates(Arc<Router>);

impl RedisGates {
    pub(super) fn new(router: Arc<Router>) -> RedisGates {
        RedisGates(router)
    }
}

impl GateStore for RedisGates {
    fn admit(&self, name: Name, fence: Fence, retention: Duration) -> Pending<'_, Admission> {
        Box::pin(async move {
            let mut command = redis::cmd("EVALSHA");
            command.arg(script::GATE_ADMIT.digest());
            command.arg(1).arg(self.0.keys().gate(&name));
            command.arg(fence.get());
            command.arg(retention.as_millis().max(1).to_string());
            let reply: Value = self.0.run(&script::GATE_ADMIT, &command).await?;
            if reply == Value::Nil {
                return Ok(Admission::Admitted);
            }
            let highest = read_fence(&reply)?;
            Ok(Admission::Stale { highest })
        })
    }

    fn inspect(&self, name: Name) -> Pending<'_, Option<GateState>> {
        Box::pin(async move {
            let key = self.0.keys().gate(&name);
            let command = |word| redis::cmd(word).arg(&key).to_owned();
            let commands = vec![command("GET"), command("PTTL")];
            let replies = self.0.query_all(commands).await?;
            match replies.as_slice() {
                // It may have expired between the two.
                [Value::Nil, _] | [_, Value::Int(-2)] => Ok(None),
                [highest, Value::Int(remaining)] => {
                    // Negative if it does not expire.
                    let remaining = u64::try_from(*remaining);
                    let remaining = remaining.map_or(Duration::MAX, Duration::from_millis);
                    Ok(Some(GateState::new(read_fence(highest)?, remaining)))
                }
                _ => Err(unexpected_reply(&replies)),
            }
        })
    }

    fn reset(&self, name: Name) -> Pending<'_, Option<Fence>> {
        Box::pin(async move {
            let mut command = redis::cmd("EVALSHA");
            command.arg(script::GATE_RESET.digest());
            command.arg(1).arg(self.0.keys().gate(&name));
            match self.0.run(&script::GATE_RESET, &command).await? {
                Value::Nil => Ok(None),
                highest => Ok(Some(read_fence(&highest)?)),
            }
        })
    }

    fn highest_issued(&self, name: Name) -> Pending<'_, Option<Fence>> {
        Box::pin(async move {
            let mut counter = redis::cmd("GET");
            counter.arg(self.0.fence_counter(&name));
            let counter: Option<u64> = self.0.query(&counter).await?;
            let (seconds, micros): (u64, u64) =
                self.0.query_near(&name, &redis::cmd("TIME")).await?;
            let clock = seconds * 1_000_000 + micros;
            Ok(Some(Fence::new(clock.max(counter.unwrap_or(0)))))
        })
    }
}

fn read_fence(value: &Value) -> Result<Fence> {
    let text = bytes(value).and_then(|text| std::str::from_utf8(text).ok());
    text.and_then(|text| text.parse().ok())
        .ok_or_else(|| unexpected_reply(value))
}
