//! Renewing a claim to a share.

use std::collections::HashMap;
use std::sync::Arc;

use tokio::sync::Mutex as AsyncMutex;

use super::Chair;
use super::stand::Standing;
use super::view::View;
use crate::record::Record;
use crate::store::{Expected, Store, foreign};
use crate::txn::{Txn, get, put};
use crate::wire::{KeyValue, Op};
use windlass_core::error::Result;
use windlass_core::store::{Renewal, Renewed, SameOwner};

/// Rooms that were looked at while renewing, by their prefix.
pub(crate) type Views = AsyncMutex<HashMap<String, Arc<View>>>;

impl Store {
    /// What has to be asked to renew a claim that is where it was.
    pub(crate) fn ask_room(&self, chair: &Chair) -> Vec<Op> {
        vec![get(&chair.key)]
    }

    /// What the answer to that means.
    pub(crate) async fn renewed_in_room(
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
        let standing = self.standing(chair, renewal.wake, Arc::clone(&view));
        Ok(match standing.await? {
            Standing::Held(fence) => Renewed::Held { fence },
            Standing::Waiting(_, wait) => {
                self.watch_room(chair, wait, &view);
                Renewed::Waiting { held_for: None }
            }
            Standing::Gone => Renewed::Gone,
        })
    }

    /// Writes a claim anew: for another claim of the same owner, on another lease, or with other words.
    pub(crate) async fn rewrite_in_room(
        self: &Arc<Store>,
        chair: &Chair,
        renewal: &Renewal,
    ) -> Result<Renewed> {
        let mut before = None;
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
            let replaced = self.retrack(&chair.key, renewal, &lease, kv.create_revision);
            before = before.or(replaced);
            let txn = Txn::new()
                .if_unchanged(&chair.key, kv.mod_revision)
                .then(put(&chair.key, record.renewed(renewal).write(), lease.id));
            let done = self.link.txn(txn).await?;
            if !done.succeeded {
                continue;
            }
            // Not sooner: until then, the key is on the lease it was on.
            self.leave_lease(before, &lease);
            // Whoever holds goes on holding, whoever else is there.
            let held = self.tracks().get(&chair.key).and_then(|track| track.fence);
            if let Some(fence) = held {
                return Ok(Renewed::Held { fence });
            }
            let view = Arc::new(self.view(chair.kind, &chair.prefix).await?);
            return self.renewed_by_view(chair, renewal, view).await;
        }
    }
}
