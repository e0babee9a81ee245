//! The other side in memory: a map of tokio's mutexes, which is what a program without leases,
//! fences and loss signals would write by hand.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::OwnedMutexGuard;

use super::turns::Cycle;
use crate::failure::Failure;

type Entry = Arc<tokio::sync::Mutex<()>>;

/// Mutexes by name, each there only while somebody wants it.
#[derive(Clone, Debug, Default)]
pub(super) struct Mutexes(Arc<Mutex<HashMap<String, Entry>>>);

/// A locked name.
#[derive(Debug)]
pub(super) struct Locked {
    map: Mutexes,
    name: String,
    guard: Option<OwnedMutexGuard<()>>,
}

impl Mutexes {
    pub(super) async fn lock(&self, name: &str) -> Locked {
        let entry = Arc::clone(self.map().entry(name.to_owned()).or_default());
        Locked {
            map: self.clone(),
            name: name.to_owned(),
            guard: Some(entry.lock_owned().await),
        }
    }

    /// How many hold or wait for a name.
    pub(super) fn wanted(&self, name: &str) -> usize {
        let map = self.map();
        map.get(name)
            .map_or(0, |entry| Arc::strong_count(entry) - 1)
    }

    fn map(&self) -> MutexGuard<'_, HashMap<String, Entry>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Locked {
    fn drop(&mut self) {
        let mut map = self.map.map();
        self.guard = None;
        // Whoever waits has a share of its own; new ones cannot come while the map is locked.
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
pub(super) struct BareMutex {
    pub(super) map: Mutexes,
    pub(super) name: String,
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
    async fn excludes_and_leaves_nothing() {
        let map = Mutexes::default();
        let first = map.lock("a").await;
        let second = tokio::spawn({
            let map = map.clone();
            async move { drop(map.lock("a").await) }
        });
        while map.wanted("a") < 2 {
            tokio::task::yield_now().await;
        }
        assert!(!second.is_finished());
        drop(first);
        second.await.unwrap();
        assert!(map.map().is_empty());
    }
}
