//! Renewing a claim to a share of a pool.

use std::collections::HashMap;
use std::sync::Arc;

use tokio::sync::Mutex as AsyncMutex;

use super::Pools;
use super::records::PoolPosition;
use super::snapshot::PoolSnapshot;
use crate::errors::foreign_key;
use crate::keys::PoolKeys;
use crate::proto::TxnOp;
use crate::record::StoredClaim;
use crate::renew::ExpectedClaim;
use crate::txn::{Txn, TxnReply, get, put};
use windlass_core::error::Result;
use windlass_core::store::{Renewal, Renewed, SameOwner};

/// Pools that were read for one batch of renewals, by prefix.
pub(crate) type SnapshotCache = AsyncMutex<HashMap<String, Arc<PoolSnapshot>>>;

impl Pools {
    /// The reads that check a claim whose lease was renewed.
    pub(crate) fn renewal_reads(&self, keys: &PoolKeys) -> Vec<TxnOp> {
        vec![get(&keys.key)]
    }

    /// Evaluates the reply to [those reads](Pools::renewal_reads).
    pub(crate) async fn renewed(
        &self,
        keys: &PoolKeys,
        renewal: &Renewal,
        expected: ExpectedClaim,
        snapshots: &SnapshotCache,
        mut reply: TxnReply,
    ) -> Result<Renewed> {
        let Some(kv) = reply.take_key()? else {
            return Ok(Renewed::Gone);
        };
        let stored = StoredClaim::from_json(&kv.value).ok_or_else(|| foreign_key(&kv.key))?;
        let is_other = !stored.is_of(renewal.wake);
        if expected.was_recreated(&kv) || (renewal.same_owner == SameOwner::Respect && is_other) {
            return Ok(Renewed::Gone);
        }
        if expected.is_on_other_lease(&kv) {
            return self.rewrite(keys, renewal).await;
        }
        self.retention.extend(keys);
        if let Some(fence) = expected.held {
            if renewal.rewrite_details && !stored.is_up_to_date(renewal) {
                return self.rewrite(keys, renewal).await;
            }
            return Ok(Renewed::Held { fence });
        }
        // One read serves all waiters of a pool.
        let pool = {
            let mut snapshots = snapshots.lock().await;
            match snapshots.get(&keys.prefix) {
                Some(pool) => Arc::clone(pool),
                None => {
                    let pool = Arc::new(self.records.read(keys.kind, &keys.prefix).await?);
                    snapshots.insert(keys.prefix.clone(), Arc::clone(&pool));
                    pool
                }
            }
        };
        self.settle_renewal(keys, renewal, &pool).await
    }

    async fn settle_renewal(
        &self,
        keys: &PoolKeys,
        renewal: &Renewal,
        pool: &PoolSnapshot,
    ) -> Result<Renewed> {
        let position = self.records.settle(keys, renewal.wake, pool).await?;
        Ok(match position {
            PoolPosition::Held(fence) => Renewed::Held { fence },
            PoolPosition::Waiting { waiter, .. } => {
                self.watcher.watch(keys, waiter, pool);
                Renewed::Waiting {
                    recheck_after: None,
                }
            }
            PoolPosition::Gone => Renewed::Gone,
        })
    }

    /// Writes a claim again: for another claim of the same owner, on another lease, or with another note.
    pub(crate) async fn rewrite(&self, keys: &PoolKeys, renewal: &Renewal) -> Result<Renewed> {
        let mut previous_lease = None;
        loop {
            let read = Txn::new().then(get(&keys.key));
            let Some(kv) = self.connection.txn(read).await?.take_key()? else {
                return Ok(Renewed::Gone);
            };
            let stored = StoredClaim::from_json(&kv.value).ok_or_else(|| foreign_key(&kv.key))?;
            if renewal.same_owner == SameOwner::Respect && !stored.is_of(renewal.wake) {
                return Ok(Renewed::Gone);
            }
            let created = kv.create_revision;
            let begun = self.claims.begin_rewrite(&keys.key, renewal, created);
            let (lease, replaced) = begun.await?;
            previous_lease = previous_lease.or(replaced);
            let value = stored.renewed(renewal).to_json();
            let txn = Txn::new()
                .if_unchanged(&keys.key, kv.mod_revision)
                .then(put(&keys.key, value, lease.id));
            if !self.connection.txn(txn).await?.succeeded {
                continue;
            }
            // Not before the write: until then the key is on its previous lease.
            self.claims.lease_replaced(previous_lease, &lease);
            // A claim that holds keeps holding, whatever other claims exist.
            if let Some(fence) = self.claims.fence(&keys.key) {
                return Ok(Renewed::Held { fence });
            }
            let pool = self.records.read(keys.kind, &keys.prefix).await?;
            return self.settle_renewal(keys, renewal, &pool).await;
        }
    }
}
