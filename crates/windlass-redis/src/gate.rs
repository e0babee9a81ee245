//! Gates in Redis.

use std::time::Duration;

use redis::Value;

use super::errors::unexpected_reply;
use super::{Redis, keys, script};
use windlass_core::Fence;
use windlass_core::name::Name;
use windlass_core::store::{Admission, GateStore, Pending};

impl GateStore for Redis {
    fn admit(&self, name: Name, fence: Fence, remember: Duration) -> Pending<'_, Admission> {
        Box::pin(async move {
            let mut command = redis::cmd("EVALSHA");
            command
                .arg(script::GATE_ADMIT.digest())
                .arg(1)
                .arg(keys::gate(&name))
                .arg(fence.get())
                .arg(remember.as_millis().max(1).to_string());
            let answer: Value = self.router.run(&script::GATE_ADMIT, &command).await?;
            match &answer {
                Value::Nil => Ok(Admission::Admitted),
                Value::BulkString(highest) => std::str::from_utf8(highest)
                    .ok()
                    .and_then(|text| text.parse().ok())
                    .map(|highest| Admission::Stale { highest })
                    .ok_or_else(|| unexpected_reply(&answer)),
                _ => Err(unexpected_reply(&answer)),
            }
        })
    }
}
