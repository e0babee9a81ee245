//! The common course of every decision about claims: read the pool, remove expired holders, grant
//! the free weight to the queue, decide, write the pool.

use std::time::Duration;

use super::claims::Decided;
use super::wait_queue::{ClaimRecord, Pool, WaitQueue};
use crate::store::{AcquireRequest, Kind, OnSizeMismatch, Refusal, WakeAddress};
use crate::{Fence, Moment, Owner};

/// One decision in progress. It must be [ended](ClaimTransaction::end) to take effect on the pool.
pub(super) struct ClaimTransaction<'a, Q: WaitQueue> {
    pub(super) queue: &'a mut Q,
    pub(super) kind: Kind,
    pub(super) now: Moment,
    pub(super) pool: Pool,
    stored: Pool,
    wakes: Vec<(WakeAddress, Fence)>,
    /// Whether the holders changed.
    pub(super) changed: bool,
}

impl<'a, Q: WaitQueue> ClaimTransaction<'a, Q> {
    pub(super) fn begin(
        queue: &'a mut Q,
        kind: Kind,
        now: Moment,
    ) -> Result<ClaimTransaction<'a, Q>, Q::Error> {
        let stored = queue.pool()?;
        let mut pool = stored;
        if kind == Kind::Lock {
            pool.size = 1;
        }
        Ok(ClaimTransaction {
            queue,
            kind,
            now,
            pool,
            stored,
            wakes: Vec::new(),
            changed: false,
        })
    }

    pub(super) fn end<T>(self, outcome: T) -> Result<Decided<T>, Q::Error> {
        if self.pool != self.stored {
            self.queue.set_pool(self.pool)?;
        }
        Ok(Decided {
            outcome,
            wakes: self.wakes,
            notification: self.changed && self.kind.is_watched(),
        })
    }

    /// Forgets the size of an idle name once its retention is over, so that the next request may
    /// state another one.
    pub(super) fn forget_size(&mut self) -> Result<(), Q::Error> {
        let idle = self.pool.used == 0 && self.pool.until <= self.now;
        if self.kind != Kind::Lock && idle && self.queue.first_waiter()?.is_none() {
            self.pool = Pool::UNKNOWN;
        }
        Ok(())
    }

    /// When a waiter should check by itself, in case no wake-up comes: when the first holder's
    /// claim expires. If its weight fits and only earlier waiters are in its way, also when the
    /// first of them expires.
    pub(super) fn recheck_after(
        &mut self,
        owner: &Owner,
        weight: u32,
    ) -> Result<Option<Duration>, Q::Error> {
        let mut end = self.queue.first_to_expire()?.map(|holder| holder.expires);
        if self.fits(weight)
            && let Some(head) = self
                .queue
                .first_waiter()?
                .filter(|head| head.owner != *owner)
        {
            end = Some(end.map_or(head.expires, |end| end.min(head.expires)));
        }
        Ok(end.map(|end| end.since(self.now)))
    }

    /// Removes expired holders, and grants the free weight to the queue: to its first waiters that
    /// have not expired, in order, for as long as the next one fits.
    pub(super) fn expire_and_grant(&mut self) -> Result<(), Q::Error> {
        while let Some(holder) = self.queue.first_to_expire()? {
            if holder.expires > self.now {
                break;
            }
            self.remove(&holder)?;
        }
        if self.queue.first_to_expire()?.is_none() {
            // Repairs the count of a pool whose holders were removed by other means.
            self.pool.used = 0;
            self.pool.open = None;
        }
        while let Some(waiter) = self.queue.first_waiter()? {
            if waiter.weight > self.pool.size {
                // It would block the queue for ever. Woken without a grant, its client requests
                // again and is refused.
                self.queue.remove_waiter(&waiter)?;
                self.wakes.push((waiter.wake, Fence::new(0)));
            } else if !self.fits(1) {
                break;
            } else if waiter.expires <= self.now {
                self.queue.remove_waiter(&waiter)?;
            } else if self.fits(waiter.weight) {
                self.queue.remove_waiter(&waiter)?;
                let fence = match waiter.fence > self.pool.overtook {
                    true => waiter.fence,
                    false => {
                        self.pool.overtook = self.queue.next_fence()?;
                        self.pool.overtook
                    }
                };
                self.wakes.push((waiter.wake, fence));
                // Its expiry stays: the waiter may have died together with the holder before it.
                // Its next renewal extends the claim.
                self.grant(ClaimRecord {
                    fence,
                    since: self.now,
                    ..waiter
                })?;
            } else {
                break;
            }
        }
        Ok(())
    }

    /// Whether this weight is free.
    pub(super) fn fits(&self, weight: u32) -> bool {
        self.pool.open.is_none() && self.pool.used + u64::from(weight) <= u64::from(self.pool.size)
    }

    /// Makes `record` a holder. The last party opens a barrier.
    pub(super) fn grant(&mut self, record: ClaimRecord) -> Result<(), Q::Error> {
        self.pool.used += u64::from(record.weight);
        self.queue.set_holder(record)?;
        if self.kind == Kind::Barrier && self.pool.used == u64::from(self.pool.size) {
            self.pool.open = Some(self.queue.next_fence()?);
        }
        self.changed = true;
        Ok(())
    }

    /// Removes a holder, and frees its weight.
    pub(super) fn remove(&mut self, holder: &ClaimRecord) -> Result<(), Q::Error> {
        self.queue.remove_holder(holder)?;
        self.pool.used = self.pool.used.saturating_sub(holder.weight.into());
        self.changed = true;
        Ok(())
    }

    /// Why the request can never be granted, if so. Otherwise the pool takes over the requested
    /// size if it has none.
    pub(super) fn refuses(
        &mut self,
        request: &AcquireRequest,
    ) -> Result<Option<Refusal>, Q::Error> {
        let share = request.share;
        let stored = match self.pool.size {
            0 => share.size,
            known => known,
        };
        if stored != share.size && share.on_size_mismatch == OnSizeMismatch::Refuse {
            return Ok(Some(Refusal::OtherSize { stored }));
        }
        if share.weight > stored {
            return Ok(Some(Refusal::TooHeavy { stored }));
        }
        let claim = match self.queue.holder(&request.owner)? {
            Some(held) => Some(held),
            None => {
                let waiter = self.queue.waiter(&request.owner)?;
                waiter.filter(|waiter| waiter.expires > self.now)
            }
        };
        if let Some(claim) = claim.filter(|c| c.weight != share.weight) {
            return Ok(Some(Refusal::OtherWeight {
                claimed: claim.weight,
            }));
        }
        self.pool.size = stored;
        Ok(None)
    }
}
