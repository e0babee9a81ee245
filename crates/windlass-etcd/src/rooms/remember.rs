//! Keeping what is stored about a room for as long as anybody uses it.

use std::sync::{Arc, PoisonError};
use std::time::Duration;

use super::Chair;
use crate::store::Store;
use crate::txn::{Txn, get, put};
use windlass_core::error::Error;
use windlass_core::store::Kind;

/// How long what is stored about a room outlives the last request.
pub(super) const MEMORY: Duration = Duration::from_secs(24 * 60 * 60);

impl Store {
    /// Keeps what is stored about a room for as long as anybody uses it.
    pub(super) fn remember_room(self: &Arc<Store>, chair: &Chair) {
        if !matches!(chair.kind, Kind::Semaphore | Kind::Barrier) || !self.is_due(&chair.room) {
            return;
        }
        let (store, room) = (Arc::clone(self), chair.room.clone());
        self.runtime.spawn(async move {
            let mut seen = store.link.txn(Txn::new().then(get(&room))).await?;
            if let Some(kv) = seen.found()?.pop()
                && store.leases.look(kv.lease, false).await?.0 < MEMORY
            {
                let memory = store.leases.memory(MEMORY).await?;
                let txn = Txn::new()
                    .if_unchanged(&room, kv.mod_revision)
                    .then(put(&room, kv.value, memory));
                store.link.txn(txn).await?;
            }
            Ok::<(), Error>(())
        });
    }

    /// Whether it is time to see to it that it is not forgotten.
    fn is_due(&self, room: &str) -> bool {
        let now = self.clock.now();
        let mut touched = self.touched.lock().unwrap_or_else(PoisonError::into_inner);
        if touched.get(room).is_some_and(|at| now < *at + MEMORY / 8) {
            return false;
        }
        if touched.len() > 10_000 {
            touched.clear();
        }
        touched.insert(room.to_owned(), now);
        true
    }
}
