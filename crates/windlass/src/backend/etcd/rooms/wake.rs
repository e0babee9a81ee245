//! Watching a room for those who wait in it, and telling them.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, MutexGuard, PoisonError, Weak};

use super::Chair;
use crate::backend::WakeAddress;
use crate::backend::etcd::keys::end_of;
use crate::backend::etcd::store::Store;
use crate::backend::etcd::watch::{Heard, Watching};
use crate::backend::etcd::wire::{Event, KeyValue};

/// What is watched for those of this client who wait in a room.
#[derive(Debug)]
pub(in crate::backend::etcd) struct Waiting {
    _watching: Watching,
    /// Somebody is looking, and shall look again.
    looking: Arc<AtomicBool>,
    again: Arc<AtomicBool>,
}

impl Store {
    /// Watches a room in which somebody waits, from the revision at which it was seen.
    pub(super) fn watch_room(self: &Arc<Store>, chair: &Chair, seen: i64) {
        let mut rooms = self.waiting();
        if rooms.contains_key(&chair.prefix) {
            return;
        }
        let weak: Weak<Store> = Arc::downgrade(self);
        let watched = chair.clone();
        let tell = move |heard: Heard<'_>| {
            let matters = |event: &Event| {
                let changed = |kv: &KeyValue| kv.create_revision != kv.mod_revision;
                let of_room = |kv: &KeyValue| kv.key == watched.room.as_bytes();
                let kv = event.kv.as_ref();
                event.is_deletion() || kv.is_some_and(|kv| changed(kv) || of_room(kv))
            };
            let lost = matches!(heard, Heard::Lost);
            let matters = match heard {
                // One who comes last changes nothing for those who wait.
                Heard::Events(events) => events.iter().any(matters),
                Heard::Lost => true,
            };
            if let Some(store) = weak.upgrade().filter(|_| matters) {
                if lost {
                    store.waiting().remove(&watched.prefix);
                }
                store.look_around(&watched);
            }
        };
        let watching = self.watches.changes(
            &chair.prefix,
            end_of(&chair.prefix),
            seen + 1,
            Arc::new(tell),
        );
        let waiting = Waiting {
            _watching: watching,
            looking: Arc::default(),
            again: Arc::default(),
        };
        rooms.insert(chair.prefix.clone(), waiting);
    }

    /// Something has changed in a room: tells those of this client who hold now. Many changes at once are
    /// looked at together.
    fn look_around(self: &Arc<Store>, chair: &Chair) {
        let (looking, again) = match self.waiting().get(&chair.prefix) {
            Some(waiting) => (Arc::clone(&waiting.looking), Arc::clone(&waiting.again)),
            None => Default::default(),
        };
        again.store(true, Ordering::SeqCst);
        if looking.swap(true, Ordering::SeqCst) {
            return;
        }
        let (store, chair) = (Arc::clone(self), chair.clone());
        self.runtime.spawn(async move {
            loop {
                while again.swap(false, Ordering::SeqCst) {
                    store.look_around_once(&chair).await;
                }
                looking.store(false, Ordering::SeqCst);
                // One who came between the two found somebody looking.
                if !again.load(Ordering::SeqCst) || looking.swap(true, Ordering::SeqCst) {
                    return;
                }
            }
        });
    }

    async fn look_around_once(self: &Arc<Store>, chair: &Chair) {
        let Some(wakeups) = self.wakeups.upgrade() else {
            return;
        };
        let waiting = self.waiting_in(chair);
        let view = match self.view(chair.kind, &chair.prefix).await {
            Ok(view) => {
                self.open_if_full(chair.kind, &chair.prefix, &chair.room, view)
                    .await
            }
            Err(e) => Err(e),
        };
        let Ok(view) = view else {
            // Let them ask for themselves, again and again if they must.
            waiting
                .iter()
                .for_each(|(_, wake)| wakeups.granted(wake.claim, None));
            return;
        };
        for (key, wake) in &waiting {
            match view.seat(key) {
                Some((_, seat)) if !seat.record.is_of(*wake) => wakeups.granted(wake.claim, None),
                Some((at, seat)) if view.holds(at) && !view.must_be_written(chair.kind, seat) => {
                    self.placed(key, *wake, seat.created(), Some(seat.fence()));
                    wakeups.granted(wake.claim, Some(seat.fence()));
                }
                Some((at, seat)) => {
                    let size = view.size(chair.kind).unwrap_or(0);
                    if view.holds(at) || seat.record.weight > size {
                        wakeups.granted(wake.claim, None);
                    }
                }
                None => wakeups.granted(wake.claim, None),
            }
        }
        match self.waiting_in(chair).is_empty() {
            true => self.stop_watching(chair),
            false => self.watch_room(chair, view.revision),
        }
    }

    /// The keys of those of this client who wait in the room.
    fn waiting_in(&self, chair: &Chair) -> Vec<(String, WakeAddress)> {
        let tracks = self.tracks();
        let here = tracks.iter().filter(|(_, track)| {
            track.kind == chair.kind && track.name == chair.name && track.fence.is_none()
        });
        here.map(|(key, track)| (key.clone(), track.wake)).collect()
    }

    /// Nobody of this client waits in the room any more.
    pub(in crate::backend::etcd) fn stop_watching(&self, chair: &Chair) {
        let before = {
            let mut rooms = self.waiting();
            let watched = rooms.contains_key(&chair.prefix);
            match watched && self.waiting_in(chair).is_empty() {
                true => rooms.remove(&chair.prefix),
                false => None,
            }
        };
        drop(before);
    }

    fn waiting(&self) -> MutexGuard<'_, HashMap<String, Waiting>> {
        // Each change is a single insertion or removal: a panic leaves nothing half done.
        self.rooms.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
