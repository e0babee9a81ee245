//! Waiting: one watch for all of this client that wait for one thing.
//!
//! Only the first of them matters: the others come after it. It watches the one claim whose going could
//! let it in, so a hand-over costs one event, for one client, however many wait.
//!
//! Where several hold at once, any of them may go. So the first of all who wait watches the children;
//! whoever comes after it watches the one before it, and is told when that one is let in, by a word that
//! it writes to its node.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Notify;
use zookeeper_client::{Error as ZkError, OneshotWatcher};

use super::claim_data::ClaimData;
use super::claim_table::{Entry, State};
use super::errors::translate;
use super::queue::{View, size};
use super::session::Session;
use super::{Store, paths};
use windlass_core::Fence;
use windlass_core::error::Result;
use windlass_core::name::Name;
use windlass_core::store::Kind;

/// After a failure, look again so much later; the keeper's heartbeat would do it, too.
const PAUSE: Duration = Duration::from_millis(100);

impl Store {
    /// Sees to it that somebody watches for those of this client that wait for this.
    pub(super) fn look_after_waiting(&self, kind: Kind, name: &Name) {
        if self.table.begin_watch(kind, name) {
            tokio::spawn(watch(self.shared(), kind, name.clone()));
        }
    }

    /// Lets in those who are let in. Gives the first of those who are not.
    async fn let_in(&self, waiting: Vec<Entry>, view: &View) -> Result<Option<Entry>> {
        let mut first: Option<Entry> = None;
        for entry in waiting {
            match view.index_of(entry.mark) {
                Some(index) if view.held[index] => {
                    if let Some(fence) = self.promote(&entry, view, index).await? {
                        self.wake(&entry, Some(fence));
                    }
                }
                Some(_) if self.is_too_heavy(&entry, view) => self.wake(&entry, None),
                Some(_) => {
                    let before = |known: &Entry| sequence(&entry) < sequence(known);
                    if first.as_ref().is_none_or(before) {
                        first = Some(entry);
                    }
                }
                // Gone; or not to be seen yet from here, since it came through another session.
                None => self.wake(&entry, None),
            }
        }
        Ok(first)
    }

    fn wake(&self, entry: &Entry, fence: Option<Fence>) {
        if let Some(wakeups) = self.wakeups.upgrade() {
            wakeups.granted(entry.claim, fence);
        }
    }

    /// It holds now. Tells whoever comes after it, where that one waits for such a word; and sees to it
    /// that its fence is higher than that of one who barged in since it came.
    pub(super) async fn promote(
        &self,
        entry: &Entry,
        view: &View,
        index: usize,
    ) -> Result<Option<Fence>> {
        let Some(node) = &entry.node else {
            return Ok(None);
        };
        let mut fence = node.fence;
        let several = matches!(entry.kind, Kind::Semaphore | Kind::Barrier);
        let overtaken = view.was_overtaken(entry);
        // Whoever comes next may be let in by what let this one in, and not know of it yet: unless both are
        // in the line of this client, which is looked through as a whole.
        let in_line = entry.state == State::Waiting;
        let ours = |mark| in_line && self.table.has_waiting(entry.kind, &entry.name, mark);
        let is_awaited = view
            .nodes
            .get(index + 1)
            .is_some_and(|next| !next.mark.is_some_and(ours));
        if several && (overtaken || is_awaited) {
            let mut data = ClaimData {
                held: true,
                ..entry.data.clone()
            };
            let client = entry.session.client();
            let mut told = client.set_data(&node.path, &data.bytes(), None).await;
            if overtaken && let Ok(stat) = &told {
                fence = Fence::new(stat.mzxid as u64);
                data.fence = Some(fence.get());
                told = client.set_data(&node.path, &data.bytes(), None).await;
            }
            match told {
                Ok(_) => {}
                Err(ZkError::NoNode) => return Ok(None),
                Err(error) => return Err(translate(error)),
            }
            self.table.change(entry.claim, |entry| entry.data = data);
        }
        self.table.change(entry.claim, |entry| {
            entry.state = State::Held;
            if let Some(node) = &mut entry.node {
                node.fence = fence;
            }
        });
        Ok(Some(fence))
    }

    /// Whether there will never be room for it: the size was made smaller.
    pub(super) fn is_too_heavy(&self, entry: &Entry, view: &View) -> bool {
        entry.weight > size(entry.kind, &view.room)
    }
}

/// The order of those who wait here; any that has no node yet comes last.
fn sequence(entry: &Entry) -> (bool, i64) {
    match &entry.node {
        Some(node) => (false, node.created),
        None => (true, 0),
    }
}

/// Looks after those of this client that wait for one thing, until none does.
async fn watch(store: Arc<Store>, kind: Kind, name: Name) {
    while let Some((waiting, changed)) = store.table.waiting(kind, &name) {
        if let Err(error) = watch_once(&store, kind, &name, waiting, &changed).await {
            tracing::debug!(%error, name = %name, "cannot watch those who wait");
            tokio::time::sleep(PAUSE).await;
        }
    }
}

/// Looks once, and returns when it is time to look again.
async fn watch_once(
    store: &Arc<Store>,
    kind: Kind,
    name: &Name,
    waiting: Vec<Entry>,
    changed: &Notify,
) -> Result<()> {
    let (ended, waiting): (Vec<_>, Vec<_>) = waiting
        .into_iter()
        .partition(|entry| entry.session.has_ended());
    for entry in ended {
        // Asked how it stands, it is told that it is gone.
        store
            .table
            .change(entry.claim, |entry| entry.state = State::Asking);
        store.wake(&entry, None);
    }
    let Some(session) = waiting
        .iter()
        .min_by_key(|entry| sequence(entry))
        .map(|entry| Arc::clone(&entry.session))
    else {
        return Ok(());
    };
    let view = store.view(&session, kind, name).await?;
    store.open_if_complete(&session, name, kind, &view).await?;
    let unseen = |entry: &Entry| view.index_of(entry.mark).is_none();
    let some_unseen = waiting.iter().any(unseen);
    let Some(first) = store.let_in(waiting, &view).await? else {
        if some_unseen {
            tokio::time::sleep(PAUSE).await;
        }
        return Ok(());
    };
    let Some(index) = view.index_of(first.mark) else {
        return Ok(());
    };
    let watchers = arm(store, &session, kind, name, &view, index).await?;
    if watchers.is_empty() {
        return Ok(());
    }
    let event = any(watchers);
    tokio::pin!(event);
    loop {
        tokio::select! {
            () = &mut event => return Ok(()),
            () = changed.notified() => {}
        }
        // Whoever comes after the first has not missed anything, even if the first has left: what is
        // watched keeps them all out.
        match store.table.first_waiting(kind, name) {
            Some(created) if created >= sequence(&first).1 => {}
            _ => return Ok(()),
        }
    }
}

/// Watches what could let the claim at `index` in. Nothing, if that has happened already.
async fn arm(
    store: &Store,
    session: &Arc<Session>,
    kind: Kind,
    name: &Name,
    view: &View,
    index: usize,
) -> Result<Vec<OneshotWatcher>> {
    let parent = paths::of_claims(kind, name);
    session.ready().await?;
    let client = session.client();
    if !matches!(kind, Kind::Semaphore | Kind::Barrier) {
        let Some(blocker) = view.blocker(kind, index) else {
            return Ok(Vec::new());
        };
        let path = format!("{parent}/{}", blocker.name);
        let (there, watcher) = client
            .check_and_watch_stat(&path)
            .await
            .map_err(translate)?;
        return Ok(there.map(|_| watcher).into_iter().collect());
    }
    if !view.is_head(index) {
        let before = view.held[..index].iter().rposition(|held| !held);
        let Some(before) = before else {
            return Ok(Vec::new());
        };
        let path = format!("{parent}/{}", view.nodes[before].name);
        return match client.get_and_watch_data(&path).await {
            Ok((data, _, watcher)) => {
                let was_let_in = ClaimData::read(&data).is_some_and(|data| data.held);
                Ok(if was_let_in {
                    Vec::new()
                } else {
                    vec![watcher]
                })
            }
            Err(ZkError::NoNode) => Ok(Vec::new()),
            Err(error) => Err(translate(error)),
        };
    }
    let room = client.get_and_watch_data(&parent);
    let children = client.list_and_watch_children(&parent);
    let (room, children) = tokio::join!(room, children);
    let ((_, stat, room), (children, watcher)) = match (room, children) {
        (Ok(room), Ok(children)) => (room, children),
        (Err(ZkError::NoNode), _) | (_, Err(ZkError::NoNode)) => return Ok(Vec::new()),
        (Err(error), _) | (_, Err(error)) => return Err(translate(error)),
    };
    let claims = View::new(
        store.address.layout,
        kind,
        children,
        view.room.clone(),
        0,
        0,
    );
    let names = |view: &View| -> HashSet<String> {
        view.nodes.iter().map(|node| node.name.clone()).collect()
    };
    let same = stat.version == view.version && names(&claims) == names(view);
    Ok(if same {
        vec![room, watcher]
    } else {
        Vec::new()
    })
}

/// Waits for the first of them.
async fn any(watchers: Vec<OneshotWatcher>) {
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
