//! Notifying the waiters of a pool of their grant.
//!
//! Any holder that leaves may free capacity for a waiter. If all waiters watched the whole pool, each departure
//! would wake them all to read it. So a client watches on behalf of its first waiter only, since the others
//! cannot be granted sooner; and of the claims ahead, only enough to block that waiter
//! ([`PoolSnapshot::blockers_of`]): as long as these stay, there is nothing to learn. They are taken from the end
//! of the queue, and so the last to leave: one departure wakes about as many clients as the pool has capacity,
//! however many wait; and a handful if the capacity is large.

#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use tokio::runtime::Handle;

use super::records::PoolRecords;
use super::snapshot::{ClaimStatus, PoolSnapshot, WaitingClaim};
use crate::keys::PoolKeys;
use crate::notifier::ClaimNotifier;
use crate::proto::{KeyValue, WatchEvent};
use crate::tracked_claims::{TrackedClaim, TrackedClaims};
use crate::txn::range_end;
use crate::watches::{WatchHandle, WatchUpdate, Watches};
use windlass_core::error::Result;

/// Watches the pools in which claims of this client wait.
#[derive(Debug)]
pub(super) struct PoolWatcher {
    records: Arc<PoolRecords>,
    claims: Arc<TrackedClaims>,
    watches: Arc<Watches>,
    notifier: ClaimNotifier,
    runtime: Handle,
    /// By the pool's prefix.
    pools: Mutex<HashMap<String, PoolWatch>>,
}

/// What is watched in one pool.
#[derive(Debug)]
struct PoolWatch {
    /// The key of the waiter on whose behalf it is watched: the first of this client.
    first: String,
    created: i64,
    /// The newest snapshot by which the keys were chosen.
    revision: i64,
    /// By key, or by the prefix if the whole pool is watched.
    watches: HashMap<Vec<u8>, WatchHandle>,
    /// A task is reading the pool.
    checking: Arc<AtomicBool>,
    /// That task must read it again.
    check_again: Arc<AtomicBool>,
}

impl PoolWatcher {
    pub(super) fn new(
        records: Arc<PoolRecords>,
        claims: Arc<TrackedClaims>,
        watches: Arc<Watches>,
        notifier: ClaimNotifier,
    ) -> Arc<PoolWatcher> {
        Arc::new(PoolWatcher {
            records,
            runtime: claims.runtime.clone(),
            claims,
            watches,
            notifier,
            pools: Mutex::default(),
        })
    }

    /// Watches a pool on behalf of a waiter, unless an older waiter of this client is watched for. The snapshot
    /// need not contain all claims ahead, if those that it contains block the waiter.
    pub(super) fn watch(
        self: &Arc<PoolWatcher>,
        keys: &PoolKeys,
        waiter: WaitingClaim,
        pool: &PoolSnapshot,
    ) {
        let mut pools = self.pools();
        let current = pools.get(&keys.prefix);
        // A key that was created again is another waiter.
        let is_same =
            |watch: &&PoolWatch| watch.first == keys.key && watch.created == waiter.created;
        let other = current.filter(|watch| !is_same(watch));
        if other.is_some_and(|watch| self.is_for_older(watch, keys, waiter)) {
            return; // when that one is granted, the next is watched for
        }
        // If the other one no longer waits, the next has not been looked for: it need not be this one.
        let must_check = other.is_some();
        let ended = self.set_watch(&mut pools, keys, waiter, pool);
        drop(pools);
        drop(ended);
        if must_check {
            self.check(keys);
        }
    }

    /// Whether the pool is watched already, on behalf of an older waiter of this client.
    pub(super) fn is_watching_for_older(&self, keys: &PoolKeys, waiter: WaitingClaim) -> bool {
        let pools = self.pools();
        let watch = pools.get(&keys.prefix);
        watch.is_some_and(|watch| self.is_for_older(watch, keys, waiter))
    }

    fn is_for_older(&self, watch: &PoolWatch, keys: &PoolKeys, waiter: WaitingClaim) -> bool {
        let claims = self.claims.by_key();
        watch.first != keys.key
            && watch.created < waiter.created
            && claims
                .get(&watch.first)
                .is_some_and(TrackedClaim::is_waiting)
    }

    /// Watches a pool on behalf of a waiter. Returns the watches that this ends, to be dropped without the lock.
    #[must_use]
    fn set_watch(
        self: &Arc<PoolWatcher>,
        pools: &mut HashMap<String, PoolWatch>,
        keys: &PoolKeys,
        waiter: WaitingClaim,
        pool: &PoolSnapshot,
    ) -> HashMap<Vec<u8>, WatchHandle> {
        let wanted = match pool.blockers_of(keys.kind, waiter) {
            Some(blockers) => {
                let blockers = blockers.into_iter().map(|entry| entry.kv.key.clone());
                // The waiter's own key: if it is given up, the client's next waiter is the first.
                let more = [&keys.pool, &keys.key].map(|key| key.clone().into_bytes());
                blockers.chain(more).collect()
            }
            None => vec![keys.prefix.clone().into_bytes()],
        };
        let (mut running, checking, check_again, revision) = match pools.remove(&keys.prefix) {
            Some(watch) => (
                watch.watches,
                watch.checking,
                watch.check_again,
                watch.revision,
            ),
            None => Default::default(),
        };
        // An older snapshot names other keys, and what happened to them since must be reported again.
        let is_older = pool.revision < revision;
        let watches = wanted.into_iter().map(|key| {
            let reused = running.remove(&key).filter(|_| !is_older);
            let handle = reused.unwrap_or_else(|| self.watch_key(keys, &key, pool.revision + 1));
            (key, handle)
        });
        let watch = PoolWatch {
            first: keys.key.clone(),
            created: waiter.created,
            revision: pool.revision.max(revision),
            watches: watches.collect(),
            checking,
            check_again,
        };
        pools.insert(keys.prefix.clone(), watch);
        running
    }

    /// Watches one key of a pool, or all of them if the key is the prefix.
    fn watch_key(self: &Arc<PoolWatcher>, keys: &PoolKeys, key: &[u8], from: i64) -> WatchHandle {
        let weak: Weak<PoolWatcher> = Arc::downgrade(self);
        let watched = keys.clone();
        let callback = move |update: WatchUpdate<'_>| {
            // A new claim is behind all waiters, and changes nothing for them.
            let matters = |event: &WatchEvent| {
                let is_modified = |kv: &KeyValue| kv.create_revision != kv.mod_revision;
                let is_pool = |kv: &KeyValue| kv.key == watched.pool.as_bytes();
                let kv = event.kv.as_ref();
                event.is_deletion() || kv.is_some_and(|kv| is_modified(kv) || is_pool(kv))
            };
            let (matters, lost) = match update {
                WatchUpdate::Events(events) => (events.iter().any(matters), false),
                WatchUpdate::Lost => (true, true),
            };
            if let Some(watcher) = weak.upgrade().filter(|_| matters) {
                if lost {
                    let ended = watcher.pools().remove(&watched.prefix);
                    drop(ended); // its watches end outside the lock
                }
                watcher.check(&watched);
            }
        };
        let end = match key == keys.prefix.as_bytes() {
            true => range_end(&keys.prefix),
            false => Vec::new(),
        };
        self.watches.changes(key, end, from, Arc::new(callback))
    }

    /// Something has changed in a pool: reads it in the background, and notifies the claims of this client that
    /// hold now. One read serves all changes that arrived before it.
    fn check(self: &Arc<PoolWatcher>, keys: &PoolKeys) {
        let (checking, check_again) = match self.pools().get(&keys.prefix) {
            Some(watch) => (Arc::clone(&watch.checking), Arc::clone(&watch.check_again)),
            None => Default::default(),
        };
        check_again.store(true, Ordering::SeqCst);
        if checking.swap(true, Ordering::SeqCst) {
            return;
        }
        let (watcher, keys) = (Arc::clone(self), keys.clone());
        self.runtime.spawn(async move {
            loop {
                while check_again.swap(false, Ordering::SeqCst) {
                    if watcher.check_once(&keys).await {
                        check_again.store(true, Ordering::SeqCst);
                    }
                }
                checking.store(false, Ordering::SeqCst);
                // A change between these two found a check running.
                if !check_again.load(Ordering::SeqCst) || checking.swap(true, Ordering::SeqCst) {
                    return;
                }
            }
        });
    }

    /// Whether the pool must be read again.
    async fn check_once(self: &Arc<PoolWatcher>, keys: &PoolKeys) -> bool {
        if self.notifier.is_closed() {
            return false;
        }
        let waiting = self.claims.waiting_for(keys.kind, &keys.name);
        let Ok(pool) = self.read(keys).await else {
            // Each waiter finds out by its own renewal.
            for (_, wake) in &waiting {
                self.notifier.recheck(wake.claim);
            }
            return false;
        };
        for (key, wake) in &waiting {
            match pool.status(keys.kind, key) {
                ClaimStatus::Held(entry) if entry.stored.is_of(*wake) => {
                    let fence = entry.fence();
                    self.claims
                        .set_position(key, *wake, entry.created(), Some(fence));
                    self.notifier.granted(wake.claim, fence);
                }
                ClaimStatus::Waiting(entry) if entry.stored.is_of(*wake) => {}
                // Its own renewal writes what must be written, or finds out that it is gone.
                _ => self.notifier.recheck(wake.claim),
            }
        }
        self.watch_for_next(keys, &pool)
    }

    async fn read(&self, keys: &PoolKeys) -> Result<PoolSnapshot> {
        let pool = self.records.read(keys.kind, &keys.prefix).await?;
        self.records
            .open_if_full(keys.kind, &keys.prefix, &keys.pool, pool)
            .await
    }

    /// Watches on behalf of the first claim that still waits. True if a newer waiter may have come for
    /// which nothing is watched.
    fn watch_for_next(self: &Arc<PoolWatcher>, keys: &PoolKeys, pool: &PoolSnapshot) -> bool {
        let waiting = self.claims.waiting_for(keys.kind, &keys.name);
        if waiting.is_empty() {
            self.stop_if_none_waits(keys);
            return false;
        }
        let entries = waiting.iter().filter_map(|(key, _)| pool.find(key));
        let waiters = entries.filter(|(at, _)| !pool.holds(*at));
        match waiters.min_by_key(|(at, _)| *at) {
            Some((_, entry)) => {
                let first = PoolKeys {
                    key: entry.key().into_owned(),
                    ..keys.clone()
                };
                let ended = self.set_watch(&mut self.pools(), &first, entry.waiting(), pool);
                drop(ended);
                false
            }
            None => {
                let ended = self.pools().remove(&keys.prefix);
                drop(ended);
                // Read again: a waiter that came meanwhile may have relied on the watch that was just removed.
                let waiting = self.claims.waiting_for(keys.kind, &keys.name);
                let claims = self.claims.by_key();
                let created = |key: &String| claims.get(key).map_or(0, |claim| claim.created);
                waiting.iter().any(|(key, _)| created(key) > pool.revision)
            }
        }
    }

    /// Ends the watches of a pool in which no claim of this client waits any more.
    pub(super) fn stop_if_none_waits(&self, keys: &PoolKeys) {
        let ended = {
            let mut pools = self.pools();
            let is_watched = pools.contains_key(&keys.prefix);
            let none_waits = || self.claims.waiting_for(keys.kind, &keys.name).is_empty();
            match is_watched && none_waits() {
                true => pools.remove(&keys.prefix),
                false => None,
            }
        };
        drop(ended);
    }

    fn pools(&self) -> MutexGuard<'_, HashMap<String, PoolWatch>> {
        // Each change is a single insertion or removal: a panic leaves the map consistent.
        self.pools.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
