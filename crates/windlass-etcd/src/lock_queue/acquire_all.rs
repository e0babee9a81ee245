//! Acquiring several locks at once: all of them or none.

use std::sync::Arc;

use super::acquire::ATTEMPTS;
use super::{LockQueues, queue};
use crate::errors::{after_write, malformed_reply};
use crate::keys::QueueKeys;
use crate::leases::EtcdLease;
use crate::proto::{KeyValue, TxnOp};
use crate::record::StoredClaim;
use crate::txn::{MAX_OPS, Txn, oldest_first};
use windlass_core::Fence;
use windlass_core::error::Result;
use windlass_core::store::{AcquireRequest, AcquiredAll};

/// The most locks that one transaction acquires.
const BATCH: usize = 40;

impl LockQueues {
    /// Acquires all locks in one transaction if they are few. Otherwise acquires them batch by batch, and
    /// releases all if one is not free.
    pub(crate) async fn acquire_all(&self, requests: Vec<AcquireRequest>) -> Result<AcquiredAll> {
        let mut fences = Vec::with_capacity(requests.len());
        for batch in requests.chunks(BATCH) {
            let begin = fences.len();
            let refused = match self.acquire_batch(batch).await {
                Ok(AcquiredAll::Granted(granted)) => {
                    fences.extend(granted);
                    continue;
                }
                Ok(AcquiredAll::Busy { which, holder }) => Ok(AcquiredAll::Busy {
                    which: begin + which,
                    holder,
                }),
                other => other,
            };
            let released = self.release_all(&requests[..begin], &fences).await;
            return match (refused, released) {
                (refused, Ok(())) => refused,
                (Err(e), Err(_)) | (Ok(_), Err(e)) => Err(after_write(e)),
            };
        }
        Ok(AcquiredAll::Granted(fences))
    }

    /// Releases locks that were just granted: many in one transaction, unless one of them has changed.
    async fn release_all(&self, requests: &[AcquireRequest], fences: &[Fence]) -> Result<()> {
        let granted: Vec<(&AcquireRequest, Fence)> =
            requests.iter().zip(fences.iter().copied()).collect();
        // A claim has two keys at most.
        for batch in granted.chunks(MAX_OPS / 2) {
            let mut txn = Txn::new();
            for (request, fence) in batch {
                let keys = self.keys_of(request);
                txn = txn
                    .if_unchanged(&keys.key, fence.get() as i64)
                    .then_all(keys.deletes());
            }
            let all_at_once = self.connection.txn(txn).await?.succeeded;
            for (request, _) in batch {
                let keys = self.keys_of(request);
                if !all_at_once {
                    let _ = self.release(&keys, Some(request.wake)).await?;
                } else if let Some(claim) = self.claims.remove(&keys.key, Some(request.wake)) {
                    self.claims.key_deleted(&claim);
                }
            }
        }
        Ok(())
    }

    fn keys_of(&self, request: &AcquireRequest) -> QueueKeys {
        QueueKeys::new(&self.keys, request.kind, &request.name, &request.owner)
    }

    async fn acquire_batch(&self, requests: &[AcquireRequest]) -> Result<AcquiredAll> {
        let mut locks = Vec::with_capacity(requests.len());
        let mut previous = Vec::with_capacity(requests.len());
        for request in requests {
            let keys = self.keys_of(request);
            let (lease, replaced) = self.claims.begin(&keys.key, request).await?;
            previous.push(replaced);
            locks.push(LockInBatch {
                request,
                keys,
                lease,
            });
        }
        let batch = LockBatch {
            queues: self,
            locks,
        };
        let acquired = batch.take_if_free().await;
        if matches!(acquired, Ok(AcquiredAll::Busy { .. })) {
            for (lock, previous) in batch.locks.iter().zip(previous) {
                self.claims
                    .restore(&lock.keys.key, lock.request.wake, previous);
            }
        }
        acquired
    }
}

/// Locks that one transaction acquires.
struct LockBatch<'a> {
    queues: &'a LockQueues,
    locks: Vec<LockInBatch<'a>>,
}

struct LockInBatch<'a> {
    request: &'a AcquireRequest,
    keys: QueueKeys,
    lease: Arc<EtcdLease>,
}

impl LockInBatch<'_> {
    fn put(&self, txn: Txn) -> Txn {
        let claim = StoredClaim::new(self.request);
        txn.then_all(self.keys.puts(&claim, self.lease.id))
    }

    fn read_queue(&self) -> TxnOp {
        TxnOp::Range(oldest_first(&self.keys.prefix))
    }

    fn queue(&self, kvs: Vec<KeyValue>) -> Result<Vec<KeyValue>> {
        queue(&self.keys.prefix, self.keys.kind, kvs)
    }
}

impl LockBatch<'_> {
    async fn take_if_free(&self) -> Result<AcquiredAll> {
        // The revision at which there were only keys of nested names, none of which may have changed since.
        let mut seen: Option<i64> = None;
        for _ in 0..ATTEMPTS {
            let mut txn = Txn::new();
            for lock in &self.locks {
                let prefix = &lock.keys.prefix;
                txn = match seen {
                    None => txn.if_empty(prefix),
                    Some(revision) => txn.if_none_written_since(prefix, revision),
                };
                txn = lock.put(txn).otherwise(lock.read_queue());
            }
            let mut reply = self.queues.connection.txn(txn).await?;
            if reply.succeeded {
                return Ok(self.granted(reply.revision));
            }
            for (which, lock) in self.locks.iter().enumerate() {
                let queue = lock.queue(reply.take_range()?)?;
                if !queue.is_empty() {
                    return self.busy(which, &queue).await;
                }
            }
            seen = Some(reply.revision);
        }
        self.enqueue_or_leave().await
    }

    /// As [`take_if_free`](LockBatch::take_if_free), where keys of nested names change all the time: enters all
    /// queues in one transaction, and leaves them again if another claim is ahead in one of them.
    async fn enqueue_or_leave(&self) -> Result<AcquiredAll> {
        let mut txn = Txn::new();
        for lock in &self.locks {
            txn = lock.put(txn.if_absent(&lock.keys.key));
        }
        for lock in &self.locks {
            txn = txn.then(lock.read_queue()).otherwise(lock.read_queue());
        }
        let mut reply = self.queues.connection.txn(txn).await?;
        if reply.succeeded {
            let puts = self.locks.iter().map(|lock| lock.keys.all().count()).sum();
            for _ in 0..puts {
                reply.skip_put()?;
            }
        }
        // All keys that this created have this create revision. If one of ours existed before, none was created.
        let (enqueued, revision) = (reply.succeeded, reply.revision);
        let is_ahead = |kv: &KeyValue| !enqueued || kv.create_revision < revision;
        let (mut ahead, mut foreign) = (None, None);
        for (which, lock) in self.locks.iter().enumerate() {
            match lock.queue(reply.take_range()?) {
                Ok(queue) if queue.iter().any(is_ahead) => ahead = ahead.or(Some((which, queue))),
                Ok(_) => {}
                Err(e) => foreign = foreign.or(Some(e)),
            }
        }
        if enqueued && ahead.is_none() && foreign.is_none() {
            return Ok(self.granted(revision));
        }
        if enqueued {
            let keys = self.locks.iter().flat_map(|lock| lock.keys.all());
            let keys = keys.map(str::to_owned).collect();
            let deleted = self.queues.deletes.delete(keys).await;
            deleted.map_err(after_write)?;
        }
        match (foreign, ahead) {
            (Some(e), _) => {
                self.forget();
                Err(e)
            }
            (None, Some((which, queue))) => self.busy(which, &queue).await,
            (None, None) => Err(malformed_reply("a key exists that the range does not show")),
        }
    }

    fn granted(&self, revision: i64) -> AcquiredAll {
        for lock in &self.locks {
            let wake = lock.request.wake;
            self.queues.watcher.settle(&lock.keys, wake, revision, None);
        }
        AcquiredAll::Granted(vec![Fence::new(revision as u64); self.locks.len()])
    }

    async fn busy(&self, which: usize, queue: &[KeyValue]) -> Result<AcquiredAll> {
        let holder = match queue.first() {
            Some(first) => {
                let keys = &self.locks[which].keys;
                let holder = self.queues.holder(&keys.prefix, keys.kind, first);
                Some(holder.await?)
            }
            None => None,
        };
        self.forget();
        Ok(AcquiredAll::Busy { which, holder })
    }

    /// None of the locks has a key, or not any more.
    fn forget(&self) {
        for lock in &self.locks {
            let claims = &self.queues.claims;
            drop(claims.remove(&lock.keys.key, Some(lock.request.wake)));
            if !lock.lease.shared {
                self.queues.leases.revoke(&lock.lease);
            }
        }
    }
}
