//! Gates in Redis.

use std::sync::Arc;
use std::time::Duration;

use redis::Value;

use super::errors::unexpected_reply;
use super::router::Router;
use super::{bytes, script};
use windlass_core::Fence;
use windlass_core::name::Name;
use windlass_core::store::{Admission, GateStore, Pending};

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
            let highest = bytes(&reply)
                .and_then(|text| std::str::from_utf8(text).ok())
                .and_then(|text| text.parse().ok());
            match highest {
                Some(highest) => Ok(Admission::Stale { highest }),
                None => Err(unexpected_reply(&reply)),
            }
        })
    }
}
