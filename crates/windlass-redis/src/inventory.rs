//! The names in Redis, by `SCAN`, never `KEYS`.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::claims::list::SCAN_STEP;
use super::router::Router;
use windlass_core::error::Result;
use windlass_core::store::{DataKind, InventoryStore, NamePage, Pending, matches};

#[derive(Debug)]
pub(super) struct RedisInventory(pub(super) Arc<Router>);

impl InventoryStore for RedisInventory {
    fn names(&self, kind: DataKind, pattern: String, most: usize) -> Pending<'_, NamePage> {
        Box::pin(async move {
            let names = self.scan(kind, &pattern).await?;
            Ok(NamePage::new(names.into_iter().collect(), most))
        })
    }
}

impl RedisInventory {
    async fn scan(&self, kind: DataKind, pattern: &str) -> Result<BTreeSet<String>> {
        let keys = self.0.keys();
        let mut found = BTreeSet::new();
        for (_, master) in self.0.masters() {
            let mut cursor = 0u64;
            loop {
                let mut scan = redis::cmd("SCAN");
                scan.arg(cursor).arg("MATCH").arg(keys.all_data(kind));
                scan.arg("COUNT").arg(SCAN_STEP);
                let (next, page): (u64, Vec<Vec<u8>>) = master.query(&scan).await?;
                // Keys that are not text belong to other programs.
                let page = page.iter().filter_map(|key| std::str::from_utf8(key).ok());
                let names = page.filter_map(|key| keys.data_of_key(kind, key));
                found.extend(
                    names
                        .filter(|name| matches(pattern, name))
                        .map(str::to_owned),
                );
                cursor = next;
                if cursor == 0 {
                    break;
                }
            }
        }
        Ok(found)
    }
}
