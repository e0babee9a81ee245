//! Asking for a share.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;

use tokio::sync::MutexGuard as TurnGuard;

use super::Chair;
use super::remember::MEMORY;
use super::stand::Standing;
use super::view::{Seat, View, Wait, is_large};
use crate::leases::Lease;
use crate::record::{Record, Room};
use crate::store::Store;
use crate::translate::{after_a_write, strange_answer, unreachable};
use crate::txn::{Done, Txn, get, last_before, put, some};
use crate::wire::{KeyValue, Op};
use windlass_core::Fence;
use windlass_core::error::Result;
use windlass_core::store::{
    AcquireRequest, Acquired, Kind, OnBusy, OnSizeMismatch, Order, WakeAddress,
};

/// How many of those who came before are looked at first by one who comes.
const FEW: i64 = 64;

impl Store {
    pub(crate) async fn acquire_in_room(
        self: &Arc<Store>,
        ask: AcquireRequest,
    ) -> Result<Acquired> {
        let chair = Chair::of(self, ask.kind, &ask.name, &ask.owner);
        let lease = self.lease_for(&chair.key, ask.ttl, ask.renewed).await?;
        let before = self.track(&chair.key, &ask, &lease);
        let acquired = self.sit_down(&chair, &ask, &lease).await?;
        match &acquired {
            Acquired::Busy(_) | Acquired::Refused(_) => {
                self.put_back(&chair.key, ask.wake, before);
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
        ask: &AcquireRequest,
        lease: &Arc<Lease>,
    ) -> Result<Acquired> {
        // One step, where whoever comes goes to the end of the line, and finds the size as expected.
        let plain = ask.on_busy == OnBusy::Enqueue
            && ask.share.order == Order::Fifo
            && ask.share.on_size_mismatch == OnSizeMismatch::Refuse
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
                    let view = View::read(chair.kind, &chair.prefix, done.revision, found);
                    let view = view.map_err(after_a_write)?;
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
                if waits && ask.on_busy == OnBusy::Return && ask.share.order == Order::Fifo {
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
            if !takes && ask.on_busy == OnBusy::Return {
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
        ask: &AcquireRequest,
        revision: i64,
        room: Vec<KeyValue>,
        mut few: Vec<KeyValue>,
    ) -> Result<Acquired> {
        few.retain(|kv| kv.key != chair.room.as_bytes() && kv.key != chair.key.as_bytes());
        few.extend(room);
        let view = View::read(chair.kind, &chair.prefix, revision, few);
        let view = view.map_err(after_a_write)?;
        if view.is_full_for(ask.share.size, ask.share.weight) {
            self.placed(&chair.key, ask.wake, revision, None);
            let wait = Wait {
                created: revision,
                weight: ask.share.weight,
            };
            let queued = Acquired::Queued {
                ticket: Fence::new(revision as u64),
                held_for: None,
            };
            if self.is_watched_for_another(chair, wait) {
                return Ok(queued);
            }
            // Any few tell that it must wait. But if all who come watched the same few, these would wake them all.
            let view = self.view_before(chair, wait).await;
            let view = view.map_err(after_a_write)?;
            if view.is_full_for(ask.share.size, ask.share.weight) {
                self.watch_room(chair, wait, &view);
                return Ok(queued);
            }
        }
        let view = self.view(chair.kind, &chair.prefix).await;
        let view = view.map_err(after_a_write)?;
        self.seated(chair, ask.wake, view).await
    }

    /// What is stored about the room, and the last few who came before one who waits.
    pub(super) async fn view_before(&self, chair: &Chair, wait: Wait) -> Result<View> {
        let before = last_before(&chair.prefix, wait.created, FEW);
        // What is stored may be among them, and must be seen at any rate.
        let txn = Txn::new().then(get(&chair.room)).then(Op::Range(before));
        let mut done = self.link.txn(txn).await?;
        let (room, mut few) = (done.found()?, done.found()?);
        few.retain(|kv| kv.key != chair.room.as_bytes());
        few.extend(room);
        // As of its own coming, so that whatever has happened since is heard of.
        View::read(chair.kind, &chair.prefix, wait.created, few)
    }

    /// The same owner again: it keeps what it has. `None` if it has not any more.
    async fn sit_down_again(
        self: &Arc<Store>,
        chair: &Chair,
        ask: &AcquireRequest,
        view: View,
        seat: &Seat,
    ) -> Result<Option<Acquired>> {
        let lease = self
            .lease_to_take_over(&chair.key, ask, seat.kv.lease)
            .await?;
        drop(self.track(&chair.key, ask, &lease));
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
        let seat = seat.ok_or_else(|| strange_answer("no room, and nobody in it"))?;
        let record = Some(seat.record.clone());
        let holder = self
            .describe(seat.owner.clone(), &seat.kv, record, None)
            .await?;
        Ok(Acquired::Busy(holder))
    }

    /// Takes note of what a claim that was written has come to.
    async fn seated(
        self: &Arc<Store>,
        chair: &Chair,
        wake: WakeAddress,
        view: View,
    ) -> Result<Acquired> {
        let view = Arc::new(view);
        let standing = self.standing(chair, wake, Arc::clone(&view)).await;
        match standing.map_err(after_a_write)? {
            Standing::Held(fence) => Ok(Acquired::Granted {
                fence,
                recorded: true,
            }),
            Standing::Waiting(place, wait) => {
                self.watch_room(chair, wait, &view);
                Ok(Acquired::Queued {
                    ticket: place,
                    held_for: None,
                })
            }
            // The lease has ended in the meantime: whoever asks again finds out what is.
            Standing::Gone => Err(unreachable(
                "the claim has ended in the meantime".to_owned(),
            )),
        }
    }

    /// What a transaction that ended with a look at the room has found.
    fn view_after_put(&self, chair: &Chair, mut done: Done) -> Result<View> {
        let found = done.last_found()?;
        View::read(chair.kind, &chair.prefix, done.revision, found).map_err(after_a_write)
    }

    pub(super) async fn turn(&self, prefix: &str) -> TurnGuard<'_, ()> {
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
