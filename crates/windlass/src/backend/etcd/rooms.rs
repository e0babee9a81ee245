//! Semaphores, read-write locks and barriers: deciding, and waiting for room. Who holds is told by
//! [`View`](super::room::View).

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use tokio::sync::{Mutex as AsyncMutex, MutexGuard as TurnGuard};

use super::leases::Lease;
use super::record::{Record, Room};
use super::room::{Seat, View, is_large};
use super::store::{Expected, Store, foreign};
use super::txn::{Done, MOST_OPS, Txn, delete, get, put, some};
use super::watch::{Heard, Watching};
use super::wire::{Event, KeyValue, Op};
use crate::backend::{
    Acquired, Ask, IfHeld, IfOtherSize, Kind, Occupancy, Order, Released, Renewal, Renewed,
    SameOwner, WakeAddress,
};
use crate::error::{Error, Result};
use crate::lease::{Fence, Owner};
use crate::name::Name;

/// How long what is stored about a room outlives the last request.
const MEMORY: Duration = Duration::from_secs(24 * 60 * 60);

/// How many of those who came before are looked at first by one who comes.
const FEW: i64 = 64;

/// What is watched for those of this client who wait in a room.
#[derive(Debug)]
pub(super) struct Waiting {
    _watching: Watching,
    /// Somebody is looking, and shall look again.
    looking: Arc<AtomicBool>,
    again: Arc<AtomicBool>,
}

/// Rooms that were looked at while renewing, by their prefix.
pub(super) type Views = AsyncMutex<HashMap<String, Arc<View>>>;

/// The keys of one claim, and of its room.
#[derive(Clone, Debug)]
pub(super) struct Chair {
    pub(super) kind: Kind,
    pub(super) name: Name,
    pub(super) prefix: String,
    pub(super) room: String,
    pub(super) key: String,
}

impl Chair {
    pub(super) fn of(store: &Store, kind: Kind, name: &Name, owner: &Owner) -> Chair {
        Chair {
            kind,
            prefix: store.keys.prefix(kind, name),
            room: store.keys.room(kind, name),
            key: store.keys.claim(kind, name, owner),
            name: name.clone(),
        }
    }
}

impl Store {
    pub(super) async fn acquire_in_room(self: &Arc<Store>, ask: Ask) -> Result<Acquired> {
        let chair = Chair::of(self, ask.kind, &ask.name, &ask.owner);
        let lease = self.lease_for(ask.ttl, ask.renewed).await?;
        self.track(&chair.key, &ask, &lease);
        let acquired = self.sit_down(&chair, &ask, &lease).await?;
        match &acquired {
            Acquired::Busy(_) | Acquired::Refused(_) => {
                drop(self.untrack(&chair.key, Some(ask.wake)));
                if !lease.shared {
                    self.leases.revoke(&lease);
                }
            }
            _ => self.remember_room(&chair),
        }
        Ok(acquired)
    }

    async fn sit_down(
        self: &Arc<Store>,
        chair: &Chair,
        ask: &Ask,
        lease: &Arc<Lease>,
    ) -> Result<Acquired> {
        // One step, where whoever comes goes to the end of the line, and finds the size as expected.
        let plain = ask.if_held == IfHeld::LineUp
            && ask.share.order == Order::Fifo
            && ask.share.if_other_size == IfOtherSize::Refuse
            && ask.share.weight <= ask.share.size
            && matches!(ask.kind, Kind::Semaphore | Kind::ReadWrite);
        if plain {
            let mut txn = Txn::new().if_absent(&chair.key);
            if ask.kind == Kind::Semaphore {
                txn = txn.if_value(&chair.room, &Room::of_size(ask.share.size).write());
            }
            // Into a large room one comes as easily as this only if it fits at once, which all must tell.
            let few = match ask.kind == Kind::Semaphore && is_large(ask.share.size) {
                true => 0,
                false => FEW,
            };
            let txn = txn
                .then(put(&chair.key, Record::of(ask).write(), lease.id))
                .then(get(&chair.room))
                .then(Op::Range(some(&chair.prefix, few)));
            let mut done = self.link.txn(txn).await?;
            if done.succeeded {
                done.was_put()?;
                let (room, found) = (done.found()?, done.found()?);
                let all_of_it = few == 0 || (found.len() as i64) < few;
                if all_of_it {
                    let view = View::read(chair.kind, &chair.prefix, done.revision, found)?;
                    return self.seated(chair, ask.wake, view).await;
                }
                return self
                    .seated_by_a_few(chair, ask, done.revision, room, found)
                    .await;
            }
        }
        let _turn = self.turn(&chair.prefix).await;
        loop {
            let view = self.view(chair.kind, &chair.prefix).await?;
            if let Some(refusal) = view.refuses(ask, &chair.key) {
                return Ok(Acquired::Refused(refusal));
            }
            if let Some((at, seat)) = view.seat(&chair.key) {
                let waits = !view.holds(at);
                if waits && ask.if_held == IfHeld::Answer && ask.share.order == Order::Fifo {
                    return self.busy(&view).await;
                }
                let seat = seat.clone();
                if let Some(acquired) = self.sit_down_again(chair, ask, view, &seat).await? {
                    return Ok(acquired);
                }
                continue;
            }
            let size = view.size(chair.kind).unwrap_or(ask.share.size);
            let waits = view.has_waiters(chair.kind);
            let fits = view.fits(size, ask.share.weight);
            let takes = fits && (!waits || ask.share.order == Order::Barging);
            if !takes && ask.if_held == IfHeld::Answer {
                return self.busy(&view).await;
            }
            let mut record = Record::of(ask);
            record.size = size;
            let mut room = (chair.kind == Kind::Semaphore).then(|| {
                let room = view.room.unwrap_or_default();
                Room { size, ..room }
            });
            let mut txn = Txn::new().if_absent(&chair.key);
            if takes {
                // As it was seen, or not at all: nobody else may have taken the room.
                txn = txn.if_untouched(&chair.prefix, view.revision);
                txn = if_nobody_comes_in(txn, chair, &view);
                if waits {
                    record.admitted = true;
                    if let Some(room) = &mut room {
                        room.overtook = Some(view.revision);
                    }
                }
            } else {
                txn = txn.if_unchanged(&chair.room, view.room_modified);
            }
            if let Some(room) = room.filter(|room| view.room != Some(*room)) {
                let memory = self.leases.memory(MEMORY).await?;
                txn = txn.then(put(&chair.room, room.write(), memory));
            }
            let txn = txn
                .then(put(&chair.key, record.write(), lease.id))
                .then(Op::Range(some(&chair.prefix, 0)));
            let done = self.link.txn(txn).await?;
            if done.succeeded {
                let view = self.view_after_put(chair, done)?;
                return self.seated(chair, ask.wake, view).await;
            }
        }
    }

    /// Takes note of what a claim has come to, going by a few others if they tell: all of them came before,
    /// and who comes last into a crowd need not see all of it.
    async fn seated_by_a_few(
        self: &Arc<Store>,
        chair: &Chair,
        ask: &Ask,
        revision: i64,
        room: Vec<KeyValue>,
        mut few: Vec<KeyValue>,
    ) -> Result<Acquired> {
        few.retain(|kv| kv.key != chair.room.as_bytes() && kv.key != chair.key.as_bytes());
        few.extend(room);
        let view = View::read(chair.kind, &chair.prefix, revision, few)?;
        if view.is_full_for(ask.share.size, ask.share.weight) {
            self.placed(&chair.key, ask.wake, revision, None);
            self.watch_room(chair, revision);
            return Ok(Acquired::Queued {
                place: Fence::new(revision as u64),
                held_for: None,
            });
        }
        let view = self.view(chair.kind, &chair.prefix).await?;
        self.seated(chair, ask.wake, view).await
    }

    /// The same owner again: it keeps what it has. `None` if it has not any more.
    async fn sit_down_again(
        self: &Arc<Store>,
        chair: &Chair,
        ask: &Ask,
        view: View,
        seat: &Seat,
    ) -> Result<Option<Acquired>> {
        let lease = self.lease_to_take_over(ask, seat.kv.lease).await?;
        self.track(&chair.key, ask, &lease);
        let mut record = Record {
            admitted: seat.record.admitted,
            fence: seat.record.fence,
            size: seat.record.size,
            ..Record::of(ask)
        };
        let mut txn = Txn::new().if_unchanged(&chair.key, seat.kv.mod_revision);
        let held = view.seat(&chair.key).is_some_and(|(at, _)| view.holds(at));
        let size = view.size(chair.kind).unwrap_or(ask.share.size);
        let barges = !held && ask.share.order == Order::Barging;
        if barges && view.fits(size, ask.share.weight) {
            if view.is_taken(view.revision) {
                self.touch(chair, &view).await?;
                return Ok(None);
            }
            txn = if_nobody_comes_in(txn, chair, &view);
            // From its place in line to the front, with a fence above all before.
            record.admitted = true;
            record.fence = Some(view.revision as u64);
            let room = Room {
                overtook: Some(view.revision),
                size,
                ..view.room.unwrap_or_default()
            };
            let memory = self.leases.memory(MEMORY).await?;
            txn = txn.if_untouched(&chair.prefix, view.revision).then(put(
                &chair.room,
                room.write(),
                memory,
            ));
        }
        let txn = txn
            .then(put(&chair.key, record.write(), lease.id))
            .then(Op::Range(some(&chair.prefix, 0)));
        let done = self.link.txn(txn).await?;
        match done.succeeded {
            true => {
                let view = self.view_after_put(chair, done)?;
                self.seated(chair, ask.wake, view).await.map(Some)
            }
            false => Ok(None),
        }
    }

    async fn busy(&self, view: &View) -> Result<Acquired> {
        let first = view.standing().find(|(_, held)| *held);
        let seat = first.map(|(seat, _)| seat).or(view.seats.first());
        let seat =
            seat.ok_or_else(|| super::translate::strange_answer("no room, and nobody in it"))?;
        let record = Some(seat.record.clone());
        let holder = self
            .describe(seat.owner.clone(), &seat.kv, record, None)
            .await?;
        Ok(Acquired::Busy(holder))
    }

    /// Takes note of what a claim has come to.
    async fn seated(
        self: &Arc<Store>,
        chair: &Chair,
        wake: WakeAddress,
        view: View,
    ) -> Result<Acquired> {
        let revision = view.revision;
        match self.standing(chair, wake, Arc::new(view)).await? {
            Standing::Held(fence) => Ok(Acquired::Granted {
                fence,
                recorded: true,
            }),
            Standing::Waiting(place) => {
                self.watch_room(chair, revision);
                Ok(Acquired::Queued {
                    place,
                    held_for: None,
                })
            }
            // The lease has ended in the meantime: whoever asks again finds out what is.
            Standing::Gone => Err(super::translate::unreachable(
                "the claim has ended in the meantime".to_owned(),
            )),
        }
    }

    /// Where a claim stands. If it holds now although it was overtaken, it is given its fence; if it was
    /// the last that a barrier waited for, that opens.
    async fn standing(
        &self,
        chair: &Chair,
        wake: WakeAddress,
        mut view: Arc<View>,
    ) -> Result<Standing> {
        loop {
            let Some((at, seat)) = view.seat(&chair.key) else {
                return Ok(Standing::Gone);
            };
            let created = seat.created();
            if !view.holds(at) {
                let never = view
                    .size(chair.kind)
                    .is_some_and(|size| seat.record.weight > size);
                if never {
                    // It would wait for ever. Out of line, it asks again and hears why.
                    let txn = Txn::new()
                        .if_unchanged(&chair.key, seat.kv.mod_revision)
                        .then(delete(&chair.key));
                    self.link.txn(txn).await?;
                    return Ok(Standing::Gone);
                }
                self.placed(&chair.key, wake, created, None);
                return Ok(Standing::Waiting(seat.fence()));
            }
            let known = {
                let tracks = self.tracks();
                let track = tracks.get(&chair.key).filter(|track| track.wake == wake);
                track.and_then(|track| track.fence)
            };
            if known.is_none() && view.must_be_written(chair.kind, seat) {
                self.write_down(chair, &view, seat).await?;
                view = Arc::new(self.view(chair.kind, &chair.prefix).await?);
                continue;
            }
            let fence = known.unwrap_or(seat.fence());
            self.placed(&chair.key, wake, created, Some(fence));
            if chair.kind == Kind::Barrier {
                let view = View::clone(&view);
                self.open_if_full(chair.kind, &chair.prefix, &chair.room, view)
                    .await?;
            }
            return Ok(Standing::Held(fence));
        }
    }

    /// Writes down that one who has waited holds: with a fence above all before, if it was overtaken.
    async fn write_down(&self, chair: &Chair, view: &View, seat: &Seat) -> Result<()> {
        let overtaken = view.was_overtaken(seat);
        if overtaken && view.is_taken(view.revision) {
            return self.touch(chair, view).await;
        }
        let record = Record {
            admitted: view.is_large(chair.kind),
            fence: overtaken
                .then_some(view.revision as u64)
                .or(seat.record.fence),
            ..seat.record.clone()
        };
        let mut txn = Txn::new()
            // It may have been given up, which leaves nothing to be touched.
            .if_unchanged(&chair.key, seat.kv.mod_revision)
            // Whoever comes meanwhile comes after it. Who barges in, or changes the size, says so here.
            .if_unchanged(&chair.room, view.room_modified)
            .then(put(&chair.key, record.write(), seat.kv.lease));
        if overtaken {
            let room = Room {
                overtook: Some(view.revision),
                ..view.room.unwrap_or_default()
            };
            let memory = self.leases.memory(MEMORY).await?;
            txn = txn.if_untouched(&chair.prefix, view.revision).then(put(
                &chair.room,
                room.write(),
                memory,
            ));
        }
        self.link.txn(txn).await.map(drop)
    }

    /// Writes what is stored about a room once more, so that there is a revision that is nobody's fence.
    async fn touch(&self, chair: &Chair, view: &View) -> Result<()> {
        let memory = self.leases.memory(MEMORY).await?;
        let room = view.room.unwrap_or_default().write();
        let txn = Txn::new()
            .if_untouched(&chair.prefix, view.revision)
            .then(put(&chair.room, room, memory));
        self.link.txn(txn).await.map(drop)
    }

    /// Opens a barrier for those who are in it, if all have come.
    async fn open_if_full(
        &self,
        kind: Kind,
        prefix: &str,
        room: &str,
        mut view: View,
    ) -> Result<View> {
        while kind == Kind::Barrier
            && view.round().is_none()
            && let Some(size) = view.size(kind)
            && view.used() == u64::from(size)
        {
            let opened = Room {
                size,
                through: view.held_through(),
                open: Some(view.revision as u64),
                overtook: None,
            };
            let memory = self.leases.memory(MEMORY).await?;
            let txn = Txn::new().if_untouched(prefix, view.revision).then(put(
                room,
                opened.write(),
                memory,
            ));
            self.link.txn(txn).await?;
            view = self.view(kind, prefix).await?;
        }
        Ok(view)
    }

    /// Watches a room in which somebody waits, from the revision at which it was seen.
    fn watch_room(self: &Arc<Store>, chair: &Chair, seen: i64) {
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
            super::keys::end_of(&chair.prefix),
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
    pub(super) fn stop_watching(&self, chair: &Chair) {
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

    /// What has to be asked to renew a claim that is where it was.
    pub(super) fn ask_room(&self, chair: &Chair) -> Vec<Op> {
        vec![get(&chair.key)]
    }

    /// What the answer to that means.
    pub(super) async fn renewed_in_room(
        self: &Arc<Store>,
        chair: &Chair,
        renewal: &Renewal,
        expected: Expected,
        views: &Views,
        mut found: impl FnMut() -> Result<Vec<KeyValue>>,
    ) -> Result<Renewed> {
        let Some(kv) = found()?.pop() else {
            return Ok(Renewed::Gone);
        };
        let record = Record::read(&kv.value).ok_or_else(|| foreign(&kv.key))?;
        let is_other = !record.is_of(renewal.wake);
        if expected.has_ended(&kv) || (renewal.same_owner == SameOwner::Respect && is_other) {
            return Ok(Renewed::Gone);
        }
        if expected.is_elsewhere(&kv) {
            return self.rewrite_in_room(chair, renewal).await;
        }
        self.remember_room(chair);
        if let Some(fence) = expected.held {
            if renewal.write_anew && !record.is_up_to_date(renewal) {
                return self.rewrite_in_room(chair, renewal).await;
            }
            return Ok(Renewed::Held { fence });
        }
        // Many wait in one room: one look is enough for all of them.
        let view = {
            let mut views = views.lock().await;
            match views.get(&chair.prefix) {
                Some(view) => Arc::clone(view),
                None => {
                    let view = Arc::new(self.view(chair.kind, &chair.prefix).await?);
                    views.insert(chair.prefix.clone(), Arc::clone(&view));
                    view
                }
            }
        };
        self.renewed_by_view(chair, renewal, view).await
    }

    async fn renewed_by_view(
        self: &Arc<Store>,
        chair: &Chair,
        renewal: &Renewal,
        view: Arc<View>,
    ) -> Result<Renewed> {
        let revision = view.revision;
        Ok(match self.standing(chair, renewal.wake, view).await? {
            Standing::Held(fence) => Renewed::Held { fence },
            Standing::Waiting(_) => {
                self.watch_room(chair, revision);
                Renewed::Waiting { held_for: None }
            }
            Standing::Gone => Renewed::Gone,
        })
    }

    /// Writes a claim anew: for another claim of the same owner, on another lease, or with other words.
    pub(super) async fn rewrite_in_room(
        self: &Arc<Store>,
        chair: &Chair,
        renewal: &Renewal,
    ) -> Result<Renewed> {
        loop {
            let mut seen = self.link.txn(Txn::new().then(get(&chair.key))).await?;
            let Some(kv) = seen.found()?.pop() else {
                return Ok(Renewed::Gone);
            };
            let record = Record::read(&kv.value).ok_or_else(|| foreign(&kv.key))?;
            if renewal.same_owner == SameOwner::Respect && !record.is_of(renewal.wake) {
                return Ok(Renewed::Gone);
            }
            let lease = self.lease_to_go_on(&chair.key, renewal).await?;
            let before = self.retrack(&chair.key, renewal, &lease, kv.create_revision);
            let txn = Txn::new()
                .if_unchanged(&chair.key, kv.mod_revision)
                .then(put(&chair.key, record.renewed(renewal).write(), lease.id));
            let done = self.link.txn(txn).await?;
            if let Some(before) = before
                && !before.shared
                && before.id != lease.id
            {
                self.leases.revoke(&before);
            }
            if !done.succeeded {
                continue;
            }
            // Whoever holds goes on holding, whoever else is there.
            let held = self.tracks().get(&chair.key).and_then(|track| track.fence);
            if let Some(fence) = held {
                return Ok(Renewed::Held { fence });
            }
            let view = Arc::new(self.view(chair.kind, &chair.prefix).await?);
            return self.renewed_by_view(chair, renewal, view).await;
        }
    }

    /// Gives up the key, and tells what it was.
    pub(super) async fn release_in_room(
        self: &Arc<Store>,
        chair: &Chair,
        claim: Option<WakeAddress>,
        held: bool,
    ) -> Result<Released> {
        if held && claim.is_none() {
            return Ok(
                match self.deletions.delete(vec![chair.key.clone()]).await? {
                    true => Released::WasHeld,
                    false => Released::WasGone,
                },
            );
        }
        loop {
            let mut txn = Txn::new();
            if let Some(wake) = claim {
                let mut seen = self.link.txn(Txn::new().then(get(&chair.key))).await?;
                let kv = seen.found()?.pop();
                let ours = |kv: &KeyValue| Record::read(&kv.value).is_some_and(|r| r.is_of(wake));
                match kv.filter(ours) {
                    Some(kv) => txn = txn.if_unchanged(&chair.key, kv.mod_revision),
                    None => return Ok(Released::WasGone),
                }
            }
            if !held {
                txn = txn.then(Op::Range(some(&chair.prefix, 0)));
            }
            let mut done = self.link.txn(txn.then(delete(&chair.key))).await?;
            if !done.succeeded {
                continue;
            }
            let held = match held {
                true => true,
                false => {
                    let view = View::read(chair.kind, &chair.prefix, done.revision, done.found()?)?;
                    let at = view.seat(&chair.key).map(|(at, _)| at);
                    at.is_some_and(|at| view.holds(at))
                }
            };
            return Ok(match (done.deleted()?, held) {
                (0, _) => Released::WasGone,
                (_, true) => Released::WasHeld,
                (_, false) => Released::WasWaiting,
            });
        }
    }

    pub(super) async fn shrink_in_room(
        &self,
        chair: &Chair,
        claim: WakeAddress,
        weight: u32,
    ) -> Result<bool> {
        loop {
            let view = self.view(chair.kind, &chair.prefix).await?;
            let Some((at, seat)) = view.seat(&chair.key) else {
                return Ok(false);
            };
            let held = view.holds(at);
            if !held || !seat.record.is_of(claim) || seat.record.weight < weight {
                return Ok(false);
            }
            let record = Record {
                weight,
                ..seat.record.clone()
            };
            let txn = Txn::new()
                .if_unchanged(&chair.key, seat.kv.mod_revision)
                .then(put(&chair.key, record.write(), seat.kv.lease));
            if self.link.txn(txn).await?.succeeded {
                return Ok(true);
            }
        }
    }

    pub(super) async fn resize_room(
        &self,
        kind: Kind,
        name: &Name,
        size: u32,
    ) -> Result<Option<u32>> {
        let (prefix, key) = (self.keys.prefix(kind, name), self.keys.room(kind, name));
        let _turn = self.turn(&prefix).await;
        loop {
            let view = self.view(kind, &prefix).await?;
            let before = view.size(kind);
            let stored = view.room.unwrap_or_default();
            let room = Room {
                size,
                // Nobody loses a share.
                through: stored.through.max(view.held_through()),
                ..stored
            };
            // One that waits may not be written down with them. Out of line, it asks again.
            let mut left_out = view.left_out(room.through).peekable();
            if left_out.peek().is_some() {
                let txn = Txn::new().if_untouched(&prefix, view.revision);
                let txn = left_out.take(MOST_OPS).fold(txn, |txn, seat| {
                    txn.then(delete(&String::from_utf8_lossy(&seat.kv.key)))
                });
                self.link.txn(txn).await?;
                continue;
            }
            let memory = self.leases.memory(MEMORY).await?;
            let mut txn = Txn::new().if_untouched(&prefix, view.revision).then(put(
                &key,
                room.write(),
                memory,
            ));
            // Nobody may be let in unseen: it would not be among those who are written down.
            for seat in view.keeps_out(kind) {
                let key = String::from_utf8_lossy(&seat.kv.key);
                txn = txn.if_unchanged(&key, seat.kv.mod_revision);
            }
            if self.link.txn(txn).await?.succeeded {
                return Ok(before);
            }
        }
    }

    pub(super) async fn inspect_room(
        &self,
        kind: Kind,
        name: &Name,
        most: usize,
    ) -> Result<Occupancy> {
        let prefix = self.keys.prefix(kind, name);
        let view = self.view(kind, &prefix).await?;
        // Whoever should have opened it may be gone.
        let room = self.keys.room(kind, name);
        let view = self.open_if_full(kind, &prefix, &room, view).await?;
        self.occupancy_of_room(kind, name.as_str().to_owned(), &view, most)
            .await
    }

    pub(super) async fn occupancy_of_room(
        &self,
        kind: Kind,
        name: String,
        view: &View,
        most: usize,
    ) -> Result<Occupancy> {
        let holding = view.standing().filter(|(_, held)| *held);
        let mut holders = Vec::new();
        for (seat, _) in holding.take(most) {
            let record = Some(seat.record.clone());
            holders.push(
                self.describe(seat.owner.clone(), &seat.kv, record, None)
                    .await?,
            );
        }
        holders.sort_by_key(|holder| holder.remaining);
        Ok(Occupancy {
            kind,
            name,
            size: view.size(kind).unwrap_or(0),
            used: view.used(),
            waiters: view.standing().filter(|(_, held)| !*held).count() as u64,
            holders,
            open: view.round(),
        })
    }

    /// Keeps what is stored about a room for as long as anybody uses it.
    fn remember_room(self: &Arc<Store>, chair: &Chair) {
        if !matches!(chair.kind, Kind::Semaphore | Kind::Barrier) || !self.is_due(&chair.room) {
            return;
        }
        let (store, room) = (Arc::clone(self), chair.room.clone());
        self.runtime.spawn(async move {
            let mut seen = store.link.txn(Txn::new().then(get(&room))).await?;
            if let Some(kv) = seen.found()?.pop()
                && store.leases.look(kv.lease, false).await?.0 < MEMORY
            {
                let memory = store.leases.memory(MEMORY).await?;
                let txn = Txn::new()
                    .if_unchanged(&room, kv.mod_revision)
                    .then(put(&room, kv.value, memory));
                store.link.txn(txn).await?;
            }
            Ok::<(), Error>(())
        });
    }

    /// Whether it is time to see to it that it is not forgotten.
    fn is_due(&self, room: &str) -> bool {
        let now = self.clock.now();
        let mut touched = self.touched.lock().unwrap_or_else(PoisonError::into_inner);
        if touched.get(room).is_some_and(|at| now < *at + MEMORY / 8) {
            return false;
        }
        if touched.len() > 10_000 {
            touched.clear();
        }
        touched.insert(room.to_owned(), now);
        true
    }

    pub(super) async fn view(&self, kind: Kind, prefix: &str) -> Result<View> {
        let whole = self.link.range(some(prefix, 0)).await?;
        View::read(
            kind,
            prefix,
            whole.header.unwrap_or_default().revision,
            whole.kvs,
        )
    }

    /// What a transaction that ended with a look at the room has found.
    fn view_after_put(&self, chair: &Chair, mut done: Done) -> Result<View> {
        let found = done.last_found()?;
        View::read(chair.kind, &chair.prefix, done.revision, found)
    }

    async fn turn(&self, prefix: &str) -> TurnGuard<'_, ()> {
        let mut hasher = DefaultHasher::new();
        prefix.hash(&mut hasher);
        let at = hasher.finish() as usize % self.turns.len();
        self.turns[at].lock().await
    }
}

/// Only if nobody who waits was let in since, and the size is what it was.
fn if_nobody_comes_in(txn: Txn, chair: &Chair, view: &View) -> Txn {
    let txn = txn.if_unchanged(&chair.room, view.room_modified);
    view.keeps_out(chair.kind)
        .into_iter()
        // Its own claim is made sure of anyway.
        .filter(|seat| seat.kv.key != chair.key.as_bytes())
        .fold(txn, |txn, seat| {
            let key = String::from_utf8_lossy(&seat.kv.key);
            txn.if_unchanged(&key, seat.kv.mod_revision)
        })
}

/// Where a claim stands.
enum Standing {
    Held(Fence),
    Waiting(Fence),
    Gone,
}
