//! Watching for those who wait in a room, and telling them.
//!
//! Whoever leaves hands on by that, and any of those inside may be the one. If all who wait watched all of the room,
//! each departure would wake them all, to look at all the others. So a client watches for the first of its own who
//! wait, since those behind cannot come in sooner; and of those ahead of it, no more than it takes to
//! keep it out ([`View::kept_out_by`]): as long as these stay as they are, it has nothing to look for. Taken
//! from the end of the line, they are the last to leave, so that one departure wakes about as
//! many as there are shares, however many wait; and where the shares are many, a handful.

#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, MutexGuard, PoisonError, Weak};

use super::Chair;
use super::view::{View, Wait};
use crate::keys::end_of;
use crate::store::{Store, Track};
use crate::watch::{Heard, Watching};
use crate::wire::{Event, KeyValue};
use windlass_core::store::WakeAddress;

/// What is watched for those of this client who wait in a room.
#[derive(Debug)]
pub(crate) struct Waiting {
    /// The key of the one of them that it is watched for: the first in line.
    first: String,
    created: i64,
    /// The latest view that it was chosen by.
    seen: i64,
    /// By key, or by the prefix if all is watched.
    watching: HashMap<Vec<u8>, Watching>,
    /// Somebody is looking, and shall look again.
    looking: Arc<AtomicBool>,
    again: Arc<AtomicBool>,
}

impl Store {
    /// Watches a room in which a claim waits, if nobody of this client waits there who comes in sooner. The view
    /// need not show all who are ahead, if those that it shows keep the claim out.
    pub(super) fn watch_room(self: &Arc<Store>, chair: &Chair, wait: Wait, view: &View) {
        let mut rooms = self.waiting();
        let before = rooms.get(&chair.prefix);
        // One that has come anew under the same key is another.
        let is_it = |b: &&Waiting| b.first == chair.key && b.created == wait.created;
        let before = before.filter(|before| !is_it(before));
        if before.is_some_and(|before| self.comes_sooner(before, chair, wait)) {
            return; // when that one comes in, it is looked who is next
        }
        // If it waits no more, who is next was not looked for yet: it need not be this one.
        let look = before.is_some();
        let ended = self.watch_for(&mut rooms, chair, wait, view);
        drop(rooms);
        drop(ended);
        if look {
            self.look_around(chair);
        }
    }

    /// Whether a room is watched already for one of this client who comes in sooner.
    pub(super) fn is_watched_for_another(&self, chair: &Chair, wait: Wait) -> bool {
        let rooms = self.waiting();
        let before = rooms.get(&chair.prefix);
        before.is_some_and(|before| self.comes_sooner(before, chair, wait))
    }

    fn comes_sooner(&self, before: &Waiting, chair: &Chair, wait: Wait) -> bool {
        let waits = |track: &Track| track.fence.is_none();
        before.first != chair.key
            && before.created < wait.created
            && self.tracks().get(&before.first).is_some_and(waits)
    }

    /// Watches a room for that claim. What was watched, and is not any more, is to be dropped without the lock.
    #[must_use]
    fn watch_for(
        self: &Arc<Store>,
        rooms: &mut HashMap<String, Waiting>,
        chair: &Chair,
        wait: Wait,
        view: &View,
    ) -> HashMap<Vec<u8>, Watching> {
        let wanted = match view.kept_out_by(chair.kind, wait) {
            Some(seats) => {
                let seats = seats.into_iter().map(|seat| seat.kv.key.clone());
                // If it is given up, the next of this client is the first.
                let more = [&chair.room, &chair.key].map(|key| key.clone().into_bytes());
                seats.chain(more).collect()
            }
            None => vec![chair.prefix.clone().into_bytes()],
        };
        let (mut had, looking, again, seen) = match rooms.remove(&chair.prefix) {
            Some(before) => (before.watching, before.looking, before.again, before.seen),
            None => Default::default(),
        };
        // By an older view other keys are watched, and what happened to them since is to be heard again.
        let is_older = view.revision < seen;
        let watching = wanted.into_iter().map(|key| {
            let running = had.remove(&key).filter(|_| !is_older);
            let watching =
                running.unwrap_or_else(|| self.watch_in_room(chair, &key, view.revision + 1));
            (key, watching)
        });
        let waiting = Waiting {
            first: chair.key.clone(),
            created: wait.created,
            seen: view.revision.max(seen),
            watching: watching.collect(),
            looking,
            again,
        };
        rooms.insert(chair.prefix.clone(), waiting);
        had
    }

    /// Watches one key in a room, or all if it is the prefix.
    fn watch_in_room(self: &Arc<Store>, chair: &Chair, key: &[u8], from: i64) -> Watching {
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
                    let before = store.waiting().remove(&watched.prefix);
                    drop(before); // its watches end outside the lock
                }
                store.look_around(&watched);
            }
        };
        let end = match key == chair.prefix.as_bytes() {
            true => end_of(&chair.prefix),
            false => Vec::new(),
        };
        self.watches.changes(key, end, from, Arc::new(tell))
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
                    if store.look_around_once(&chair).await {
                        again.store(true, Ordering::SeqCst);
                    }
                }
                looking.store(false, Ordering::SeqCst);
                // One who came between the two found somebody looking.
                if !again.load(Ordering::SeqCst) || looking.swap(true, Ordering::SeqCst) {
                    return;
                }
            }
        });
    }

    /// Whether it is to be looked again.
    async fn look_around_once(self: &Arc<Store>, chair: &Chair) -> bool {
        let Some(wakeups) = self.wakeups.upgrade() else {
            return false;
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
            return false;
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
        self.watch_for_the_next(chair, &view)
    }

    /// Watches for the first who waits still. True if one has come since who may be watched for by nobody.
    fn watch_for_the_next(self: &Arc<Store>, chair: &Chair, view: &View) -> bool {
        let waiting = self.waiting_in(chair);
        if waiting.is_empty() {
            self.stop_watching(chair);
            return false;
        }
        let seats = waiting.iter().filter_map(|(key, _)| view.seat(key));
        let waits = seats.filter(|(at, _)| !view.holds(*at));
        match waits.min_by_key(|(at, _)| *at) {
            Some((_, seat)) => {
                let first = Chair {
                    key: String::from_utf8_lossy(&seat.kv.key).into_owned(),
                    ..chair.clone()
                };
                let ended = self.watch_for(&mut self.waiting(), &first, seat.wait(), view);
                drop(ended);
                false
            }
            None => {
                // Nobody is watched for: whoever comes next is.
                let before = self.waiting().remove(&chair.prefix);
                drop(before);
                // Looked at anew: one that came meanwhile may have relied on what was just removed.
                let waiting = self.waiting_in(chair);
                let tracks = self.tracks();
                let created = |key: &String| tracks.get(key).map_or(0, |track| track.created);
                waiting.iter().any(|(key, _)| created(key) > view.revision)
            }
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
    pub(crate) fn stop_watching(&self, chair: &Chair) {
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
