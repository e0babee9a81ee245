//! Deduplication: a key for each item, which expires with the window. `SET NX PX` decides whether
//! an item is new.

use std::sync::Arc;
use std::time::Duration;

use redis::{Cmd, Value};

use super::errors::unexpected_reply;
use super::keys::Keys;
use super::router::Router;
use windlass_core::error::Result;
use windlass_core::name::Name;
use windlass_core::seen::Member;
use windlass_core::store::{Pending, SeenStore};

fn command(keys: &Keys, verb: &str, name: &Name, item: &Member) -> Cmd {
    let mut key = keys.seen(name).into_bytes();
    key.extend_from_slice(item.as_bytes());
    let mut command = redis::cmd(verb);
    command.arg(key);
    command
}

fn parse_bool(reply: &Value) -> Result<bool> {
    match reply {
        Value::Okay => Ok(true),
        Value::Nil => Ok(false),
        Value::Int(number) => Ok(*number > 0),
        other => Err(unexpected_reply(other)),
    }
}

#[derive(Debug)]
pub(super) struct RedisSeenItems {
    router: Arc<Router>,
}

impl RedisSeenItems {
    pub(super) fn new(router: Arc<Router>) -> RedisSeenItems {
        RedisSeenItems { router }
    }
}

impl SeenStore for RedisSeenItems {
    fn first(&self, name: Name, items: Vec<Member>, window: Duration) -> Pending<'_, Vec<bool>> {
        Box::pin(async move {
            let millis = window.as_millis().max(1) as u64;
            let set = |item: &Member| {
                let mut command = command(self.router.keys(), "SET", &name, item);
                command.arg("").arg("NX").arg("PX").arg(millis);
                command
            };
            let replies = self
                .router
                .query_all(items.iter().map(set).collect())
                .await?;
            replies.iter().map(parse_bool).collect()
        })
    }

    fn contains(&self, name: Name, items: Vec<Member>) -> Pending<'_, Vec<bool>> {
        Box::pin(async move {
            let exists = |item: &Member| command(self.router.keys(), "EXISTS", &name, item);
            let replies = self
                .router
                .query_all(items.iter().map(exists).collect())
                .await?;
            replies.iter().map(parse_bool).collect()
        })
    }

    fn forget(&self, name: Name, item: Member) -> Pending<'_, bool> {
        Box::pin(async move {
            Ok(self
                .router
                .query(&command(self.router.keys(), "DEL", &name, &item))
                .await?)
        })
    }
}
