//! Bare operations in memory: a map of tokio mutexes, what a program without leases, fencing tokens and loss
//! notification would use.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::OwnedMutexGuard;
use windlass_term::Failure;

use crate::interleave::Cycle;

type Entry = Arc<tokio::sync::Mutex<()>>;

/// MutexMap by name; an entry exists only while the name is locked or waited for.
#[derive(Clone, Debug, Default)]
pub(crate) struct MutexMap(Arc<Mutex<HashMap<String, Entry>>>);

/// The guard of a locked name.
#[derive(Debug)]
pub(crate) struct LockedName {
    map: MutexMap,
    name: String,
    guard: Option<OwnedMutexGuard<()>>,
}

impl MutexMap {
    pub(crate) async fn lock(&self, name: &str) -> LockedName {
        let entry = Arc::clone(self.map().entry(name.to_owned()).or_default());
        LockedName {
            map: self.clone(),
            name: name.to_owned(),
            guard: Some(entry.lock_owned().await),
        }
    }

    /// The number of holders and waiters of a name.
    pub(crate) fn users(&self, name: &str) -> usize {
        let map = self.map();
        map.get(name)
            .map_or(0, |entry| Arc::strong_count(entry) - 1)
    }

    fn map(&self) -> MutexGuard<'_, HashMap<String, Entry>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for LockedName {
    fn drop(&mut self) {
        let mut map = self.map.map();
        self.guard = None;
        // Each waiter has a reference of its own, and the locked map keeps new ones out.
        if map
            .get(&self.name)
            .is_some_and(|e| Arc::strong_count(e) == 1)
        {
            map.remove(&self.name);
        }
    }
}

/// Locks and unlocks one name.
#[derive(Debug)]
pub(crate) struct BareMutex {
    pub(crate) map: MutexMap,
    pub(crate) name: String,
}

impl Cycle for BareMutex {
    async fn once(&mut self) -> Result<(), Failure> {
        drop(self.map.lock(&self.name).await);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn mutex_map_excludes_and_removes_unused_entries() {
        let map = MutexMap::default();
        let first = map.lock("a").await;
        let second = tokio::spawn({
            let map = map.clone();
            async move { drop(map.lock("a").await) }
        });
        while map.users("a") < 2 {
            tokio::task::yield_now().await;
        }
        assert!(!second.is_finished());
        drop(first);
        second.await.unwrap();
        assert!(map.map().is_empty());
    }
}
