//! The names of gates and latches.

use std::sync::Arc;

use super::KIND;
use super::documents::Documents;
use super::gate::GateDocument;
use super::latch::LatchDocument;
use windlass_core::store::{DataKind, InventoryStore, NamePage, Pending};

#[derive(Debug)]
pub(super) struct ZooKeeperInventory(pub(super) Arc<Documents>);

impl InventoryStore for ZooKeeperInventory {
    fn names(&self, kind: DataKind, pattern: String, most: usize) -> Pending<'_, NamePage> {
        Box::pin(async move {
            let names = match kind {
                DataKind::Gate => self.0.names::<GateDocument>(&pattern).await?,
                DataKind::Latch => self.0.names::<LatchDocument>(&pattern).await?,
                _ => return Err(kind.unsupported(KIND)),
            };
            Ok(NamePage::new(names, most))
        })
    }
}
