//! Semaphores, read-write locks and barriers: capacity that claims share by weight.
//!
//! [`snapshot`] explains which claims hold and why that is safe, [`wait`] how waiters learn of their grant.

mod acquire;
mod records;
mod renew;
mod retention;
mod snapshot;
mod wait;

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;

use tokio::sync::{Mutex as AsyncMutex, MutexGuard};

use super::connection::EtcdConnection;
use super::inspect;
use super::keys::{EtcdKeys, PoolKeys};
use super::leases::Leases;
use super::list::scan;
use super::notifier::ClaimNotifier;
use super::pending_deletes::PendingDeletes;
use super::proto::{KeyValue, TxnOp};
use super::record::{StoredClaim, StoredPool};
use super::tracked_claims::TrackedClaims;
use super::txn::{MAX_OPS, Txn, delete, get, put, unsorted};
use super::watches::Watches;
use records::PoolRecords;
use retention::{KEEP, Retention};
use wait::PoolWatcher;
use windlass_core::error::Result;
use windlass_core::name::Name;
use windlass_core::store::{Kind, Occupancy, Released, WakeAddress, matches};

pub(super) use renew::SnapshotCache;
pub(super) use snapshot::PoolSnapshot;

/// All semaphores, read-write locks and barriers.
#[derive(Debug)]
pub(super) struct Pools {
    connection: Arc<EtcdConnection>,
    leases: Arc<Leases>,
    claims: Arc<TrackedClaims>,
    keys: EtcdKeys,
    deletes: Arc<PendingDeletes>,
    records: Arc<PoolRecords>,
    watcher: Arc<PoolWatcher>,
    retention: Retention,
    /// A client decides about one pool at a time, so that its own transactions do not conflict. By hash of the
    /// pool's prefix.
    decisions: [AsyncMutex<()>; 64],
}

impl Pools {
    pub(super) fn new(
        claims: Arc<TrackedClaims>,
        deletes: Arc<PendingDeletes>,
        watches: Arc<Watches>,
        notifier: ClaimNotifier,
    ) -> Pools {
        let records = Arc::new(PoolRecords::new(Arc::clone(&claims)));
        Pools {
            connection: Arc::clone(&claims.connection),
            leases: Arc::clone(&claims.leases),
            keys: claims.keys.clone(),
            watcher: PoolWatcher::new(Arc::clone(&records), Arc::clone(&claims), watches, notifier),
            retention: Retention::new(&claims),
            claims,
            deletes,
            records,
            decisions: std::array::from_fn(|_| AsyncMutex::new(())),
        }
    }

    async fn decision(&self, prefix: &str) -> MutexGuard<'_, ()> {
        let mut hasher = DefaultHasher::new();
        prefix.hash(&mut hasher);
        let at = hasher.finish() as usize % self.decisions.len();
        self.decisions[at].lock().await
    }

    /// Deletes the key of a claim, held or waiting. With a `wake`, only if it is still that claim's.
    pub(super) async fn release(
        &self,
        keys: &PoolKeys,
        wake: Option<WakeAddress>,
    ) -> Result<Released> {
        let claim = self.claims.remove(&keys.key, wake);
        let is_held = claim.as_ref().is_some_and(|claim| !claim.is_waiting());
        let released = match wake {
            None if is_held => self.delete_held(keys).await,
            _ => self.delete(keys, wake, is_held).await,
        };
        self.watcher.stop_if_none_waits(keys);
        self.claims.after_release(claim, &released);
        released
    }

    async fn delete_held(&self, keys: &PoolKeys) -> Result<Released> {
        Ok(match self.deletes.delete(vec![keys.key.clone()]).await? {
            true => Released::WasHeld,
            false => Released::WasGone,
        })
    }

    async fn delete(
        &self,
        keys: &PoolKeys,
        wake: Option<WakeAddress>,
        is_held: bool,
    ) -> Result<Released> {
        loop {
            let mut txn = Txn::new();
            if let Some(wake) = wake {
                let read = Txn::new().then(get(&keys.key));
                let kv = self.connection.txn(read).await?.take_key()?;
                let is_ours = |kv: &KeyValue| {
                    StoredClaim::from_json(&kv.value).is_some_and(|stored| stored.is_of(wake))
                };
                match kv.filter(is_ours) {
                    Some(kv) => txn = txn.if_unchanged(&keys.key, kv.mod_revision),
                    None => return Ok(Released::WasGone),
                }
            }
            if !is_held {
                txn = txn.then(TxnOp::Range(unsorted(&keys.prefix, 0)));
            }
            let mut reply = self.connection.txn(txn.then(delete(&keys.key))).await?;
            if !reply.succeeded {
                continue;
            }
            let was_held = is_held || {
                let kvs = reply.take_range()?;
                let pool = PoolSnapshot::new(keys.kind, &keys.prefix, reply.revision, kvs)?;
                pool.find(&keys.key).is_some_and(|(at, _)| pool.holds(at))
            };
            return Ok(match (reply.take_deleted()?, was_held) {
                (0, _) => Released::WasGone,
                (_, true) => Released::WasHeld,
                (_, false) => Released::WasWaiting,
            });
        }
    }

    /// Reduces the weight of a held claim. False if `wake` does not hold.
    pub(super) async fn shrink(
        &self,
        keys: &PoolKeys,
        wake: WakeAddress,
        weight: u32,
    ) -> Result<bool> {
        loop {
            let pool = self.records.read(keys.kind, &keys.prefix).await?;
            let Some((at, entry)) = pool.find(&keys.key) else {
                return Ok(false);
            };
            let stored = &entry.stored;
            if !pool.holds(at) || !stored.is_of(wake) || stored.weight < weight {
                return Ok(false);
            }
            let smaller = StoredClaim {
                weight,
                ..stored.clone()
            };
            let txn = Txn::new()
                .if_unchanged(&keys.key, entry.kv.mod_revision)
                .then(put(&keys.key, smaller.to_json(), entry.kv.lease));
            if self.connection.txn(txn).await?.succeeded {
                return Ok(true);
            }
        }
    }

    /// Changes the size. Returns the previous one, if it is known.
    pub(super) async fn resize(&self, kind: Kind, name: &Name, size: u32) -> Result<Option<u32>> {
        let prefix = self.keys.claims(kind, name);
        let _one_at_a_time = self.decision(&prefix).await;
        loop {
            let pool = self.records.read(kind, &prefix).await?;
            let stored = pool.stored.unwrap_or_default();
            let resized = StoredPool {
                size,
                // Claims that hold keep holding.
                through: stored.through.max(pool.held_through()),
                ..stored
            };
            // A waiter must not be counted among them. Without its key, it enters the queue again.
            let mut passed_over = pool.passed_over(kind, resized.through).peekable();
            if passed_over.peek().is_some() {
                let txn = Txn::new().if_none_written_since(&prefix, pool.revision);
                let txn = passed_over
                    .take(MAX_OPS)
                    .fold(txn, |txn, entry| txn.then(delete(&entry.key())));
                self.connection.txn(txn).await?;
                continue;
            }
            let retention = self.leases.retention(KEEP).await?;
            let pool_key = self.keys.pool(kind, name);
            let mut txn = Txn::new()
                .if_none_written_since(&prefix, pool.revision)
                .then(put(&pool_key, resized.to_json(), retention));
            // A claim that was granted since the read would not be counted among those that hold.
            for entry in pool.blockers_of_first(kind) {
                txn = txn.if_unchanged(&entry.key(), entry.kv.mod_revision);
            }
            if self.connection.txn(txn).await?.succeeded {
                return Ok(pool.size(kind));
            }
        }
    }

    pub(super) async fn inspect(
        &self,
        kind: Kind,
        name: &Name,
        max_holders: usize,
    ) -> Result<Occupancy> {
        let prefix = self.keys.claims(kind, name);
        let pool = self.records.read(kind, &prefix).await?;
        // The client that should have opened the barrier may be gone.
        let pool_key = self.keys.pool(kind, name);
        let opened = self.records.open_if_full(kind, &prefix, &pool_key, pool);
        let pool = opened.await?;
        let name = name.as_str().to_owned();
        self.occupancy(kind, name, &pool, max_holders).await
    }

    /// All names of the kind that match the pattern and have a claim.
    pub(super) async fn list(
        &self,
        kind: Kind,
        pattern: &str,
        max_holders: usize,
    ) -> Result<Vec<Occupancy>> {
        let mut pools: BTreeMap<String, Vec<KeyValue>> = BTreeMap::new();
        let prefix = self.keys.matching(kind, pattern);
        for kv in scan(&self.connection, &prefix).await? {
            let key = String::from_utf8_lossy(&kv.key).into_owned();
            if let Some((name, _)) = self.keys.parse_pool_key(kind, &key)
                && matches(pattern, &name)
            {
                pools.entry(name).or_default().push(kv);
            }
        }
        let mut listed = Vec::new();
        for (name, kvs) in pools {
            let prefix = self.keys.claims(kind, &Name::checked(&name));
            let pool = PoolSnapshot::new(kind, &prefix, 0, kvs)?;
            if !pool.entries.is_empty() {
                listed.push(self.occupancy(kind, name, &pool, max_holders).await?);
            }
        }
        Ok(listed)
    }

    async fn occupancy(
        &self,
        kind: Kind,
        name: String,
        pool: &PoolSnapshot,
        max_holders: usize,
    ) -> Result<Occupancy> {
        let mut holders = Vec::new();
        for entry in pool.holders().take(max_holders) {
            let (owner, stored) = (entry.owner.clone(), entry.stored.clone());
            let holder = inspect::holder(&self.leases, owner, &entry.kv, stored, None);
            holders.push(holder.await?);
        }
        holders.sort_by_key(|holder| holder.remaining);
        let mut occupancy = Occupancy::new(kind, name);
        occupancy.size = pool.size(kind).unwrap_or(0);
        occupancy.used = pool.used();
        occupancy.waiters = pool.waiters().count() as u64;
        occupancy.holders = holders;
        occupancy.open = pool.round();
        Ok(occupancy)
    }
}
