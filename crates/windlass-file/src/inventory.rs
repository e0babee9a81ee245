//! The names in a file.

use super::File;
use super::schema::moment;
use windlass_core::store::{DataKind, InventoryStore, NamePage, Pending, matches};

impl InventoryStore for File {
    fn names(&self, kind: DataKind, pattern: String, most: usize) -> Pending<'_, NamePage> {
        // Each with the end of retention: in nanoseconds, in microseconds, or none.
        let sql = match kind {
            DataKind::Latch => "SELECT name FROM latches WHERE until > ?1",
            DataKind::Gate => "SELECT name FROM gates WHERE until > ?1",
            DataKind::Counter => "SELECT name FROM counters WHERE ifnull(ends > ?1 / 1000, true)",
            DataKind::Bloom => "SELECT name FROM blooms WHERE ?1 = ?1",
            DataKind::Permissions => "SELECT name FROM spaces WHERE ?1 = ?1",
            DataKind::Once => "SELECT name FROM onces WHERE until > ?1",
            _ => return Box::pin(std::future::ready(Err(kind.unsupported("file")))),
        };
        Box::pin(self.worker.decide(move |tx| {
            let mut query = tx.database.prepare_cached(sql)?;
            let mut rows = query.query([moment(tx.now)])?;
            let mut names = Vec::new();
            while let Some(row) = rows.next()? {
                let name: String = row.get(0)?;
                if matches(&pattern, &name) {
                    names.push(name);
                }
            }
            Ok(NamePage::new(names, most))
        }))
    }
}
