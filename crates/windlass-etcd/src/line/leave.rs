//! Leaving the line, or being taken out of it.

use std::sync::Arc;

use super::{Place, takes_part, taking_part};
use crate::store::Store;
use crate::txn::{Txn, all, delete};
use crate::wire::{Op, RangeRequest};
use windlass_core::error::Result;
use windlass_core::name::Name;
use windlass_core::store::{Holder, Kind, Released, WakeAddress};

impl Store {
    /// Gives up the key, and tells what it was.
    pub(crate) async fn release_in_line(
        self: &Arc<Store>,
        place: &Place,
        claim: Option<WakeAddress>,
        held: bool,
    ) -> Result<Released> {
        if held && claim.is_none() {
            let keys = place.keys().map(str::to_owned).collect();
            return Ok(match self.deletions.delete(keys).await? {
                true => Released::WasHeld,
                false => Released::WasGone,
            });
        }
        loop {
            let mut txn = Txn::new();
            if let Some(wake) = claim {
                let look = Txn::new().then_all(place.gets());
                let mut seen = self.link.txn(look).await?;
                match place.read(|| seen.found())? {
                    Some((kv, record)) if record.is_of(wake) => {
                        txn = txn.if_unchanged(&place.key, kv.mod_revision);
                    }
                    // Another claim of the same owner has taken its place, or nothing is there.
                    _ => return Ok(Released::WasGone),
                }
            }
            // Whoever knows that it holds need not look who else is there.
            if !held {
                txn = txn.then(Op::Range(RangeRequest {
                    keys_only: true,
                    ..all(&place.prefix)
                }));
            }
            txn = txn.then_all(place.deletes());
            let mut done = self.link.txn(txn).await?;
            if !done.succeeded {
                continue;
            }
            let seen = match held {
                true => Vec::new(),
                false => done.found()?,
            };
            if done.deleted()? == 0 {
                return Ok(Released::WasGone);
            }
            // Whatever else is there cannot hinder a release.
            let first = seen
                .iter()
                .filter(|kv| takes_part(&place.prefix, place.kind, kv).unwrap_or(true))
                .min_by_key(|kv| kv.create_revision);
            let first = first.is_none_or(|kv| kv.key == place.key.as_bytes());
            return Ok(match held || first {
                true => Released::WasHeld,
                false => Released::WasWaiting,
            });
        }
    }

    pub(crate) async fn remove(&self, place: &Place) -> Result<()> {
        let txn = Txn::new().then_all(place.deletes());
        self.link.txn(txn).await?;
        if let Some(track) = self.untrack(&place.key, None) {
            self.let_go(&track, true);
        }
        Ok(())
    }

    /// Takes the lock from whoever has it.
    pub(crate) async fn break_line(&self, name: &Name) -> Result<Option<Holder>> {
        let prefix = self.keys.prefix(Kind::Lock, name);
        loop {
            let whole = self.link.range(all(&prefix)).await?;
            let parts = taking_part(&prefix, Kind::Lock, whole.kvs)?;
            let Some(first) = parts.first() else {
                return Ok(None);
            };
            let holder = self.describe_in_line(&prefix, Kind::Lock, first).await?;
            let key = String::from_utf8_lossy(&first.key);
            let txn = Txn::new()
                .if_unchanged(&key, first.mod_revision)
                .then(delete(&key));
            if self.link.txn(txn).await?.succeeded {
                return Ok(Some(holder));
            }
        }
    }
}
