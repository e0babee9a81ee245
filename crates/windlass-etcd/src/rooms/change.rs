//! Giving up a share or a part of it, and changing the size.

use std::sync::Arc;

use super::Chair;
use super::remember::MEMORY;
use super::view::View;
use crate::record::{Record, Room};
use crate::store::Store;
use crate::txn::{MOST_OPS, Txn, delete, get, put, some};
use crate::wire::{KeyValue, Op};
use windlass_core::error::Result;
use windlass_core::name::Name;
use windlass_core::store::{Kind, Released, WakeAddress};

impl Store {
    /// Gives up the key, and tells what it was.
    pub(crate) async fn release_in_room(
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

    pub(crate) async fn shrink_in_room(
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

    pub(crate) async fn resize_room(
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
            let mut left_out = view.left_out(kind, room.through).peekable();
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
}
