//! Positions in the queue of a lock or an election.
//!
//! A claim holds if no older key is in the queue; its fence is the create revision of its key. Otherwise it
//! waits, and the client watches the key right ahead for its deletion: a hand-over costs one event however
//! many wait. When that key is gone, an even older one may be left, since waiters leave too, and the claim's
//! own key may have expired. So both are read in one transaction before the claim is granted.

use std::sync::{Arc, Weak};

use tokio::runtime::Handle;

use super::{is_queued, queue};
use crate::connection::EtcdConnection;
use crate::keys::QueueKeys;
use crate::notifier::ClaimNotifier;
use crate::proto::{KeyValue, RangeRequest, TxnOp, WatchEvent};
use crate::tracked_claims::TrackedClaims;
use crate::txn::{Txn, get, newest_before, oldest_first};
use crate::watches::{WatchUpdate, Watches};
use windlass_core::Fence;
use windlass_core::error::Result;
use windlass_core::store::{Acquired, Renewed, WakeAddress};

/// Decides whether a claim holds, and watches the predecessors of those that do not.
#[derive(Debug)]
pub(crate) struct QueueWatcher {
    connection: Arc<EtcdConnection>,
    claims: Arc<TrackedClaims>,
    watches: Arc<Watches>,
    notifier: ClaimNotifier,
    runtime: Handle,
}

/// The key right ahead of a claim, and the revision at which it was seen there.
pub(super) struct Predecessor {
    key: Vec<u8>,
    revision: i64,
}

/// Where a claim is in the queue.
pub(super) enum QueuePosition {
    /// First, with this fence.
    Held(Fence),
    /// Behind others. The ticket becomes the fence.
    Waiting(Fence),
}

impl From<QueuePosition> for Acquired {
    fn from(position: QueuePosition) -> Acquired {
        match position {
            QueuePosition::Held(fence) => Acquired::Granted {
                fence,
                recorded: true,
            },
            QueuePosition::Waiting(ticket) => Acquired::Queued {
                ticket,
                // The watch reports the end of the predecessor's lease.
                recheck_after: None,
            },
        }
    }
}

impl From<QueuePosition> for Renewed {
    fn from(position: QueuePosition) -> Renewed {
        match position {
            QueuePosition::Held(fence) => Renewed::Held { fence },
            QueuePosition::Waiting(_) => Renewed::Waiting {
                recheck_after: None,
            },
        }
    }
}

impl QueueWatcher {
    pub(crate) fn new(
        claims: Arc<TrackedClaims>,
        watches: Arc<Watches>,
        notifier: ClaimNotifier,
    ) -> Arc<QueueWatcher> {
        Arc::new(QueueWatcher {
            connection: Arc::clone(&claims.connection),
            runtime: claims.runtime.clone(),
            claims,
            watches,
            notifier,
        })
    }

    /// Decides whether a claim holds: it does without a predecessor. Otherwise watches that.
    pub(super) fn settle(
        self: &Arc<QueueWatcher>,
        keys: &QueueKeys,
        wake: WakeAddress,
        created: i64,
        predecessor: Option<Predecessor>,
    ) -> QueuePosition {
        let fence = Fence::new(created as u64);
        let is_held = predecessor.is_none().then_some(fence);
        self.claims.set_position(&keys.key, wake, created, is_held);
        match predecessor {
            None => QueuePosition::Held(fence),
            Some(predecessor) => {
                self.watch(keys, wake, predecessor);
                QueuePosition::Waiting(fence)
            }
        }
    }

    /// The predecessor of a claim, given the newest key that is older than the claim's own. If that key is not
    /// in the queue, reads all that are older.
    pub(super) async fn predecessor(
        &self,
        keys: &QueueKeys,
        created: i64,
        newest: Option<KeyValue>,
        revision: i64,
    ) -> Result<Option<Predecessor>> {
        match newest {
            None => Ok(None),
            Some(kv) if is_queued(&keys.prefix, keys.kind, &kv)? => Ok(Some(Predecessor {
                key: kv.key,
                revision,
            })),
            Some(_) => self.read_predecessor(keys, created).await,
        }
    }

    pub(super) async fn read_predecessor(
        &self,
        keys: &QueueKeys,
        created: i64,
    ) -> Result<Option<Predecessor>> {
        let older = RangeRequest {
            max_create_revision: created - 1,
            ..oldest_first(&keys.prefix)
        };
        let older = self.connection.range(older).await?;
        let revision = older.header.unwrap_or_default().revision;
        let mut queue = queue(&keys.prefix, keys.kind, older.kvs)?;
        Ok(queue.pop().map(|kv| Predecessor {
            key: kv.key,
            revision,
        }))
    }

    fn watch(self: &Arc<QueueWatcher>, keys: &QueueKeys, wake: WakeAddress, ahead: Predecessor) {
        let is_watched = {
            let claims = self.claims.by_key();
            // Nothing to watch either if the claim was given up.
            claims.get(&keys.key).is_none_or(|claim| {
                let watched = claim.predecessor.as_ref();
                watched.is_some_and(|(key, _)| *key == ahead.key)
            })
        };
        if is_watched {
            return;
        }
        let weak: Weak<QueueWatcher> = Arc::downgrade(self);
        let waiting = keys.clone();
        let callback = move |update: WatchUpdate<'_>| {
            let (is_gone, lost) = match update {
                WatchUpdate::Events(events) => (events.iter().any(WatchEvent::is_deletion), false),
                WatchUpdate::Lost => (true, true),
            };
            if let Some(watcher) = weak.upgrade().filter(|_| is_gone) {
                if lost {
                    // The predecessor may be the same one, which must be watched again.
                    watcher.stop_watching(&waiting, wake);
                }
                let (runtime, keys) = (watcher.runtime.clone(), waiting.clone());
                runtime.spawn(async move { watcher.recheck(&keys, wake).await });
            }
        };
        let handle = self
            .watches
            .deletion(&ahead.key, ahead.revision + 1, Arc::new(callback));
        let ended = {
            let mut claims = self.claims.by_key();
            let claim = claims.get_mut(&keys.key).filter(|claim| claim.wake == wake);
            match claim {
                Some(claim) => claim.predecessor.replace((ahead.key, handle)),
                None => Some((ahead.key, handle)),
            }
        };
        drop(ended); // ends the watch outside the lock
    }

    fn stop_watching(&self, keys: &QueueKeys, wake: WakeAddress) {
        let ended = {
            let mut claims = self.claims.by_key();
            let claim = claims.get_mut(&keys.key).filter(|claim| claim.wake == wake);
            claim.and_then(|claim| claim.predecessor.take())
        };
        drop(ended); // ends the watch outside the lock
    }

    /// The predecessor is gone: grants the claim if its key still exists and no older one does.
    async fn recheck(self: &Arc<QueueWatcher>, keys: &QueueKeys, wake: WakeAddress) {
        let created = match self.claims.by_key().get(&keys.key) {
            Some(claim) if claim.wake == wake && claim.is_waiting() => claim.created,
            _ => return,
        };
        if self.notifier.is_closed() {
            return;
        }
        let read = async {
            let older = TxnOp::Range(newest_before(&keys.prefix, created, 1));
            let txn = Txn::new().then(get(&keys.key)).then(older);
            let mut reply = self.connection.txn(txn).await?;
            let ours = reply.take_key()?;
            if ours.is_none_or(|kv| kv.create_revision != created) {
                return Ok(None);
            }
            let newest = reply.take_key()?;
            let predecessor = self.predecessor(keys, created, newest, reply.revision);
            predecessor.await.map(Some)
        };
        let read: Result<Option<Option<Predecessor>>> = read.await;
        match read {
            Ok(Some(predecessor)) => {
                let position = self.settle(keys, wake, created, predecessor);
                if let QueuePosition::Held(fence) = position {
                    self.notifier.granted(wake.claim, fence);
                }
            }
            // The key is gone, or the server did not reply: the claim's own renewal finds out.
            Ok(None) | Err(_) => {
                self.stop_watching(keys, wake);
                self.notifier.recheck(wake.claim);
            }
        }
    }
}
