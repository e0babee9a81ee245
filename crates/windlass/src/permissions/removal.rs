//! Removing a space, and going on with a removal that was interrupted.
//!
//! The schema goes first. From then on nobody reads or writes what its subjects had: every step looks at the
//! schema. What is left is cleared away page by page, and its id is remembered until that is done.

use super::{PermissionSpace, Permissions};
use crate::coordinator::Coordinator;
use windlass_core::error::Result;
use windlass_core::name::Name;
use windlass_core::store::ScanCursor;

const REMOVE: &str = "remove the space";

impl PermissionSpace {
    /// Removes the space with all its subjects. Tells whether it was there.
    ///
    /// From the first moment on, handles to it read and write nothing any more; what its subjects had is then
    /// cleared away page by page.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, or fails, either nothing has happened, or the space is gone and some of what
    /// it took is left, which nobody can read. [`Permissions::remove`] clears it away, and so does
    /// [`Permissions::define`].
    pub async fn remove(self) -> Result<bool> {
        let id = self.schema().id.clone();
        let answer = self.store.remove(self.name.clone(), id.clone());
        let there = self.ask(REMOVE, answer).await?;
        sweep(&self.coordinator, &self.shown, &self.name, id).await?;
        Ok(there)
    }
}

impl Permissions {
    /// Removes the space, whatever its schema, with all its subjects; and what an interrupted removal has left.
    /// Tells whether there was any of that.
    ///
    /// # Cancel safety
    ///
    /// As [`PermissionSpace::remove`]: removing it again goes on.
    pub async fn remove(&self) -> Result<bool> {
        let name = self.checked(REMOVE)?;
        let store = self.coordinator.backend().permissions();
        let removed = match self.ask(REMOVE, store.schema(name.clone())).await? {
            Some(schema) => self.space(name.clone(), schema).remove().await?,
            None => false,
        };
        Ok(self.sweep_leftovers(&name).await? || removed)
    }

    /// Clears away what interrupted removals have left. Tells whether there was any.
    pub(super) async fn sweep_leftovers(&self, name: &Name) -> Result<bool> {
        let store = self.coordinator.backend().permissions();
        let ids = self.ask(REMOVE, store.leftovers(name.clone())).await?;
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
        let answer = store.sweep(name.clone(), id.clone(), from);
        cursor = coordinator.call(REMOVE, shown, answer).await?;
    }
    Ok(())
}
