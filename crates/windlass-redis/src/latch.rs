//! Latches in Redis.

use redis::Value;

use super::errors::unexpected_reply;
use super::{Redis, bytes, keys, millis, script};
use windlass_core::error::Result;
use windlass_core::name::Name;
use windlass_core::store::latch::read_past;
use windlass_core::store::{CountedDown, LatchSpec, LatchState, LatchStore, Pending, Reset};

impl Redis {
    async fn decide_latch(&self, terms: &LatchSpec, arguments: &[&str]) -> Result<Vec<Value>> {
        let mut command = redis::cmd("EVALSHA");
        command.arg(script::LATCH.digest()).arg(2);
        for key in keys::latch(&terms.name) {
            command.arg(key);
        }
        command.arg(millis(terms.keep)).arg(&*terms.generation);
        command.arg(arguments);
        match self.router.run(&script::LATCH, &command).await? {
            Value::Array(parts) => Ok(parts),
            other => Err(unexpected_reply(&other)),
        }
    }
}

impl LatchStore for Redis {
    fn reset(&self, terms: LatchSpec, count: u32) -> Pending<'_, Reset> {
        Box::pin(async move {
            let parts = self
                .decide_latch(&terms, &["reset", &count.to_string()])
                .await?;
            match parts.as_slice() {
                [Value::Int(0)] => Ok(Reset::Begun),
                [Value::Int(1), Value::Int(left)] => Ok(Reset::Known {
                    remaining: *left as u32,
                }),
                [Value::Int(2), Value::Int(count)] => Ok(Reset::OtherCount {
                    count: *count as u32,
                }),
                [Value::Int(5), present] => Ok(Reset::Over {
                    present: bytes(present).map(text).unwrap_or_default(),
                }),
                other => Err(unexpected_reply(&other)),
            }
        })
    }

    fn count_down(&self, terms: LatchSpec, by: u32, operation: u128) -> Pending<'_, CountedDown> {
        Box::pin(async move {
            let (by, operation) = (by.to_string(), format!("{operation:032x}"));
            let parts = self
                .decide_latch(&terms, &["down", &by, &operation])
                .await?;
            match parts.as_slice() {
                [Value::Int(1), Value::Int(left)] => Ok(CountedDown::To {
                    remaining: *left as u32,
                }),
                [Value::Int(3), Value::Int(left)] => Ok(CountedDown::BelowZero {
                    remaining: *left as u32,
                }),
                [Value::Int(4), present] => Ok(CountedDown::OtherGeneration {
                    present: bytes(present).map(text),
                }),
                // A list ends where a nil is.
                [Value::Int(4)] => Ok(CountedDown::OtherGeneration { present: None }),
                other => Err(unexpected_reply(&other)),
            }
        })
    }

    fn look(&self, name: Name) -> Pending<'_, Option<LatchState>> {
        Box::pin(async move {
            let [latch, _] = keys::latch(&name);
            let mut command = redis::cmd("HMGET");
            let fields = ["generation", "count", "remaining", "past"];
            command.arg(latch).arg(&fields);
            let seen: (Option<String>, Option<u32>, Option<u32>, Option<String>) =
                self.router.query(&command).await?;
            Ok(match seen {
                (Some(generation), Some(count), Some(remaining), past) => {
                    let past = read_past(&past.unwrap_or_default());
                    Some(LatchState::new(generation, count, remaining, past))
                }
                _ => None,
            })
        })
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}
