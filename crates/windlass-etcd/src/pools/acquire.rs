//! Acquiring a share of a pool.
//!
//! The common case is one transaction: it puts the key at the end of the queue and reads the pool, which
//! shows whether the claim holds. Everything else (no key yet for the size, try without waiting, barging, the same
//! owner again) reads the pool first, and writes only if nothing has changed since.

use std::sync::Arc;

use super::Pools;
use super::records::PoolPosition;
use super::retention::KEEP;
use super::snapshot::{ClaimEntry, PoolSnapshot, WaitingClaim, is_large};
use crate::errors::{after_write, malformed_reply, unreachable};
use crate::inspect;
use crate::keys::PoolKeys;
use crate::leases::EtcdLease;
use crate::proto::{KeyValue, TxnOp};
use crate::record::{StoredClaim, StoredPool};
use crate::txn::{Txn, TxnReply, get, put, unsorted};
use windlass_core::Fence;
use windlass_core::error::Result;
use windlass_core::store::{
    AcquireRequest, Acquired, Kind, OnBusy, OnSizeMismatch, Order, WakeAddress,
};

/// How many claims a new claim reads first.
const SOME: i64 = 64;

impl Pools {
    pub(crate) async fn acquire(&self, request: AcquireRequest) -> Result<Acquired> {
        let keys = PoolKeys::new(&self.keys, request.kind, &request.name, &request.owner);
        let (lease, previous) = self.claims.begin(&keys.key, &request).await?;
        let enqueued = self.enqueue(&keys, &request, &lease).await?;
        let acquired = match enqueued {
            Some(acquired) => acquired,
            None => self.read_and_decide(&keys, &request, &lease).await?,
        };
        match &acquired {
            Acquired::Busy(_) | Acquired::Refused(_) => {
                self.claims.restore(&keys.key, request.wake, previous);
                if !lease.shared {
                    self.leases.revoke(&lease);
                }
            }
            _ => self.retention.extend(&keys),
        }
        Ok(acquired)
    }

    /// Puts the key at the end of the queue and reads the pool in one transaction, if the request allows that.
    /// `None` if it does not, if the owner has a key already, or if the stored size is not the expected one.
    async fn enqueue(
        &self,
        keys: &PoolKeys,
        request: &AcquireRequest,
        lease: &Arc<EtcdLease>,
    ) -> Result<Option<Acquired>> {
        let share = request.share;
        let may_enqueue = request.on_busy == OnBusy::Enqueue
            && share.order == Order::Fifo
            && share.on_size_mismatch == OnSizeMismatch::Refuse
            && share.weight <= share.size
            && matches!(request.kind, Kind::Semaphore | Kind::ReadWrite);
        if !may_enqueue {
            return Ok(None);
        }
        let mut txn = Txn::new().if_absent(&keys.key);
        if request.kind == Kind::Semaphore {
            txn = txn.if_value(&keys.pool, &StoredPool::of_size(share.size).to_json());
        }
        // A claim may take a share of a large semaphore without another write only if it fits at once, and
        // that takes a read of all claims.
        let limit = match request.kind == Kind::Semaphore && is_large(share.size) {
            true => 0,
            false => SOME,
        };
        let txn = txn
            .then(put(
                &keys.key,
                StoredClaim::new(request).to_json(),
                lease.id,
            ))
            .then(get(&keys.pool))
            .then(TxnOp::Range(unsorted(&keys.prefix, limit)));
        let mut reply = self.connection.txn(txn).await?;
        if !reply.succeeded {
            return Ok(None);
        }
        reply.skip_put()?;
        let (stored, found) = (reply.take_range()?, reply.take_range()?);
        let acquired = if limit == 0 || (found.len() as i64) < limit {
            let pool = PoolSnapshot::new(keys.kind, &keys.prefix, reply.revision, found);
            let pool = pool.map_err(after_write)?;
            self.settle(keys, request.wake, &pool).await?
        } else {
            self.settle_by_some(keys, request, reply.revision, stored, found)
                .await?
        };
        Ok(Some(acquired))
    }

    /// Settles a new claim by some of the others, all of which are older, if these alone block it.
    async fn settle_by_some(
        &self,
        keys: &PoolKeys,
        request: &AcquireRequest,
        revision: i64,
        stored: Vec<KeyValue>,
        mut some: Vec<KeyValue>,
    ) -> Result<Acquired> {
        some.retain(|kv| kv.key != keys.pool.as_bytes() && kv.key != keys.key.as_bytes());
        some.extend(stored);
        let share = request.share;
        let pool = PoolSnapshot::new(keys.kind, &keys.prefix, revision, some);
        if pool
            .map_err(after_write)?
            .is_full_for(share.size, share.weight)
        {
            self.claims
                .set_position(&keys.key, request.wake, revision, None);
            let waiter = WaitingClaim {
                created: revision,
                weight: share.weight,
            };
            let queued = Acquired::Queued {
                ticket: Fence::new(revision as u64),
                recheck_after: None,
            };
            if self.watcher.is_watching_for_older(keys, waiter) {
                return Ok(queued);
            }
            // Any claims show that it must wait. But if all new claims watched the same ones, these would wake
            // them all.
            let newest = self.records.read_before(keys, waiter, SOME).await;
            let newest = newest.map_err(after_write)?;
            if newest.is_full_for(share.size, share.weight) {
                self.watcher.watch(keys, waiter, &newest);
                return Ok(queued);
            }
        }
        let pool = self.records.read(keys.kind, &keys.prefix).await;
        let pool = pool.map_err(after_write)?;
        self.settle(keys, request.wake, &pool).await
    }

    /// Reads the pool, decides, and writes if nothing that matters has changed since.
    async fn read_and_decide(
        &self,
        keys: &PoolKeys,
        request: &AcquireRequest,
        lease: &Arc<EtcdLease>,
    ) -> Result<Acquired> {
        let share = request.share;
        let _one_at_a_time = self.decision(&keys.prefix).await;
        loop {
            let pool = self.records.read(keys.kind, &keys.prefix).await?;
            if let Some(refusal) = pool.refusal(request, &keys.key) {
                return Ok(Acquired::Refused(refusal));
            }
            if let Some((at, entry)) = pool.find(&keys.key) {
                let waits = !pool.holds(at);
                if waits && request.on_busy == OnBusy::Return && share.order == Order::Fifo {
                    return self.busy(&pool).await;
                }
                if let Some(acquired) = self.take_over(keys, request, &pool, entry).await? {
                    return Ok(acquired);
                }
                continue;
            }
            let size = pool.size(keys.kind).unwrap_or(share.size);
            let has_waiters = pool.has_waiters(keys.kind);
            let fits = pool.fits(size, share.weight);
            let takes = fits && (!has_waiters || share.order == Order::Barging);
            if !takes && request.on_busy == OnBusy::Return {
                return self.busy(&pool).await;
            }
            let mut claim = StoredClaim::new(request);
            claim.size = size;
            let mut stored = (keys.kind == Kind::Semaphore).then(|| StoredPool {
                size,
                ..pool.stored.unwrap_or_default()
            });
            let mut txn = Txn::new().if_absent(&keys.key);
            if takes {
                // No other claim may have taken the capacity since.
                txn = txn.if_none_written_since(&keys.prefix, pool.revision);
                txn = if_none_granted_since(txn, keys, &pool);
                if has_waiters {
                    claim.admitted = true;
                    if let Some(stored) = &mut stored {
                        stored.overtook = Some(pool.revision);
                    }
                }
            } else {
                txn = txn.if_unchanged(&keys.pool, pool.stored_revision);
            }
            if let Some(stored) = stored.filter(|stored| pool.stored != Some(*stored)) {
                let retention = self.leases.retention(KEEP).await?;
                txn = txn.then(put(&keys.pool, stored.to_json(), retention));
            }
            let txn = txn
                .then(put(&keys.key, claim.to_json(), lease.id))
                .then(TxnOp::Range(unsorted(&keys.prefix, 0)));
            let reply = self.connection.txn(txn).await?;
            if reply.succeeded {
                return self.settle_after_put(keys, request.wake, reply).await;
            }
        }
    }

    /// The owner has a key already: the request takes over its position. `None` to try again.
    async fn take_over(
        &self,
        keys: &PoolKeys,
        request: &AcquireRequest,
        pool: &PoolSnapshot,
        entry: &ClaimEntry,
    ) -> Result<Option<Acquired>> {
        let lease = self
            .claims
            .begin_takeover(&keys.key, request, entry.kv.lease);
        let lease = lease.await?;
        let mut claim = StoredClaim {
            admitted: entry.stored.admitted,
            fence: entry.stored.fence,
            size: entry.stored.size,
            ..StoredClaim::new(request)
        };
        let mut txn = Txn::new().if_unchanged(&keys.key, entry.kv.mod_revision);
        let is_held = pool.find(&keys.key).is_some_and(|(at, _)| pool.holds(at));
        let size = pool.size(keys.kind).unwrap_or(request.share.size);
        let barges = !is_held && request.share.order == Order::Barging;
        if barges && pool.fits(size, request.share.weight) {
            if pool.is_fence(pool.revision) {
                self.records.advance_revision(keys, pool).await?;
                return Ok(None);
            }
            txn = if_none_granted_since(txn, keys, pool);
            // From its position in the queue to the front, with a fence above all others.
            claim.admitted = true;
            claim.fence = Some(pool.revision as u64);
            let stored = StoredPool {
                overtook: Some(pool.revision),
                size,
                ..pool.stored.unwrap_or_default()
            };
            let retention = self.leases.retention(KEEP).await?;
            txn = txn
                .if_none_written_since(&keys.prefix, pool.revision)
                .then(put(&keys.pool, stored.to_json(), retention));
        }
        let txn = txn
            .then(put(&keys.key, claim.to_json(), lease.id))
            .then(TxnOp::Range(unsorted(&keys.prefix, 0)));
        let reply = self.connection.txn(txn).await?;
        if !reply.succeeded {
            return Ok(None);
        }
        let acquired = self.settle_after_put(keys, request.wake, reply).await?;
        Ok(Some(acquired))
    }

    async fn busy(&self, pool: &PoolSnapshot) -> Result<Acquired> {
        let entry = pool.holders().next().or(pool.entries.first());
        let entry =
            entry.ok_or_else(|| malformed_reply("a pool without claims has no capacity"))?;
        let (owner, stored) = (entry.owner.clone(), entry.stored.clone());
        let holder = inspect::holder(&self.leases, owner, &entry.kv, stored, None).await?;
        Ok(Acquired::Busy(holder))
    }

    /// Settles a claim that was just put, by the range at the end of that transaction.
    async fn settle_after_put(
        &self,
        keys: &PoolKeys,
        wake: WakeAddress,
        mut reply: TxnReply,
    ) -> Result<Acquired> {
        let found = reply.take_last_range()?;
        let pool = PoolSnapshot::new(keys.kind, &keys.prefix, reply.revision, found);
        self.settle(keys, wake, &pool.map_err(after_write)?).await
    }

    /// Whether a claim whose key was put holds. Watches the pool if it waits.
    async fn settle(
        &self,
        keys: &PoolKeys,
        wake: WakeAddress,
        pool: &PoolSnapshot,
    ) -> Result<Acquired> {
        let position = self.records.settle(keys, wake, pool).await;
        match position.map_err(after_write)? {
            PoolPosition::Held(fence) => Ok(Acquired::Granted {
                fence,
                recorded: true,
            }),
            PoolPosition::Waiting { ticket, waiter } => {
                self.watcher.watch(keys, waiter, pool);
                Ok(Acquired::Queued {
                    ticket,
                    recheck_after: None,
                })
            }
            // A retry finds out why.
            PoolPosition::Gone => Err(unreachable("the claim's key is gone")),
        }
    }
}

/// Adds the conditions that no waiter was granted since the snapshot, and that the size is the same.
fn if_none_granted_since(txn: Txn, keys: &PoolKeys, pool: &PoolSnapshot) -> Txn {
    let txn = txn.if_unchanged(&keys.pool, pool.stored_revision);
    pool.blockers_of_first(keys.kind)
        .into_iter()
        // The caller checks its own key.
        .filter(|entry| entry.kv.key != keys.key.as_bytes())
        .fold(txn, |txn, entry| {
            txn.if_unchanged(&entry.key(), entry.kv.mod_revision)
        })
}
