//! Renewing a claim to a lock or an election.

use std::sync::Arc;

use super::{Place, takes_part};
use crate::record::Record;
use crate::store::{Expected, Store, Track};
use crate::txn::{Txn, get, last_before};
use crate::wire::{KeyValue, Op};
use windlass_core::error::Result;
use windlass_core::store::{Acquired, Renewal, Renewed, SameOwner};

/// Whether the key alone does not tell enough.
fn needs_record(renewal: &Renewal) -> bool {
    renewal.same_owner != SameOwner::Impossible || renewal.write_anew
}

impl Store {
    /// What has to be asked to renew a claim that is where it was.
    pub(crate) fn ask_line(&self, place: &Place, renewal: &Renewal, held: bool) -> Vec<Op> {
        let mut ops = match needs_record(renewal) {
            false => vec![get(&place.key)],
            true => place.gets(),
        };
        if !held {
            let before = last_before(&place.prefix, renewal.fence.get() as i64, 1);
            ops.push(Op::Range(before));
        }
        ops
    }

    /// What the answer to that means.
    pub(crate) async fn renewed_in_line(
        self: &Arc<Store>,
        place: &Place,
        renewal: &Renewal,
        expected: Expected,
        revision: i64,
        mut found: impl FnMut() -> Result<Vec<KeyValue>>,
    ) -> Result<Renewed> {
        let held = expected.held.is_some();
        let seen = match needs_record(renewal) {
            false => found()?.pop().map(|kv| (kv, None)),
            true => place
                .read(&mut found)?
                .map(|(kv, record)| (kv, Some(record))),
        };
        let ahead = match held {
            true => None,
            false => found()?.pop(),
        };
        let Some((kv, record)) = seen else {
            return Ok(Renewed::Gone);
        };
        let other = |record: &Record| !record.is_of(renewal.wake);
        let is_other = record.as_ref().is_some_and(other);
        if expected.has_ended(&kv) || (renewal.same_owner == SameOwner::Respect && is_other) {
            return Ok(Renewed::Gone);
        }
        let out_of_date = |record: &Record| !record.is_up_to_date(renewal);
        let is_out_of_date = record.as_ref().is_some_and(out_of_date);
        if expected.is_elsewhere(&kv) || (held && renewal.write_anew && is_out_of_date) {
            return self.rewrite_in_line(place, renewal).await;
        }
        let created = kv.create_revision;
        let ahead = match ahead {
            // It has lined up again: who is ahead of where it was does not matter.
            _ if !held && created as u64 != renewal.fence.get() => {
                self.whoever_is_ahead(place, created).await?
            }
            Some(kv) if takes_part(&place.prefix, place.kind, &kv)? => Some((kv, revision)),
            Some(_) => self.whoever_is_ahead(place, created).await?,
            None => None,
        };
        Ok(match self.settle(place, renewal.wake, created, ahead) {
            Acquired::Granted { fence, .. } => Renewed::Held { fence },
            _ => Renewed::Waiting { held_for: None },
        })
    }

    /// Writes a claim anew: for another claim of the same owner, on another lease, or with other words.
    pub(crate) async fn rewrite_in_line(
        self: &Arc<Store>,
        place: &Place,
        renewal: &Renewal,
    ) -> Result<Renewed> {
        let mut before = None;
        loop {
            let txn = Txn::new().then_all(place.gets());
            let mut done = self.link.txn(txn).await?;
            let Some((kv, record)) = place.read(|| done.found())? else {
                return Ok(Renewed::Gone);
            };
            if renewal.same_owner == SameOwner::Respect && !record.is_of(renewal.wake) {
                return Ok(Renewed::Gone);
            }
            let lease = self.lease_to_go_on(&place.key, renewal).await?;
            let replaced = self.retrack(&place.key, renewal, &lease, kv.create_revision);
            before = before.or(replaced);
            let held = |track: &Track| track.fence.is_some();
            let held = self.tracks().get(&place.key).is_some_and(held);
            // Whoever holds goes on holding, whoever else is there.
            let ahead = match held {
                true => None,
                false => self.whoever_is_ahead(place, kv.create_revision).await?,
            };
            let txn = Txn::new()
                .if_unchanged(&place.key, kv.mod_revision)
                .then_all(place.puts(&record.renewed(renewal), lease.id));
            let done = self.link.txn(txn).await?;
            if done.succeeded {
                // Not sooner: until then, the key is on the lease it was on.
                self.leave_lease(before, &lease);
                return Ok(
                    match self.settle(place, renewal.wake, kv.create_revision, ahead) {
                        Acquired::Granted { fence, .. } => Renewed::Held { fence },
                        _ => Renewed::Waiting { held_for: None },
                    },
                );
            }
        }
    }
}
