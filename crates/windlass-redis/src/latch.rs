//! Latches in Redis.

use std::sync::Arc;

use redis::Value;

use super::errors::unexpected_reply;
use super::router::Router;
use super::{bytes, millis, script};
use windlass_core::error::Result;
use windlass_core::name::Name;
use windlass_core::store::latch::read_past;
use windlass_core::store::{CountedDown, LatchSpec, LatchState, LatchStore, Pending, Reset};

#[derive(Debug)]
pub(super) struct RedisLatches(Arc<Router>);

impl RedisLatches {
    pub(super) fn new(router: Arc<Router>) -> RedisLatches {
        RedisLatches(router)
    }

    /// Runs the script, and decodes its reply with `decode`: a word, and at most one value.
    async fn decide<T>(
        &self,
        latch: &LatchSpec,
        arguments: &[&str],
        decode: fn(&[u8], Option<&Value>) -> Option<T>,
    ) -> Result<T> {
        let mut command = redis::cmd("EVALSHA");
        command.arg(script::LATCH.digest());
        command.arg(2).arg(&self.0.keys().latch(&latch.name));
        command.arg(millis(latch.keep)).arg(&*latch.generation);
        command.arg(arguments);
        let reply: Vec<Value> = self.0.run(&script::LATCH, &command).await?;
        let word = reply.first().and_then(bytes);
        let decoded = word.and_then(|word| decode(word, reply.get(1)));
        decoded.ok_or_else(|| unexpected_reply(&reply))
    }
}

impl LatchStore for RedisLatches {
    fn reset(&self, latch: LatchSpec, count: u32) -> Pending<'_, Reset> {
        Box::pin(async move {
            let count = count.to_string();
            let decode = |word: &[u8], value: Option<&Value>| match (word, value) {
                (b"begun", None) => Some(Reset::Begun),
                (b"known", Some(Value::Int(left))) => Some(Reset::Known {
                    remaining: *left as u32,
                }),
                (b"other_count", Some(Value::Int(count))) => Some(Reset::OtherCount {
                    count: *count as u32,
                }),
                (b"over", Some(present)) => Some(Reset::Over {
                    present: text(present)?,
                }),
                _ => None,
            };
            self.decide(&latch, &["reset", &count], decode).await
        })
    }

    fn count_down(&self, latch: LatchSpec, by: u32, operation: u128) -> Pending<'_, CountedDown> {
        Box::pin(async move {
            let (by, operation) = (by.to_string(), format!("{operation:032x}"));
            let decode = |word: &[u8], value: Option<&Value>| match (word, value) {
                (b"counted", Some(Value::Int(left))) => Some(CountedDown::To {
                    remaining: *left as u32,
                }),
                (b"below_zero", Some(Value::Int(left))) => Some(CountedDown::BelowZero {
                    remaining: *left as u32,
                }),
                (b"other_generation", present) => Some(CountedDown::OtherGeneration {
                    present: present.and_then(text),
                }),
                _ => None,
            };
            let arguments = ["count_down", &by, &operation];
            self.decide(&latch, &arguments, decode).await
        })
    }

    fn inspect(&self, name: Name) -> Pending<'_, Option<LatchState>> {
        Box::pin(async move {
            let [latch, _] = self.0.keys().latch(&name);
            let mut command = redis::cmd("HMGET");
            let fields = ["generation", "count", "remaining", "past"];
            command.arg(latch).arg(&fields);
            let found: (Option<String>, Option<u32>, Option<u32>, Option<String>) =
                self.0.query(&command).await?;
            Ok(match found {
                (Some(generation), Some(count), Some(remaining), past) => {
                    let past = read_past(&past.unwrap_or_default());
                    Some(LatchState::new(generation, count, remaining, past))
                }
                _ => None,
            })
        })
    }
}

fn text(value: &Value) -> Option<String> {
    bytes(value).map(|bytes| String::from_utf8_lossy(bytes).into_owned())
}
