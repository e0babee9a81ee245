//! The names of gates and latches.

use std::sync::Arc;

use super::connection::EtcdConnection;
use super::keys::EtcdKeys;
use super::list::scan;
use windlass_core::store::{DataKind, InventoryStore, NamePage, Pending, matches};

#[derive(Debug)]
pub(super) struct EtcdInventory {
    pub(super) connection: Arc<EtcdConnection>,
    pub(super) keys: EtcdKeys,
}

impl InventoryStore for EtcdInventory {
    fn names(&self, kind: DataKind, pattern: String, most: usize) -> Pending<'_, NamePage> {
        Box::pin(async move {
            if !matches!(kind, DataKind::Gate | DataKind::Latch) {
                return Err(kind.unsupported("etcd"));
            }
            let found = scan(&self.connection, &self.keys.all_data(kind)).await?;
            let keys = found
                .iter()
                .filter_map(|kv| std::str::from_utf8(&kv.key).ok());
            let names = keys.filter_map(|key| self.keys.data_of_key(kind, key));
            let names = names.filter(|name| matches(&pattern, name)).collect();
            Ok(NamePage::new(names, most))
        })
    }
}
