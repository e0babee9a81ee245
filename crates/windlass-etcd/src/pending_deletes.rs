//! Batched deletions: those that arrive at the same time share a transaction, since each transaction costs
//! the cluster a consensus round.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::runtime::Handle;
use tokio::sync::oneshot;

use super::connection::EtcdConnection;
use super::txn::{MAX_OPS, Txn, delete};
use windlass_core::error::{Error, ErrorKind, Result};

/// Deletes keys, whatever their value, in batches.
#[derive(Debug)]
pub(super) struct PendingDeletes {
    connection: Arc<EtcdConnection>,
    runtime: Handle,
    queue: Mutex<DeleteQueue>,
}

#[derive(Debug, Default)]
struct DeleteQueue {
    pending: Vec<PendingDelete>,
    /// Whether a task is sending the queue.
    sending: bool,
}

#[derive(Debug)]
struct PendingDelete {
    keys: Vec<String>,
    reply: oneshot::Sender<Result<bool>>,
}

impl PendingDeletes {
    pub(super) fn new(connection: Arc<EtcdConnection>, runtime: Handle) -> Arc<PendingDeletes> {
        Arc::new(PendingDeletes {
            connection,
            runtime,
            queue: Mutex::default(),
        })
    }

    /// Deletes the keys. Returns whether the first of them existed.
    pub(super) async fn delete(self: &Arc<PendingDeletes>, keys: Vec<String>) -> Result<bool> {
        let (reply, deleted) = oneshot::channel();
        let is_sending = {
            let mut queue = self.queue();
            queue.pending.push(PendingDelete { keys, reply });
            std::mem::replace(&mut queue.sending, true)
        };
        if !is_sending {
            let this = Arc::clone(self);
            self.runtime.spawn(async move { this.send_all().await });
        }
        deleted
            .await
            .unwrap_or_else(|_| Err(runtime_ended("release")))
    }

    async fn send_all(&self) {
        loop {
            let Some(batch) = self.next_batch() else {
                return;
            };
            // A retry may name a key that is in the batch already; etcd refuses a duplicate.
            let mut txn = Txn::new();
            let mut keys: Vec<&str> = Vec::new();
            for key in batch.iter().flat_map(|pending| &pending.keys) {
                if !keys.contains(&key.as_str()) {
                    keys.push(key);
                    txn = txn.then(delete(key));
                }
            }
            let existed: Result<Vec<bool>> =
                self.connection.txn(txn).await.and_then(|mut reply| {
                    keys.iter().map(|_| Ok(reply.take_deleted()? > 0)).collect()
                });
            let first_existed = |pending: &PendingDelete| match &existed {
                Ok(existed) => {
                    let first = pending.keys.first().map(String::as_str);
                    let at = keys.iter().position(|key| Some(*key) == first);
                    Ok(at.is_some_and(|at| existed[at]))
                }
                Err(e) => Err(e.duplicate()),
            };
            let replies: Vec<Result<bool>> = batch.iter().map(first_existed).collect();
            for (pending, reply) in batch.into_iter().zip(replies) {
                let _ = pending.reply.send(reply);
            }
        }
    }

    /// As many deletions as fit into one transaction.
    fn next_batch(&self) -> Option<Vec<PendingDelete>> {
        let mut queue = self.queue();
        let (mut count, mut keys) = (0, 0);
        for pending in &queue.pending {
            keys += pending.keys.len();
            if keys > MAX_OPS {
                break;
            }
            count += 1;
        }
        if count == 0 {
            queue.sending = false;
            return None;
        }
        Some(queue.pending.drain(..count).collect())
    }

    fn queue(&self) -> MutexGuard<'_, DeleteQueue> {
        // Each change is a single insertion or removal: a panic leaves the queue consistent.
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The error for a task that the runtime dropped.
pub(super) fn runtime_ended(operation: &'static str) -> Error {
    let message = "the tokio runtime in which this coordinator connected has shut down";
    Error::new(ErrorKind::Store, operation, message)
}
