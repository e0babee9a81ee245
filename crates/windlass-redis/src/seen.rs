//! What was seen, in Redis: a key for each item, which expires by itself. `SET NX PX` decides.

use std::time::Duration;

use redis::{Cmd, Value};

use super::errors::unexpected_reply;
use super::{Redis, keys};
use windlass_core::error::Result;
use windlass_core::name::Name;
use windlass_core::seen::Member;
use windlass_core::store::{Pending, SeenStore};

fn command(verb: &str, name: &Name, item: &Member) -> Cmd {
    let mut key = keys::seen(name).into_bytes();
    key.extend_from_slice(item.as_bytes());
    let mut command = redis::cmd(verb);
    command.arg(key);
    command
}

fn yes(answer: &Value) -> Result<bool> {
    match answer {
        Value::Okay => Ok(true),
        Value::Nil => Ok(false),
        Value::Int(number) => Ok(*number > 0),
        other => Err(unexpected_reply(other)),
    }
}

impl SeenStore for Redis {
    fn first(&self, name: Name, items: Vec<Member>, window: Duration) -> Pending<'_, Vec<bool>> {
        Box::pin(async move {
            let millis = window.as_millis().max(1) as u64;
            let set = |item: &Member| {
                let mut command = command("SET", &name, item);
                command.arg("").arg("NX").arg("PX").arg(millis);
                command
            };
            let answers = self
                .router
                .query_all(items.iter().map(set).collect())
                .await?;
            answers.iter().map(yes).collect()
        })
    }

    fn contains(&self, name: Name, items: Vec<Member>) -> Pending<'_, Vec<bool>> {
        Box::pin(async move {
            let exists = |item: &Member| command("EXISTS", &name, item);
            let answers = self
                .router
                .query_all(items.iter().map(exists).collect())
                .await?;
            answers.iter().map(yes).collect()
        })
    }

    fn forget(&self, name: Name, item: Member) -> Pending<'_, bool> {
        Box::pin(async move { Ok(self.router.query(&command("DEL", &name, &item)).await?) })
    }
}
