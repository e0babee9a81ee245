//! Where a claim stands, and what has to be written for it to hold.

use std::sync::Arc;

use super::Chair;
use super::remember::MEMORY;
use super::view::{Seat, View, Wait};
use crate::record::{Record, Room};
use crate::store::Store;
use crate::txn::{Txn, delete, put};
use windlass_core::Fence;
use windlass_core::error::Result;
use windlass_core::store::{Kind, WakeAddress};

/// Where a claim stands.
pub(super) enum Standing {
    Held(Fence),
    Waiting(Fence, Wait),
    Gone,
}

impl Store {
    /// Where a claim stands. If it holds now although it was overtaken, it is given its fence; if it was
    /// the last that a barrier waited for, that opens.
    pub(super) async fn standing(
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
                return Ok(Standing::Waiting(seat.fence(), seat.wait()));
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
    pub(super) async fn touch(&self, chair: &Chair, view: &View) -> Result<()> {
        let memory = self.leases.memory(MEMORY).await?;
        let room = view.room.unwrap_or_default().write();
        let txn = Txn::new()
            .if_untouched(&chair.prefix, view.revision)
            .then(put(&chair.room, room, memory));
        self.link.txn(txn).await.map(drop)
    }

    /// Opens a barrier for those who are in it, if all have come.
    pub(super) async fn open_if_full(
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
}
