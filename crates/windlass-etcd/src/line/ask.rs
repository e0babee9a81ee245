//! Asking for a place in line.

use std::sync::Arc;

use super::{Place, takes_part, taking_part};
use crate::leases::Lease;
use crate::record::Record;
use crate::store::Store;
use crate::translate::after_a_write;
use crate::txn::{Txn, all, last};
use crate::wire::{KeyValue, Op, RangeRequest};
use windlass_core::Fence;
use windlass_core::error::{Error, Result};
use windlass_core::store::{AcquireRequest, Acquired, OnBusy, WakeAddress};

/// How many of the oldest keys are looked at to find out who holds: others than claims are rare.
const FEW: i64 = 8;

/// How often a lock is tried that is free, under a name where other things change in the meantime.
const TRIES: usize = 3;

impl Store {
    pub(crate) async fn acquire_in_line(
        self: &Arc<Store>,
        ask: AcquireRequest,
    ) -> Result<Acquired> {
        let place = Place::of(self, ask.kind, &ask.name, &ask.owner);
        let lease = self.lease_for(&place.key, ask.ttl, ask.renewed).await?;
        let before = self.track(&place.key, &ask, &lease);
        loop {
            let acquired = match ask.on_busy {
                OnBusy::Enqueue => self.line_up(&place, &ask, &lease).await?,
                OnBusy::Return => self.take_if_free(&place, &ask, &lease).await?,
            };
            // What was there a moment ago is not any more: look again.
            let Some(acquired) = acquired else { continue };
            if matches!(acquired, Acquired::Busy(_)) {
                self.put_back(&place.key, ask.wake, before);
                if !lease.shared {
                    self.leases.revoke(&lease);
                }
            }
            return Ok(acquired);
        }
    }

    /// One step, if nobody else is there: puts the key, and looks who was there before.
    async fn line_up(
        self: &Arc<Store>,
        place: &Place,
        ask: &AcquireRequest,
        lease: &Arc<Lease>,
    ) -> Result<Option<Acquired>> {
        let puts = place.puts(&Record::of(ask), lease.id);
        let count = puts.len();
        let txn = Txn::new()
            .if_absent(&place.key)
            .then_all(puts)
            .then(Op::Range(last(&place.prefix, 2)))
            .otherwise_all(place.gets());
        let mut done = self.link.txn(txn).await?;
        if !done.succeeded {
            return match place.read(|| done.found())? {
                Some((kv, _)) => self.come_again(place, ask, kv).await,
                None => Ok(None),
            };
        }
        for _ in 0..count {
            done.was_put()?;
        }
        let created = done.revision;
        let before = done
            .found()?
            .into_iter()
            .find(|kv| kv.create_revision < created);
        let ahead = match before {
            None => Ok(None),
            Some(kv) => match takes_part(&place.prefix, place.kind, &kv) {
                Ok(true) => Ok(Some((kv, done.revision))),
                Ok(false) => self.whoever_is_ahead(place, created).await,
                Err(e) => Err(e),
            },
        };
        match ahead {
            Ok(ahead) => Ok(Some(self.settle(place, ask.wake, created, ahead))),
            Err(e) => Err(self.leave_after(place, e).await),
        }
    }

    /// What to tell of a failure after the key was put. If waiting would not end it, nothing is left behind;
    /// whoever asks again finds its place as it was.
    async fn leave_after(&self, place: &Place, e: Error) -> Error {
        match !e.is_retryable() && self.remove(place).await.is_ok() {
            true => e,
            false => after_a_write(e),
        }
    }

    /// Takes note of the place in line: held if nobody is ahead, and waiting for the one who is otherwise.
    pub(super) fn settle(
        self: &Arc<Store>,
        place: &Place,
        wake: WakeAddress,
        created: i64,
        ahead: Option<(KeyValue, i64)>,
    ) -> Acquired {
        let fence = Fence::new(created as u64);
        match ahead {
            None => {
                self.placed(&place.key, wake, created, Some(fence));
                Acquired::Granted {
                    fence,
                    recorded: true,
                }
            }
            Some((kv, revision)) => {
                self.placed(&place.key, wake, created, None);
                self.wait_for(place, wake, &kv.key, revision);
                Acquired::Queued {
                    ticket: fence,
                    // When its lease ends, the watch tells.
                    held_for: None,
                }
            }
        }
    }

    /// Grants only if nobody is there.
    async fn take_if_free(
        self: &Arc<Store>,
        place: &Place,
        ask: &AcquireRequest,
        lease: &Arc<Lease>,
    ) -> Result<Option<Acquired>> {
        let mut txn = Txn::new().if_empty(&place.prefix);
        for _ in 0..TRIES {
            let puts = place.puts(&Record::of(ask), lease.id);
            txn = txn.then_all(puts);
            txn = txn.otherwise_all(place.gets());
            let few = RangeRequest {
                limit: FEW,
                ..all(&place.prefix)
            };
            let mut done = self.link.txn(txn.otherwise(Op::Range(few))).await?;
            if done.succeeded {
                return Ok(Some(self.settle(place, ask.wake, done.revision, None)));
            }
            if let Some((kv, _)) = place.read(|| done.found())? {
                return self.come_again(place, ask, kv).await;
            }
            let mut seen = done.found()?;
            let mut revision = done.revision;
            let some = seen.len() as i64 == FEW;
            let mut parts = taking_part(&place.prefix, place.kind, std::mem::take(&mut seen))?;
            if parts.is_empty() && some {
                let whole = self.link.range(all(&place.prefix)).await?;
                revision = whole.header.unwrap_or_default().revision;
                parts = taking_part(&place.prefix, place.kind, whole.kvs)?;
            }
            if let Some(first) = parts.first() {
                let holder = self
                    .describe_in_line(&place.prefix, place.kind, first)
                    .await?;
                return Ok(Some(Acquired::Busy(holder)));
            }
            // What is there is about other things.
            txn = Txn::new()
                .if_untouched(&place.prefix, revision)
                .if_absent(&place.key);
        }
        self.line_up_or_leave(place, ask, lease).await
    }

    /// The same where other things under the name are written all the time, so that it is never as it was:
    /// by lining up, and leaving at once if somebody is ahead.
    async fn line_up_or_leave(
        self: &Arc<Store>,
        place: &Place,
        ask: &AcquireRequest,
        lease: &Arc<Lease>,
    ) -> Result<Option<Acquired>> {
        let lined_up = self.line_up(place, ask, lease).await?;
        let Some(Acquired::Queued { ticket: fence, .. }) = lined_up else {
            return Ok(lined_up);
        };
        let first = async {
            let whole = self.link.range(all(&place.prefix)).await?;
            let parts = taking_part(&place.prefix, place.kind, whole.kvs)?;
            let Some(first) = parts.into_iter().next() else {
                return Ok(None);
            };
            let (prefix, kind) = (&place.prefix, place.kind);
            let holder = self.describe_in_line(prefix, kind, &first).await?;
            Ok(Some((first, holder)))
        };
        let (first, holder) = match first.await {
            Ok(Some(first)) => first,
            // It has ended in the meantime.
            Ok(None) => return Ok(None),
            Err(e) => return Err(self.leave_after(place, e).await),
        };
        if first.key == place.key.as_bytes() {
            let created = fence.get() as i64;
            return Ok(Some(self.settle(place, ask.wake, created, None)));
        }
        self.remove(place).await.map_err(after_a_write)?;
        Ok(Some(Acquired::Busy(holder)))
    }

    /// The same owner again: it keeps what it has.
    async fn come_again(
        self: &Arc<Store>,
        place: &Place,
        ask: &AcquireRequest,
        kv: KeyValue,
    ) -> Result<Option<Acquired>> {
        let ahead = self.whoever_is_ahead(place, kv.create_revision).await?;
        if ask.on_busy == OnBusy::Return
            && let Some(_waits) = &ahead
        {
            let whole = self.link.range(all(&place.prefix)).await?;
            let parts = taking_part(&place.prefix, place.kind, whole.kvs)?;
            if let Some(first) = parts.first() {
                let holder = self
                    .describe_in_line(&place.prefix, place.kind, first)
                    .await?;
                return Ok(Some(Acquired::Busy(holder)));
            }
        }
        let lease = self.lease_to_take_over(&place.key, ask, kv.lease).await?;
        drop(self.track(&place.key, ask, &lease));
        let txn = Txn::new()
            .if_unchanged(&place.key, kv.mod_revision)
            .then_all(place.puts(&Record::of(ask), lease.id));
        let done = self.link.txn(txn).await?;
        if !done.succeeded {
            return Ok(None);
        }
        Ok(Some(self.settle(
            place,
            ask.wake,
            kv.create_revision,
            ahead,
        )))
    }

    /// The one right before, as of which revision.
    pub(super) async fn whoever_is_ahead(
        &self,
        place: &Place,
        created: i64,
    ) -> Result<Option<(KeyValue, i64)>> {
        let whole = self
            .link
            .range(RangeRequest {
                max_create_revision: created - 1,
                ..all(&place.prefix)
            })
            .await?;
        let revision = whole.header.unwrap_or_default().revision;
        let mut parts = taking_part(&place.prefix, place.kind, whole.kvs)?;
        Ok(parts.pop().map(|kv| (kv, revision)))
    }
}
