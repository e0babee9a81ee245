//! Looking at the children, once for all who ask at the same time.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Mutex as AsyncMutex;
use zookeeper_client::Error as ZkError;

use super::claim_data::{ClaimData, RoomData};
use super::errors::translate;
use super::node_name::Layout;
use super::paths;
use super::queue::View;
use super::session::Session;
use windlass_core::error::Result;
use windlass_core::store::Kind;

type Key = (i64, String);

/// What is being looked at.
#[derive(Default)]
pub(super) struct Views {
    slots: Mutex<HashMap<Key, Arc<Slot>>>,
}

#[derive(Default)]
struct Slot {
    /// How often it was asked for.
    asked: AtomicU64,
    /// What was seen last, and how often it had been asked for when that look began.
    last: AsyncMutex<Option<(u64, Arc<View>)>>,
}

impl Views {
    /// Looks through this session, so that all is seen that the session has done before.
    ///
    /// Many who ask at once share a look that began after they asked: five thousand who come together
    /// do not each read a list of five thousand.
    pub(super) async fn fresh(
        &self,
        session: &Session,
        layout: Layout,
        kind: Kind,
        name: &str,
    ) -> Result<Arc<View>> {
        let parent = paths::of_claims(kind, name);
        let seat = self.seat((session.id(), parent.clone()));
        let ticket = seat.slot.asked.fetch_add(1, Ordering::SeqCst) + 1;
        let mut last = seat.slot.last.lock().await;
        if let Some((began, view)) = &*last
            && *began >= ticket
        {
            return Ok(Arc::clone(view));
        }
        let began = seat.slot.asked.load(Ordering::SeqCst);
        let view = Arc::new(look(session, layout, kind, &parent).await?);
        *last = Some((began, Arc::clone(&view)));
        Ok(view)
    }

    fn seat(&self, key: Key) -> Seat<'_> {
        let slot = Arc::clone(self.slots().entry(key.clone()).or_default());
        Seat {
            views: self,
            key,
            slot,
        }
    }

    fn slots(&self) -> MutexGuard<'_, HashMap<Key, Arc<Slot>>> {
        self.slots.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Somebody who looks. The last one to leave takes the slot away, also when cancelled.
struct Seat<'a> {
    views: &'a Views,
    key: Key,
    slot: Arc<Slot>,
}

impl Drop for Seat<'_> {
    fn drop(&mut self) {
        let mut slots = self.views.slots();
        // One share is the table's, one is ours.
        if Arc::strong_count(&self.slot) == 2 {
            slots.remove(&self.key);
        }
    }
}

/// One look: the children, and what the parent says where that matters.
async fn look(session: &Session, layout: Layout, kind: Kind, parent: &str) -> Result<View> {
    let has_size = matches!(kind, Kind::Semaphore | Kind::Barrier);
    let view = loop {
        let seen = session.ask(|client| {
            // Both are sent before the first is awaited.
            let room = has_size.then(|| client.get_data(parent));
            let children = client.get_children(parent);
            async move {
                let room = match room {
                    Some(room) => Some(room.await?),
                    None => None,
                };
                Ok((room, children.await?))
            }
        });
        match seen.await? {
            Ok((Some((data, stat)), (children, then))) => {
                // Somebody may have barged in, or resized, between the two. Then the old size would be
                // taken for that of the new children.
                if then.mzxid != stat.mzxid {
                    continue;
                }
                let room = RoomData::read(&data);
                let (version, changed) = (stat.version, stat.mzxid);
                break View::new(layout, kind, children, room, version, changed);
            }
            Ok((None, (children, _))) => {
                let room = RoomData::default();
                break View::new(layout, kind, children, room, 0, 0);
            }
            Err(ZkError::NoNode) => return Ok(View::empty()),
            Err(error) => return Err(translate(error)),
        }
    };
    if !view.is_out_of_numbers() {
        return Ok(view);
    }
    let created = transactions(session, parent, &view).await?;
    Ok(view.in_order_of(kind, &created))
}

/// The transactions by which claims came, by the names of their nodes. A node that has taken the place
/// of another says the other's.
async fn transactions(
    session: &Session,
    parent: &str,
    view: &View,
) -> Result<HashMap<String, i64>> {
    let mut created = HashMap::new();
    for node in &view.nodes {
        let path = format!("{parent}/{}", node.name);
        match session.ask(|client| client.get_data(&path)).await? {
            Ok((bytes, stat)) => {
                let data = ClaimData::read(&bytes);
                let earlier = data.and_then(|data| data.fence).map(|fence| fence as i64);
                let first = earlier.map_or(stat.czxid, |earlier| earlier.min(stat.czxid));
                created.insert(node.name.clone(), first);
            }
            Err(ZkError::NoNode) => {}
            Err(error) => return Err(translate(error)),
        }
    }
    Ok(created)
}
