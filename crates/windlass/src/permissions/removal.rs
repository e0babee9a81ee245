//! Removing a permission space, and completing an interrupted removal.
//!
//! The schema is deleted first. Every read and write checks the schema, so from then on the subjects' bits are
//! unreachable. They are deleted page by page, and the store keeps the schema's id until that is done.

use super::{PermissionSpace, Permissions};
use crate::coordinator::Coordinator;
use windlass_core::error::Result;
use windlass_core::name::Name;
use windlass_core::store::ScanCursor;

const REMOVE: &str = "remove the space";

impl PermissionSpace {
    /// Removes the space with all its subjects. Returns whether it existed.
    ///
    /// Other handles to the space stop reading and writing at once; the subjects' data is then deleted page by
    /// page.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, or fails, either nothing has happened, or the space is gone and some unreadable data is
    /// left. [`Permissions::remove`] and [`Permissions::define`] delete it.
    pub async fn remove(self) -> Result<bool> {
        let id = self.schema().id.clone();
        let reply = self.store.remove(self.name.clone(), id.clone());
        let existed = self.call(REMOVE, reply).await?;
        sweep(&self.coordinator, &self.shown, &self.name, id).await?;
        Ok(existed)
    }
}

impl Permissions {
    /// Removes the space, whatever its schema, with all its subjects and the leftovers of an interrupted removal. Returns
    /// whether there was anything.
    ///
    /// # Cancel safety
    ///
    /// As [`PermissionSpace::remove`]: calling again continues.
    pub async fn remove(&self) -> Result<bool> {
        let name = self.full_name(REMOVE)?;
        let store = self.coordinator.backend().permissions();
        let removed = match self.call(REMOVE, store.schema(name.clone())).await? {
            Some(schema) => self.space(name.clone(), schema).remove().await?,
            None => false,
        };
        Ok(self.sweep_leftovers(&name).await? || removed)
    }

    /// Deletes the leftovers of interrupted removals. Returns whether there were any.
    pub(super) async fn sweep_leftovers(&self, name: &Name) -> Result<bool> {
        let store = self.coordinator.backend().permissions();
        let ids = self.call(REMOVE, store.leftovers(name.clone())).await?;
        let any = !ids.is_empty();
        for id in ids {
            sweep(&self.coordinator, &self.name, name, id).await?;
        }
        Ok(any)
    }
}

async fn sweep(coordinator: &Coordinator, shown: &str, name: &Name, id: String) -> Result<()> {
    let store = coordinator.backend().permissions();
    let mut cursor = Some(ScanCursor::default());
    while let Some(from) = cursor {
        let reply = store.sweep(name.clone(), id.clone(), from);
        cursor = coordinator.call(REMOVE, shown, reply).await?;
    }
    Ok(())
}
