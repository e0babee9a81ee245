//! Idempotent execution: one hash per key, and one script that decides (`scripts/once.lua`).

use std::sync::Arc;
use std::time::Duration;

use redis::{Cmd, Value};

use super::errors::unexpected_reply;
use super::keys::Keys;
use super::router::Router;
use super::script;
use windlass_core::Fence;
use windlass_core::name::Name;
use windlass_core::store::{OnceFinish, OnceRecord, OnceStart, OnceStore, Pending};

fn command(keys: &Keys, key: &Name, verb: &str, fence: Option<Fence>) -> Cmd {
    let mut command = redis::cmd("EVALSHA");
    command
        .arg(script::ONCE.digest())
        .arg(1)
        .arg(keys.once(key))
        .arg(verb)
        .arg(fence.map(|fence| fence.to_string()).unwrap_or_default());
    command
}

fn millis(keep: Duration) -> u64 {
    keep.as_millis().max(1) as u64
}

/// The stored result, if the reply has one.
fn take_result(reply: &mut Value) -> Option<Vec<u8>> {
    match reply {
        Value::Array(parts) => match parts.first_mut() {
            Some(Value::BulkString(result)) => Some(std::mem::take(result)),
            _ => None,
        },
        _ => None,
    }
}

#[derive(Debug)]
pub(super) struct RedisOnceRecords {
    router: Arc<Router>,
}

impl RedisOnceRecords {
    pub(super) fn new(router: Arc<Router>) -> RedisOnceRecords {
        RedisOnceRecords { router }
    }
}

impl OnceStore for RedisOnceRecords {
    fn get(&self, key: Name) -> Pending<'_, Option<OnceRecord>> {
        Box::pin(async move {
            let mut command = redis::cmd("HMGET");
            command
                .arg(self.router.keys().once(&key))
                .arg(&["fence", "payload", "result"]);
            let found: (Option<String>, Option<Vec<u8>>, Option<Vec<u8>>) =
                self.router.query(&command).await?;
            let (Some(fence), Some(payload), result) = found else {
                return Ok(None);
            };
            let malformed = || unexpected_reply(&fence);
            Ok(Some(OnceRecord {
                fence: fence.parse().map_err(|_| malformed())?,
                payload: payload.try_into().map_err(|_| malformed())?,
                result,
            }))
        })
    }

    fn start(
        &self,
        key: Name,
        fence: Fence,
        payload: [u8; 32],
        keep: Duration,
    ) -> Pending<'_, OnceStart> {
        Box::pin(async move {
            let mut command = command(self.router.keys(), &key, "start", Some(fence));
            command.arg(&payload).arg(millis(keep));
            let mut reply: Value = self.router.run(&script::ONCE, &command).await?;
            if let Some(result) = take_result(&mut reply) {
                return Ok(OnceStart::Done(result));
            }
            match &reply {
                Value::BulkString(word) if word == b"go" => Ok(OnceStart::Go),
                Value::BulkString(word) if word == b"other" => Ok(OnceStart::OtherPayload),
                Value::BulkString(word) if word == b"stale" => Ok(OnceStart::Stale),
                _ => Err(unexpected_reply(&reply)),
            }
        })
    }

    fn finish(
        &self,
        key: Name,
        fence: Fence,
        kept: Vec<u8>,
        keep: Duration,
    ) -> Pending<'_, OnceFinish> {
        Box::pin(async move {
            let mut command = command(self.router.keys(), &key, "finish", Some(fence));
            command.arg(kept).arg(millis(keep));
            let mut reply: Value = self.router.run(&script::ONCE, &command).await?;
            if let Some(result) = take_result(&mut reply) {
                return Ok(OnceFinish::Done(result));
            }
            match &reply {
                Value::BulkString(word) if word == b"kept" => Ok(OnceFinish::Stored),
                Value::BulkString(word) if word == b"stale" => Ok(OnceFinish::Stale),
                _ => Err(unexpected_reply(&reply)),
            }
        })
    }

    fn forget(&self, key: Name, fence: Option<Fence>) -> Pending<'_, bool> {
        Box::pin(async move {
            let command = command(self.router.keys(), &key, "forget", fence);
            Ok(self.router.run(&script::ONCE, &command).await?)
        })
    }
}
