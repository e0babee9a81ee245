//! Several locks at once.

use redis::Value;

use super::RedisClaims;
use crate::errors::unexpected_reply;
use crate::master_epoch::FenceUse;
use crate::{millis, record, script};
use windlass_core::Fence;
use windlass_core::error::Result;
use windlass_core::store::{AcquireRequest, AcquiredAll, Kind};

impl RedisClaims {
    pub(crate) async fn acquire_all_locks(
        &self,
        requests: Vec<AcquireRequest>,
        fence_use: FenceUse,
    ) -> Result<AcquiredAll> {
        let Some(first) = requests.first() else {
            return Ok(AcquiredAll::Granted(Vec::new()));
        };
        let router = &self.router;
        if !router.share_slot(requests.iter().map(|request| &request.name)) {
            return Ok(AcquiredAll::OneByOne);
        }
        let mut command = redis::cmd("EVALSHA");
        command.arg(script::LOCK_ALL.digest());
        command.arg(1 + 3 * requests.len());
        command.arg(router.fence_counter(&first.name));
        for AcquireRequest { name, owner, .. } in &requests {
            let keys = router.keys();
            command.arg(keys.lock(name)).arg(keys.queue(name));
            command.arg(keys.claim(name, owner));
        }
        let flags = if first.record_now { "r" } else { "" };
        command
            .arg(requests.len())
            .arg(millis(first.ttl))
            .arg(flags);
        for request in &requests {
            let tail = record::tail(router.wake_channel(), request.wake, request.note.as_deref());
            command.arg(request.owner.as_str()).arg(tail);
        }
        let decide = async || {
            router
                .send_decision(&first.name, &command, fence_use, &|| true)
                .await
        };
        let reply = match decide().await {
            Err(failure) if failure.is_unknown_script() => {
                router.load(&script::LOCK_ALL, &command).await?;
                decide().await?
            }
            other => other?,
        };
        decode(&reply).ok_or_else(|| unexpected_reply(&reply))
    }
}

fn decode(reply: &Value) -> Option<AcquiredAll> {
    let Value::Array(parts) = reply else {
        return None;
    };
    if let [Value::BulkString(_), Value::Int(which), holder @ ..] = parts.as_slice() {
        return Some(AcquiredAll::Busy {
            which: *which as usize,
            holder: record::holder(Kind::Lock, holder)?,
        });
    }
    let fence = |part: &Value| match part {
        Value::Int(fence) => Some(Fence::new(*fence as u64)),
        _ => None,
    };
    let fences: Option<Vec<Fence>> = parts.iter().map(fence).collect();
    fences.map(AcquiredAll::Granted)
}
