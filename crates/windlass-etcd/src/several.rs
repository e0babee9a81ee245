//! Several locks, all or none of them.

use std::sync::Arc;

use super::leases::Lease;
use super::line::{Place, taking_part};
use super::record::Record;
use super::store::Store;
use super::translate::{after_a_write, strange_answer};
use super::txn::{MOST_OPS, Txn, all};
use super::wire::{KeyValue, Op};
use windlass_core::Fence;
use windlass_core::error::Result;
use windlass_core::store::{AcquireRequest, AcquiredAll};

/// Several locks are taken in transactions of so many.
const SEVERAL: usize = 40;

/// How often locks are tried that are free, under names where other things change in the meantime.
const TRIES: usize = 3;

/// One of several that are asked for.
struct One<'a> {
    ask: &'a AcquireRequest,
    place: Place,
    lease: Arc<Lease>,
}

impl One<'_> {
    fn puts(&self, txn: Txn) -> Txn {
        txn.then_all(self.place.puts(&Record::of(self.ask), self.lease.id))
    }

    fn look(&self) -> Op {
        Op::Range(all(&self.place.prefix))
    }
}

impl Store {
    /// Several locks: all in one step if they are few, otherwise one piece after the other, all of which are
    /// given back if one is not free.
    pub(super) async fn acquire_several(
        self: &Arc<Store>,
        asks: Vec<AcquireRequest>,
    ) -> Result<AcquiredAll> {
        let mut fences = Vec::with_capacity(asks.len());
        for piece in asks.chunks(SEVERAL) {
            let begin = fences.len();
            let refused = match self.acquire_piece(piece).await {
                Ok(AcquiredAll::Granted(granted)) => {
                    fences.extend(granted);
                    continue;
                }
                Ok(AcquiredAll::Busy { which, holder }) => Ok(AcquiredAll::Busy {
                    which: begin + which,
                    holder,
                }),
                other => other,
            };
            let given_back = self.give_back(&asks[..begin], &fences).await;
            return match (refused, given_back) {
                (refused, Ok(())) => refused,
                (Err(e), Err(_)) | (Ok(_), Err(e)) => Err(after_a_write(e)),
            };
        }
        Ok(AcquiredAll::Granted(fences))
    }

    /// Gives up locks that were just granted: many in one step, unless something has happened to one of them.
    async fn give_back(self: &Arc<Store>, asks: &[AcquireRequest], fences: &[Fence]) -> Result<()> {
        let granted: Vec<(&AcquireRequest, Fence)> =
            asks.iter().zip(fences.iter().copied()).collect();
        // A claim has two keys at most.
        for some in granted.chunks(MOST_OPS / 2) {
            let mut txn = Txn::new();
            for (ask, fence) in some {
                let place = Place::of(self, ask.kind, &ask.name, &ask.owner);
                txn = txn
                    .if_unchanged(&place.key, fence.get() as i64)
                    .then_all(place.deletes());
            }
            let all_at_once = self.link.txn(txn).await?.succeeded;
            for (ask, _) in some {
                if !all_at_once {
                    let wake = Some(ask.wake);
                    let _ = self.release(ask.kind, &ask.name, &ask.owner, wake).await?;
                    continue;
                }
                let place = Place::of(self, ask.kind, &ask.name, &ask.owner);
                if let Some(track) = self.untrack(&place.key, Some(ask.wake)) {
                    self.let_go(&track, true);
                }
            }
        }
        Ok(())
    }

    async fn acquire_piece(self: &Arc<Store>, asks: &[AcquireRequest]) -> Result<AcquiredAll> {
        let mut ones = Vec::with_capacity(asks.len());
        let mut befores = Vec::with_capacity(asks.len());
        for ask in asks {
            let place = Place::of(self, ask.kind, &ask.name, &ask.owner);
            let lease = self.lease_for(&place.key, ask.ttl, ask.renewed).await?;
            befores.push(self.track(&place.key, ask, &lease));
            ones.push(One { ask, place, lease });
        }
        let acquired = self.take_all_if_free(&ones).await;
        if matches!(acquired, Ok(AcquiredAll::Busy { .. })) {
            for (one, before) in ones.iter().zip(befores) {
                self.put_back(&one.place.key, one.ask.wake, before);
            }
        }
        acquired
    }

    async fn take_all_if_free(self: &Arc<Store>, ones: &[One<'_>]) -> Result<AcquiredAll> {
        // Where something else than locks was seen under a name, it must be as it was.
        let mut seen: Option<i64> = None;
        for _ in 0..TRIES {
            let mut txn = Txn::new();
            for one in ones {
                txn = match seen {
                    None => txn.if_empty(&one.place.prefix),
                    Some(revision) => txn.if_untouched(&one.place.prefix, revision),
                };
                txn = one.puts(txn).otherwise(one.look());
            }
            let mut done = self.link.txn(txn).await?;
            if done.succeeded {
                return Ok(self.granted_all(ones, done.revision));
            }
            for (which, one) in ones.iter().enumerate() {
                let parts = taking_part(&one.place.prefix, one.place.kind, done.found()?)?;
                if !parts.is_empty() {
                    return self.not_free(ones, which, &parts).await;
                }
            }
            seen = Some(done.revision);
        }
        self.line_up_for_all_or_leave(ones).await
    }

    /// The same where other things under the names are written all the time, so that they are never as they
    /// were: by lining up for all in one step, and leaving at once if somebody is ahead anywhere.
    async fn line_up_for_all_or_leave(self: &Arc<Store>, ones: &[One<'_>]) -> Result<AcquiredAll> {
        let mut txn = Txn::new();
        for one in ones {
            txn = one.puts(txn.if_absent(&one.place.key));
        }
        for one in ones {
            txn = txn.then(one.look()).otherwise(one.look());
        }
        let mut done = self.link.txn(txn).await?;
        if done.succeeded {
            let puts = ones.iter().map(|one| one.place.keys().count()).sum();
            for _ in 0..puts {
                done.was_put()?;
            }
        }
        // All that were made by this are of this revision. Where one of ours was there already, nothing was.
        let (lined_up, revision) = (done.succeeded, done.revision);
        let is_ahead = |kv: &KeyValue| !lined_up || kv.create_revision < revision;
        let (mut ahead, mut foreign) = (None, None);
        for (which, one) in ones.iter().enumerate() {
            match taking_part(&one.place.prefix, one.place.kind, done.found()?) {
                Ok(parts) if parts.iter().any(is_ahead) => ahead = ahead.or(Some((which, parts))),
                Ok(_) => {}
                Err(e) => foreign = foreign.or(Some(e)),
            }
        }
        if lined_up && ahead.is_none() && foreign.is_none() {
            return Ok(self.granted_all(ones, revision));
        }
        if lined_up {
            let keys = ones.iter().flat_map(|one| one.place.keys());
            self.deletions
                .delete(keys.map(str::to_owned).collect())
                .await
                .map_err(after_a_write)?;
        }
        match (foreign, ahead) {
            (Some(e), _) => {
                self.give_up_all(ones);
                Err(e)
            }
            (None, Some((which, parts))) => self.not_free(ones, which, &parts).await,
            (None, None) => Err(strange_answer("a key was in the way that is not there")),
        }
    }

    fn granted_all(&self, ones: &[One<'_>], revision: i64) -> AcquiredAll {
        let fence = Fence::new(revision as u64);
        for one in ones {
            self.placed(&one.place.key, one.ask.wake, revision, Some(fence));
        }
        AcquiredAll::Granted(vec![fence; ones.len()])
    }

    async fn not_free(
        &self,
        ones: &[One<'_>],
        which: usize,
        parts: &[KeyValue],
    ) -> Result<AcquiredAll> {
        let One { ask, place, .. } = &ones[which];
        let name = ask.name.as_str().to_owned();
        let mut busy = self
            .occupancy_of_line(place.kind, name, &place.prefix, parts, 1)
            .await?;
        self.give_up_all(ones);
        let holder = busy.holders.pop();
        Ok(AcquiredAll::Busy { which, holder })
    }

    /// Nothing was written for them, or not any more.
    fn give_up_all(&self, ones: &[One<'_>]) {
        for one in ones {
            drop(self.untrack(&one.place.key, Some(one.ask.wake)));
            if !one.lease.shared {
                self.leases.revoke(&one.lease);
            }
        }
    }
}
