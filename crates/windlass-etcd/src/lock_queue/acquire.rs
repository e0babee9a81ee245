//! Acquiring a lock or an election.

use std::sync::Arc;

use super::wait::Predecessor;
use super::{LockQueues, queue};
use crate::errors::after_write;
use crate::keys::QueueKeys;
use crate::leases::EtcdLease;
use crate::proto::{KeyValue, RangeRequest, TxnOp};
use crate::record::StoredClaim;
use crate::txn::{Txn, newest, oldest_first};
use windlass_core::error::{Error, Result};
use windlass_core::store::{AcquireRequest, Acquired, OnBusy};

/// How many of the oldest keys are read to find the holder: keys that are not in the queue are rare.
const FIRST_KEYS: i64 = 8;

/// How often a free lock is tried while keys of nested names change.
pub(super) const ATTEMPTS: usize = 3;

impl LockQueues {
    pub(crate) async fn acquire(&self, request: AcquireRequest) -> Result<Acquired> {
        let keys = QueueKeys::new(&self.keys, request.kind, &request.name, &request.owner);
        let (lease, previous) = self.claims.begin(&keys.key, &request).await?;
        loop {
            let acquired = match request.on_busy {
                OnBusy::Enqueue => self.enqueue(&keys, &request, &lease).await?,
                OnBusy::Return => self.take_if_free(&keys, &request, &lease).await?,
            };
            let Some(acquired) = acquired else {
                continue; // a key that was in the way is gone
            };
            if matches!(acquired, Acquired::Busy(_)) {
                self.claims.restore(&keys.key, request.wake, previous);
                if !lease.shared {
                    self.leases.revoke(&lease);
                }
            }
            return Ok(acquired);
        }
    }

    /// Puts the key, and reads in the same transaction the newest key ahead of it. `None` to try again.
    async fn enqueue(
        &self,
        keys: &QueueKeys,
        request: &AcquireRequest,
        lease: &Arc<EtcdLease>,
    ) -> Result<Option<Acquired>> {
        let puts = keys.puts(&StoredClaim::new(request), lease.id);
        let count = puts.len();
        let txn = Txn::new()
            .if_absent(&keys.key)
            .then_all(puts)
            .then(TxnOp::Range(newest(&keys.prefix, 2)))
            .otherwise_all(keys.gets());
        let mut reply = self.connection.txn(txn).await?;
        if !reply.succeeded {
            return match keys.take(&mut reply)? {
                Some((kv, _)) => self.take_over(keys, request, kv).await,
                None => Ok(None),
            };
        }
        for _ in 0..count {
            reply.skip_put()?;
        }
        let created = reply.revision;
        let mut newest = reply.take_range()?.into_iter();
        let ahead = newest.find(|kv| kv.create_revision < created);
        let predecessor = self.watcher.predecessor(keys, created, ahead, created);
        match predecessor.await {
            Ok(predecessor) => Ok(Some(self.settle(keys, request, created, predecessor))),
            Err(e) => Err(self.undo_after(keys, e).await),
        }
    }

    fn settle(
        &self,
        keys: &QueueKeys,
        request: &AcquireRequest,
        created: i64,
        predecessor: Option<Predecessor>,
    ) -> Acquired {
        let position = self
            .watcher
            .settle(keys, request.wake, created, predecessor);
        position.into()
    }

    /// The error to return after the key was put. If a retry cannot help, the key is deleted; otherwise the
    /// retry finds it in its position.
    async fn undo_after(&self, keys: &QueueKeys, e: Error) -> Error {
        match !e.is_retryable() && self.undo(keys).await.is_ok() {
            true => e,
            false => after_write(e),
        }
    }

    async fn undo(&self, keys: &QueueKeys) -> Result<()> {
        let txn = Txn::new().then_all(keys.deletes());
        self.connection.txn(txn).await?;
        if let Some(claim) = self.claims.remove(&keys.key, None) {
            self.claims.key_deleted(&claim);
        }
        Ok(())
    }

    /// Puts the key only if the queue is empty. `None` to try again.
    async fn take_if_free(
        &self,
        keys: &QueueKeys,
        request: &AcquireRequest,
        lease: &Arc<EtcdLease>,
    ) -> Result<Option<Acquired>> {
        let mut txn = Txn::new().if_empty(&keys.prefix);
        for _ in 0..ATTEMPTS {
            let first = RangeRequest {
                limit: FIRST_KEYS,
                ..oldest_first(&keys.prefix)
            };
            txn = txn
                .then_all(keys.puts(&StoredClaim::new(request), lease.id))
                .otherwise_all(keys.gets())
                .otherwise(TxnOp::Range(first));
            let mut reply = self.connection.txn(txn).await?;
            if reply.succeeded {
                return Ok(Some(self.settle(keys, request, reply.revision, None)));
            }
            if let Some((kv, _)) = keys.take(&mut reply)? {
                return self.take_over(keys, request, kv).await;
            }
            let mut revision = reply.revision;
            let first = reply.take_range()?;
            let may_be_more = first.len() as i64 == FIRST_KEYS;
            let mut queued = queue(&keys.prefix, keys.kind, first)?;
            if queued.is_empty() && may_be_more {
                let all = self.connection.range(oldest_first(&keys.prefix)).await?;
                revision = all.header.unwrap_or_default().revision;
                queued = queue(&keys.prefix, keys.kind, all.kvs)?;
            }
            if let Some(first) = queued.first() {
                return self.busy(keys, first).await.map(Some);
            }
            // All keys are of nested names: put ours if none of them has changed.
            txn = Txn::new()
                .if_none_written_since(&keys.prefix, revision)
                .if_absent(&keys.key);
        }
        self.enqueue_or_leave(keys, request, lease).await
    }

    async fn busy(&self, keys: &QueueKeys, first: &KeyValue) -> Result<Acquired> {
        let holder = self.holder(&keys.prefix, keys.kind, first).await?;
        Ok(Acquired::Busy(holder))
    }

    /// As [`take_if_free`](LockQueues::take_if_free), where keys of nested names change all the time: enters the
    /// queue, and leaves it again if another claim is ahead.
    async fn enqueue_or_leave(
        &self,
        keys: &QueueKeys,
        request: &AcquireRequest,
        lease: &Arc<EtcdLease>,
    ) -> Result<Option<Acquired>> {
        let enqueued = self.enqueue(keys, request, lease).await?;
        let Some(Acquired::Queued { ticket, .. }) = enqueued else {
            return Ok(enqueued);
        };
        let first = async {
            let all = self.connection.range(oldest_first(&keys.prefix)).await?;
            let mut queued = queue(&keys.prefix, keys.kind, all.kvs)?.into_iter();
            let Some(first) = queued.next() else {
                return Ok(None);
            };
            let busy = self.busy(keys, &first).await?;
            Ok(Some((first, busy)))
        };
        let (first, busy) = match first.await {
            Ok(Some(first)) => first,
            Ok(None) => return Ok(None), // our key has expired
            Err(e) => return Err(self.undo_after(keys, e).await),
        };
        if first.key == keys.key.as_bytes() {
            let created = ticket.get() as i64;
            return Ok(Some(self.settle(keys, request, created, None)));
        }
        self.undo(keys).await.map_err(after_write)?;
        Ok(Some(busy))
    }

    /// The owner has a key already: the request takes over its position. `None` to try again.
    async fn take_over(
        &self,
        keys: &QueueKeys,
        request: &AcquireRequest,
        kv: KeyValue,
    ) -> Result<Option<Acquired>> {
        let created = kv.create_revision;
        let predecessor = self.watcher.read_predecessor(keys, created).await?;
        if request.on_busy == OnBusy::Return && predecessor.is_some() {
            let all = self.connection.range(oldest_first(&keys.prefix)).await?;
            let queued = queue(&keys.prefix, keys.kind, all.kvs)?;
            if let Some(first) = queued.first() {
                return self.busy(keys, first).await.map(Some);
            }
        }
        let lease = self.claims.begin_takeover(&keys.key, request, kv.lease);
        let lease = lease.await?;
        let txn = Txn::new()
            .if_unchanged(&keys.key, kv.mod_revision)
            .then_all(keys.puts(&StoredClaim::new(request), lease.id));
        let reply = self.connection.txn(txn).await?;
        Ok(reply
            .succeeded
            .then(|| self.settle(keys, request, created, predecessor)))
    }
}
