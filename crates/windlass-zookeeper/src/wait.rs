//! Waiting: one watch for all waiters of this client in one queue.
//!
//! Only the first of them matters, since the others come after it. It watches the one claim whose
//! removal could admit it, so a hand-over costs one event, for one client, however many wait.
//!
//! Where several claims hold at once (a semaphore, a barrier), the removal of any of them may admit the
//! first waiter of the queue. So the first waiter watches the children and the parent's data. A later
//! waiter watches the waiter before it, which writes to its node when it is granted (see `grant.rs`).

use std::collections::HashSet;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Notify;
use zookeeper_client::{Error as ZkError, OneshotWatcher};

use super::claim_data::ClaimData;
use super::claim_table::{ClaimTable, LocalClaim, LocalClaimState};
use super::errors::from_client;
use super::grant::Grants;
use super::paths;
use super::pool::{begin_complete_round, has_pool};
use super::queue::QueueView;
use super::queue_reader::QueueReader;
use super::session::Session;
use windlass_core::error::Result;
use windlass_core::name::Name;
use windlass_core::store::Kind;

/// The pause after a failure. The keeper's renewals would find a grant, too.
const PAUSE: Duration = Duration::from_millis(100);

/// Watches the queues in which this client waits.
#[derive(Clone)]
pub(super) struct QueueWatches {
    queues: Arc<QueueReader>,
    table: Arc<ClaimTable>,
    grants: Arc<Grants>,
}

impl QueueWatches {
    pub(super) fn new(
        queues: Arc<QueueReader>,
        table: Arc<ClaimTable>,
        grants: Arc<Grants>,
    ) -> QueueWatches {
        QueueWatches {
            queues,
            table,
            grants,
        }
    }

    /// Makes sure that a task watches this queue, as long as a claim of this client waits in it.
    pub(super) fn ensure(&self, kind: Kind, name: &Name) {
        if self.table.begin_watch(kind, name) {
            tokio::spawn(self.clone().watch(kind, name.clone()));
        }
    }

    async fn watch(self, kind: Kind, name: Name) {
        while let Some((waiting, changed)) = self.table.waiting(kind, &name) {
            if let Err(error) = self.watch_once(kind, &name, waiting, &changed).await {
                tracing::debug!(%error, name = %name, "cannot watch the queue");
                tokio::time::sleep(PAUSE).await;
            }
        }
    }

    /// Reads the queue, grants what holds, and returns when it is time to read again.
    async fn watch_once(
        &self,
        kind: Kind,
        name: &Name,
        waiting: Vec<LocalClaim>,
        changed: &Notify,
    ) -> Result<()> {
        let (ended, waiting): (Vec<_>, Vec<_>) = waiting
            .into_iter()
            .partition(|claim| claim.session.has_ended());
        for claim in ended {
            // The caller renews the claim, and learns that it is gone.
            self.table.change(claim.number, |known| {
                if known.id == claim.id {
                    known.state = LocalClaimState::Requested;
                }
            });
            self.grants.wake(&claim, None);
        }
        let Some(session) = waiting
            .iter()
            .min_by_key(|claim| claim.queue_order())
            .map(|claim| Arc::clone(&claim.session))
        else {
            return Ok(());
        };
        let view = self.queues.read(&session, kind, name).await?;
        begin_complete_round(&session, kind, name, &view).await?;
        let is_unseen = |claim: &LocalClaim| view.index_of(claim.id).is_none();
        let some_unseen = waiting.iter().any(is_unseen);
        let Some(first) = self.grant_holders(waiting, &view).await? else {
            if some_unseen {
                tokio::time::sleep(PAUSE).await;
            }
            return Ok(());
        };
        let Some(index) = view.index_of(first.id) else {
            return Ok(());
        };
        let watchers = self.arm(&session, kind, name, &view, index).await?;
        if watchers.is_empty() {
            return Ok(());
        }
        let event = first_event(watchers);
        tokio::pin!(event);
        loop {
            tokio::select! {
                () = &mut event => return Ok(()),
                () = changed.notified() => {}
            }
            // A later waiter has missed nothing, even if the first one has left: the watched claim
            // keeps them all waiting.
            match self.table.first_waiting(kind, name) {
                Some(created) if created >= first.queue_order().1 => {}
                _ => return Ok(()),
            }
        }
    }

    /// Grants the waiters that hold now. Returns the first of the others.
    async fn grant_holders(
        &self,
        waiting: Vec<LocalClaim>,
        view: &QueueView,
    ) -> Result<Option<LocalClaim>> {
        let mut first: Option<LocalClaim> = None;
        for claim in waiting {
            match view.index_of(claim.id) {
                Some(index) if view.held[index] => {
                    if let Some(fence) = self.grants.grant(&claim, view, index).await? {
                        self.grants.wake(&claim, Some(fence));
                    }
                }
                Some(_) if view.is_too_heavy(claim.kind, claim.weight) => {
                    self.grants.wake(&claim, None)
                }
                Some(_) => {
                    let before = |known: &LocalClaim| claim.queue_order() < known.queue_order();
                    if first.as_ref().is_none_or(before) {
                        first = Some(claim);
                    }
                }
                // Gone; or created through another session, and not yet visible in this one.
                None => self.grants.wake(&claim, None),
            }
        }
        Ok(first)
    }

    /// Watches what could admit the claim at `index`. Empty if that has happened already.
    async fn arm(
        &self,
        session: &Session,
        kind: Kind,
        name: &Name,
        view: &QueueView,
        index: usize,
    ) -> Result<Vec<OneshotWatcher>> {
        let parent = paths::queue(kind, name);
        session.wait_connected().await?;
        let client = session.client();
        if !has_pool(kind) {
            let Some(blocker) = view.blocker(kind, index) else {
                return Ok(Vec::new());
            };
            let path = format!("{parent}/{}", blocker.name);
            let (stat, watcher) = client
                .check_and_watch_stat(&path)
                .await
                .map_err(from_client)?;
            return Ok(stat.map(|_| watcher).into_iter().collect());
        }
        if !view.is_first_waiter(index) {
            let before = view.held[..index].iter().rposition(|held| !held);
            let Some(before) = before else {
                return Ok(Vec::new());
            };
            let path = format!("{parent}/{}", view.nodes[before].name);
            return match client.get_and_watch_data(&path).await {
                Ok((data, _, watcher)) => {
                    let was_granted = ClaimData::read(&data).is_some_and(|data| data.held);
                    Ok(if was_granted {
                        Vec::new()
                    } else {
                        vec![watcher]
                    })
                }
                Err(ZkError::NoNode) => Ok(Vec::new()),
                Err(error) => Err(from_client(error)),
            };
        }
        let pool = client.get_and_watch_data(&parent);
        let children = client.list_and_watch_children(&parent);
        let (pool, children) = tokio::join!(pool, children);
        let ((_, stat, pool_watcher), (children, children_watcher)) = match (pool, children) {
            (Ok(pool), Ok(children)) => (pool, children),
            (Err(ZkError::NoNode), _) | (_, Err(ZkError::NoNode)) => return Ok(Vec::new()),
            (Err(error), _) | (_, Err(error)) => return Err(from_client(error)),
        };
        let now = QueueView::new(self.queues.layout, kind, children, view.parent.clone());
        let names = |view: &QueueView| -> HashSet<String> {
            view.nodes.iter().map(|node| node.name.clone()).collect()
        };
        let is_unchanged = stat.version == view.parent.version && names(&now) == names(view);
        Ok(if is_unchanged {
            vec![pool_watcher, children_watcher]
        } else {
            Vec::new()
        })
    }
}

impl fmt::Debug for QueueWatches {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("QueueWatches")
    }
}

/// Waits for the first event of up to two watchers.
async fn first_event(watchers: Vec<OneshotWatcher>) {
    let mut watchers = watchers.into_iter();
    match (watchers.next(), watchers.next()) {
        (Some(one), Some(other)) => {
            tokio::select! {
                _ = one.changed() => {}
                _ = other.changed() => {}
            }
        }
        (Some(one), None) => {
            one.changed().await;
        }
        _ => {}
    }
}
