//! Deduplication windows (`seen`): the functions of `sql/state.sql`.

use std::collections::HashSet;
use std::time::Duration;

use tokio_postgres::types::Type;

use super::claims::only;
use super::connection::{Lanes, Param, micros, number, text};
use super::errors::{LostReply, malformed_reply};
use windlass_core::name::Name;
use windlass_core::seen::Member;
use windlass_core::store::{Pending, SeenStore};

/// Items in one statement.
const CHUNK: usize = 1000;

/// The windows of one client.
#[derive(Debug)]
pub(super) struct PostgresSeen {
    pub(super) lanes: Lanes,
}

fn items(items: &[Member]) -> Param {
    let items: Vec<Vec<u8>> = items.iter().map(|item| item.as_bytes().to_vec()).collect();
    (Box::new(items), Type::BYTEA_ARRAY)
}

impl SeenStore for PostgresSeen {
    fn first(&self, name: Name, members: Vec<Member>, window: Duration) -> Pending<'_, Vec<bool>> {
        let sql = format!(
            "SELECT * FROM {}($1,$2,$3)",
            self.lanes.function("seen_first")
        );
        let replies: Vec<_> = members
            .chunks(CHUNK)
            .map(|some| {
                let params = vec![text(&name), items(some), number(micros(window))];
                self.lanes
                    .call(&name, LostReply::OutcomeUnknown, sql.clone(), params)
            })
            .collect();
        Box::pin(async move {
            let mut answers = Vec::with_capacity(members.len());
            for (some, reply) in members.chunks(CHUNK).zip(replies) {
                let mut new: HashSet<Vec<u8>> = HashSet::new();
                for row in reply.await? {
                    new.insert(row.try_get(0).map_err(malformed_reply)?);
                }
                // Of equal items, the first is new.
                answers.extend(some.iter().map(|item| new.remove(item.as_bytes())));
            }
            Ok(answers)
        })
    }

    fn contains(&self, name: Name, members: Vec<Member>) -> Pending<'_, Vec<bool>> {
        let sql = format!(
            "SELECT * FROM {}($1,$2)",
            self.lanes.function("seen_contains")
        );
        let replies: Vec<_> = members
            .chunks(CHUNK)
            .map(|some| {
                let params = vec![text(&name), items(some)];
                self.lanes
                    .call(&name, LostReply::Harmless, sql.clone(), params)
            })
            .collect();
        Box::pin(async move {
            let mut answers = Vec::with_capacity(members.len());
            for reply in replies {
                for row in reply.await? {
                    answers.push(row.try_get(0).map_err(malformed_reply)?);
                }
            }
            Ok(answers)
        })
    }

    fn forget(&self, name: Name, item: Member) -> Pending<'_, bool> {
        let sql = format!("SELECT {}($1,$2)", self.lanes.function("seen_forget"));
        let item: Param = (Box::new(item.as_bytes().to_vec()), Type::BYTEA);
        let params = vec![text(&name), item];
        let reply = self
            .lanes
            .call(&name, LostReply::OutcomeUnknown, sql, params);
        Box::pin(async move { only::<bool>(&reply.await?) })
    }
}
