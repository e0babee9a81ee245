//! Reading the keys of a pool, and the writes that a grant may need.

use std::sync::Arc;

use super::retention::KEEP;
use super::snapshot::{ClaimEntry, ClaimStatus, PoolSnapshot, WaitingClaim};
use crate::connection::EtcdConnection;
use crate::keys::PoolKeys;
use crate::leases::Leases;
use crate::proto::TxnOp;
use crate::record::{StoredClaim, StoredPool};
use crate::tracked_claims::TrackedClaims;
use crate::txn::{Txn, delete, get, newest_before, put, unsorted};
use windlass_core::Fence;
use windlass_core::error::Result;
use windlass_core::store::{Kind, WakeAddress};

/// The keys of pools in etcd.
#[derive(Debug)]
pub(super) struct PoolRecords {
    connection: Arc<EtcdConnection>,
    leases: Arc<Leases>,
    claims: Arc<TrackedClaims>,
}

/// Where a claim is.
pub(super) enum PoolPosition {
    Held(Fence),
    Waiting { ticket: Fence, waiter: WaitingClaim },
    Gone,
}

impl PoolRecords {
    pub(super) fn new(claims: Arc<TrackedClaims>) -> PoolRecords {
        PoolRecords {
            connection: Arc::clone(&claims.connection),
            leases: Arc::clone(&claims.leases),
            claims,
        }
    }

    pub(super) async fn read(&self, kind: Kind, prefix: &str) -> Result<PoolSnapshot> {
        let range = self.connection.range(unsorted(prefix, 0)).await?;
        let revision = range.header.unwrap_or_default().revision;
        PoolSnapshot::new(kind, prefix, revision, range.kvs)
    }

    /// Reads the pool's own key, and the newest claims that are older than a waiter.
    pub(super) async fn read_before(
        &self,
        keys: &PoolKeys,
        waiter: WaitingClaim,
        limit: i64,
    ) -> Result<PoolSnapshot> {
        let newest = newest_before(&keys.prefix, waiter.created, limit);
        // The pool's own key may or may not be among them.
        let txn = Txn::new().then(get(&keys.pool)).then(TxnOp::Range(newest));
        let mut reply = self.connection.txn(txn).await?;
        let (pool, mut kvs) = (reply.take_range()?, reply.take_range()?);
        kvs.retain(|kv| kv.key != keys.pool.as_bytes());
        kvs.extend(pool);
        // As of the waiter's creation, so that a watch reports whatever has changed since.
        PoolSnapshot::new(keys.kind, &keys.prefix, waiter.created, kvs)
    }

    /// Where a claim is. Writes what the snapshot says must be written: a grant that must be recorded, the
    /// removal of a claim that can never hold, the opening of a barrier.
    pub(super) async fn settle(
        &self,
        keys: &PoolKeys,
        wake: WakeAddress,
        pool: &PoolSnapshot,
    ) -> Result<PoolPosition> {
        let mut pool = pool;
        let mut reread;
        loop {
            let (entry, must_record) = match pool.status(keys.kind, &keys.key) {
                ClaimStatus::Gone => return Ok(PoolPosition::Gone),
                ClaimStatus::TooHeavy(entry) => {
                    // Without its key it enters the queue again, and is refused with the reason.
                    let txn = Txn::new()
                        .if_unchanged(&keys.key, entry.kv.mod_revision)
                        .then(delete(&keys.key));
                    self.connection.txn(txn).await?;
                    return Ok(PoolPosition::Gone);
                }
                ClaimStatus::Waiting(entry) => {
                    self.claims
                        .set_position(&keys.key, wake, entry.created(), None);
                    return Ok(PoolPosition::Waiting {
                        ticket: entry.fence(),
                        waiter: entry.waiting(),
                    });
                }
                ClaimStatus::Held(entry) => (entry, false),
                ClaimStatus::HeldOnceRecorded(entry) => (entry, true),
            };
            let known = {
                let claims = self.claims.by_key();
                let claim = claims.get(&keys.key).filter(|claim| claim.wake == wake);
                claim.and_then(|claim| claim.fence)
            };
            if must_record && known.is_none() {
                self.record_holder(keys, pool, entry).await?;
                reread = self.read(keys.kind, &keys.prefix).await?;
                pool = &reread;
                continue;
            }
            let fence = known.unwrap_or(entry.fence());
            self.claims
                .set_position(&keys.key, wake, entry.created(), Some(fence));
            if keys.kind == Kind::Barrier {
                let pool = pool.clone();
                self.open_if_full(keys.kind, &keys.prefix, &keys.pool, pool)
                    .await?;
            }
            return Ok(PoolPosition::Held(fence));
        }
    }

    /// Records that a waiter holds: with a fence above all others if it was overtaken.
    async fn record_holder(
        &self,
        keys: &PoolKeys,
        pool: &PoolSnapshot,
        entry: &ClaimEntry,
    ) -> Result<()> {
        let overtaken = pool.was_overtaken(entry);
        if overtaken && pool.is_fence(pool.revision) {
            return self.advance_revision(keys, pool).await;
        }
        let new_fence = overtaken.then_some(pool.revision as u64);
        let holder = StoredClaim {
            admitted: pool.is_large(keys.kind),
            fence: new_fence.or(entry.stored.fence),
            ..entry.stored.clone()
        };
        let mut txn = Txn::new()
            // The claim may have been released.
            .if_unchanged(&keys.key, entry.kv.mod_revision)
            // New claims are behind this one, and barging or a resize writes the pool's key.
            .if_unchanged(&keys.pool, pool.stored_revision)
            .then(put(&keys.key, holder.to_json(), entry.kv.lease));
        if overtaken {
            let stored = StoredPool {
                overtook: Some(pool.revision),
                ..pool.stored.unwrap_or_default()
            };
            let retention = self.leases.retention(KEEP).await?;
            txn = txn
                .if_none_written_since(&keys.prefix, pool.revision)
                .then(put(&keys.pool, stored.to_json(), retention));
        }
        self.connection.txn(txn).await.map(drop)
    }

    /// Writes the pool's key unchanged, to get a revision that is no claim's fence.
    pub(super) async fn advance_revision(
        &self,
        keys: &PoolKeys,
        pool: &PoolSnapshot,
    ) -> Result<()> {
        let retention = self.leases.retention(KEEP).await?;
        let stored = pool.stored.unwrap_or_default();
        let txn = Txn::new()
            .if_none_written_since(&keys.prefix, pool.revision)
            .then(put(&keys.pool, stored.to_json(), retention));
        self.connection.txn(txn).await.map(drop)
    }

    /// Opens a barrier if all parties are there. Returns the latest snapshot.
    pub(super) async fn open_if_full(
        &self,
        kind: Kind,
        prefix: &str,
        pool_key: &str,
        mut pool: PoolSnapshot,
    ) -> Result<PoolSnapshot> {
        while kind == Kind::Barrier
            && pool.round().is_none()
            && let Some(size) = pool.size(kind)
            && pool.used() == u64::from(size)
        {
            let opened = StoredPool {
                size,
                through: pool.held_through(),
                open: Some(pool.revision as u64),
                overtook: None,
            };
            let retention = self.leases.retention(KEEP).await?;
            let txn = Txn::new()
                .if_none_written_since(prefix, pool.revision)
                .then(put(pool_key, opened.to_json(), retention));
            self.connection.txn(txn).await?;
            pool = self.read(kind, prefix).await?;
        }
        Ok(pool)
    }
}
