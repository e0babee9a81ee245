//! The names under which data is kept.

use super::connection::{Lanes, text};
use super::errors::{LostReply, malformed_reply};
use windlass_core::store::{DataKind, InventoryStore, NamePage, Pending, matches};

/// The inventory of one client.
#[derive(Debug)]
pub(super) struct PostgresInventory {
    pub(super) lanes: Lanes,
}

impl InventoryStore for PostgresInventory {
    fn names(&self, kind: DataKind, pattern: String, most: usize) -> Pending<'_, NamePage> {
        if !DataKind::ALL.contains(&kind) {
            return Box::pin(std::future::ready(Err(kind.unsupported("postgres"))));
        }
        let sql = format!("SELECT * FROM {}($1)", self.lanes.function("names"));
        let reply = self
            .lanes
            .call("", LostReply::Harmless, sql, vec![text(kind.word())]);
        Box::pin(async move {
            let mut names = Vec::new();
            for row in reply.await? {
                let name: String = row.try_get(0).map_err(malformed_reply)?;
                if matches(&pattern, &name) {
                    names.push(name);
                }
            }
            Ok(NamePage::new(names, most))
        })
    }
}
