//! Locks and elections: first in, first out by the create revision of the keys under the name.
//!
//! The layout is that of etcd's concurrency package, whose clients take part in the same queue.

mod acquire;
mod acquire_all;
mod renew;
mod wait;

use std::collections::BTreeMap;
use std::sync::Arc;

use super::connection::EtcdConnection;
use super::errors::foreign_key;
use super::inspect;
use super::keys::{EtcdKeys, KeyOrigin, QueueKeys, key_origin};
use super::leases::Leases;
use super::list::scan;
use super::pending_deletes::PendingDeletes;
use super::proto::{KeyValue, RangeRequest, TxnOp};
use super::record::StoredClaim;
use super::tracked_claims::TrackedClaims;
use super::txn::{Txn, delete, get, oldest_first};
use windlass_core::Owner;
use windlass_core::error::Result;
use windlass_core::name::Name;
use windlass_core::store::{Holder, Kind, Occupancy, Released, WakeAddress, matches};

pub(super) use wait::QueueWatcher;

/// All locks and elections.
#[derive(Debug)]
pub(super) struct LockQueues {
    connection: Arc<EtcdConnection>,
    leases: Arc<Leases>,
    claims: Arc<TrackedClaims>,
    keys: EtcdKeys,
    deletes: Arc<PendingDeletes>,
    watcher: Arc<QueueWatcher>,
}

impl LockQueues {
    pub(super) fn new(
        claims: Arc<TrackedClaims>,
        deletes: Arc<PendingDeletes>,
        watcher: Arc<QueueWatcher>,
    ) -> LockQueues {
        LockQueues {
            connection: Arc::clone(&claims.connection),
            leases: Arc::clone(&claims.leases),
            keys: claims.keys.clone(),
            claims,
            deletes,
            watcher,
        }
    }

    /// Deletes the keys of a claim, held or waiting. With a `wake`, only if they are still that claim's.
    pub(super) async fn release(
        &self,
        keys: &QueueKeys,
        wake: Option<WakeAddress>,
    ) -> Result<Released> {
        let claim = self.claims.remove(&keys.key, wake);
        let is_held = claim.as_ref().is_some_and(|claim| !claim.is_waiting());
        let released = match wake {
            None if is_held => self.delete_held(keys).await,
            _ => self.delete(keys, wake, is_held).await,
        };
        self.claims.after_release(claim, &released);
        released
    }

    async fn delete_held(&self, keys: &QueueKeys) -> Result<Released> {
        let keys = keys.all().map(str::to_owned).collect();
        Ok(match self.deletes.delete(keys).await? {
            true => Released::WasHeld,
            false => Released::WasGone,
        })
    }

    async fn delete(
        &self,
        keys: &QueueKeys,
        wake: Option<WakeAddress>,
        is_held: bool,
    ) -> Result<Released> {
        loop {
            let mut txn = Txn::new();
            if let Some(wake) = wake {
                let read = Txn::new().then_all(keys.gets());
                let mut reply = self.connection.txn(read).await?;
                match keys.take(&mut reply)? {
                    Some((kv, stored)) if stored.is_of(wake) => {
                        txn = txn.if_unchanged(&keys.key, kv.mod_revision);
                    }
                    _ => return Ok(Released::WasGone),
                }
            }
            // For a claim that is known to hold, the rest of the queue does not matter.
            if !is_held {
                txn = txn.then(TxnOp::Range(RangeRequest {
                    keys_only: true,
                    ..oldest_first(&keys.prefix)
                }));
            }
            let txn = txn.then_all(keys.deletes());
            let mut reply = self.connection.txn(txn).await?;
            if !reply.succeeded {
                continue;
            }
            let others = match is_held {
                true => Vec::new(),
                false => reply.take_range()?,
            };
            if reply.take_deleted()? == 0 {
                return Ok(Released::WasGone);
            }
            // A foreign key does not prevent a release.
            let first = others
                .iter()
                .filter(|kv| is_queued(&keys.prefix, keys.kind, kv).unwrap_or(true))
                .min_by_key(|kv| kv.create_revision);
            let was_first = first.is_none_or(|kv| kv.key == keys.key.as_bytes());
            return Ok(match is_held || was_first {
                true => Released::WasHeld,
                false => Released::WasWaiting,
            });
        }
    }

    /// Removes the first claim from the queue of a lock, whatever its owner.
    pub(super) async fn break_lock(&self, name: &Name) -> Result<Option<Holder>> {
        let prefix = self.keys.claims(Kind::Lock, name);
        loop {
            let range = self.connection.range(oldest_first(&prefix)).await?;
            let queue = queue(&prefix, Kind::Lock, range.kvs)?;
            let Some(first) = queue.first() else {
                return Ok(None);
            };
            let holder = self.holder(&prefix, Kind::Lock, first).await?;
            let key = String::from_utf8_lossy(&first.key);
            let txn = Txn::new()
                .if_unchanged(&key, first.mod_revision)
                .then(delete(&key));
            if self.connection.txn(txn).await?.succeeded {
                return Ok(Some(holder));
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
        let range = self.connection.range(oldest_first(&prefix)).await?;
        let queue = queue(&prefix, kind, range.kvs)?;
        let name = name.as_str().to_owned();
        self.occupancy(kind, name, &prefix, &queue, max_holders)
            .await
    }

    /// All names that match the pattern and have a claim of one of the kinds.
    pub(super) async fn list(
        &self,
        kinds: &[Kind],
        pattern: &str,
        max_holders: usize,
    ) -> Result<Vec<Occupancy>> {
        let mut queues: BTreeMap<(String, Kind), Vec<KeyValue>> = BTreeMap::new();
        let prefix = self.keys.matching(Kind::Lock, pattern);
        for kv in scan(&self.connection, &prefix).await? {
            let key = String::from_utf8_lossy(&kv.key).into_owned();
            let Some((name, rest)) = self.keys.parse_queue_key(&key) else {
                continue;
            };
            let kind = match key_origin(rest, kv.lease) {
                KeyOrigin::Windlass { kind, .. } => kind,
                // etcd's lock writes no value, its election does.
                KeyOrigin::EtcdClient if kv.value.is_empty() => Kind::Lock,
                KeyOrigin::EtcdClient => Kind::Election,
                _ => continue,
            };
            if kinds.contains(&kind) && matches(pattern, name) {
                queues.entry((name.to_owned(), kind)).or_default().push(kv);
            }
        }
        let mut listed = Vec::new();
        for ((name, kind), mut queue) in queues {
            queue.sort_by_key(|kv| kv.create_revision);
            let prefix = self.keys.claims(kind, &Name::checked(&name));
            let occupancy = self.occupancy(kind, name, &prefix, &queue, max_holders);
            listed.push(occupancy.await?);
        }
        Ok(listed)
    }

    async fn occupancy(
        &self,
        kind: Kind,
        name: String,
        prefix: &str,
        queue: &[KeyValue],
        max_holders: usize,
    ) -> Result<Occupancy> {
        let mut holders = Vec::new();
        if let Some(first) = queue.first().filter(|_| max_holders > 0) {
            holders.push(self.holder(prefix, kind, first).await?);
        }
        let mut occupancy = Occupancy::new(kind, name);
        occupancy.size = 1;
        occupancy.used = u64::from(!queue.is_empty());
        occupancy.waiters = (queue.len() as u64).saturating_sub(1);
        occupancy.holders = holders;
        Ok(occupancy)
    }

    /// The holder, from its key. The owner of an etcd client's key is its lease.
    async fn holder(&self, prefix: &str, kind: Kind, kv: &KeyValue) -> Result<Holder> {
        let rest = String::from_utf8_lossy(kv.key.get(prefix.len()..).unwrap_or_default());
        let owner = match key_origin(&rest, kv.lease) {
            KeyOrigin::Windlass { owner, .. } => owner,
            _ => rest.clone().into_owned(),
        };
        let (stored, note) = match kind {
            Kind::Election => {
                let name = prefix.strip_prefix(self.keys.prefix()).unwrap_or(prefix);
                let name = Name::checked(name.trim_end_matches('/'));
                let record = match Owner::new(&owner) {
                    Ok(owner) => {
                        let record = get(&self.keys.leader_record(&name, &owner));
                        let mut reply = self.connection.txn(Txn::new().then(record)).await?;
                        reply.take_key()?
                    }
                    Err(_) => None,
                };
                let stored = record.and_then(|kv| StoredClaim::from_json(&kv.value));
                let value = String::from_utf8_lossy(&kv.value).into_owned();
                (stored, Some(value))
            }
            _ => (StoredClaim::from_json(&kv.value), None),
        };
        inspect::holder(&self.leases, owner, kv, stored.unwrap_or_default(), note).await
    }
}

/// Whether the key is in the queue of that kind. An error if another program wrote it.
fn is_queued(prefix: &str, kind: Kind, kv: &KeyValue) -> Result<bool> {
    let rest = kv.key.get(prefix.len()..).unwrap_or_default();
    Ok(match key_origin(&String::from_utf8_lossy(rest), kv.lease) {
        KeyOrigin::Windlass { kind: other, .. } => other == kind,
        KeyOrigin::EtcdClient => true,
        KeyOrigin::NestedName => false,
        KeyOrigin::Foreign => return Err(foreign_key(&kv.key)),
    })
}

/// The keys that are in the queue, the oldest first.
fn queue(prefix: &str, kind: Kind, kvs: Vec<KeyValue>) -> Result<Vec<KeyValue>> {
    let mut queue = Vec::with_capacity(kvs.len());
    for kv in kvs {
        if is_queued(prefix, kind, &kv)? {
            queue.push(kv);
        }
    }
    queue.sort_by_key(|kv| kv.create_revision);
    Ok(queue)
}
