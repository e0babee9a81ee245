//! How a decision about claims is taken, from looking to writing down: the dead go, and what comes free goes to
//! those in queue.

use std::time::Duration;

use super::claims::Decided;
use super::wait_queue::{ClaimRecord, Pool, WaitQueue};
use crate::store::{AcquireRequest, Kind, OnSizeMismatch, Refusal, WakeAddress};
use crate::{Fence, Moment, Owner};

/// One decision, from looking to writing down.
pub(super) struct ClaimTransaction<'a, L: WaitQueue> {
    pub(super) queue: &'a mut L,
    pub(super) kind: Kind,
    pub(super) now: Moment,
    pub(super) pool: Pool,
    found: Pool,
    wakes: Vec<(WakeAddress, Fence)>,
    pub(super) notification: bool,
}

impl<'a, L: WaitQueue> ClaimTransaction<'a, L> {
    pub(super) fn begin(
        queue: &'a mut L,
        kind: Kind,
        now: Moment,
    ) -> Result<ClaimTransaction<'a, L>, L::Error> {
        let found = queue.pool()?;
        let mut pool = found;
        if kind == Kind::Lock {
            pool.size = 1;
        }
        Ok(ClaimTransaction {
            queue,
            kind,
            now,
            pool,
            found,
            wakes: Vec::new(),
            notification: false,
        })
    }

    pub(super) fn end<T>(self, outcome: T) -> Result<Decided<T>, L::Error> {
        if self.pool != self.found {
            self.queue.set_pool(self.pool)?;
        }
        Ok(Decided {
            outcome,
            wakes: self.wakes,
            notification: self.notification && self.kind.is_watched(),
        })
    }

    /// Of all that has a size to be agreed on, only a semaphore's is remembered when nobody needs it.
    pub(super) fn forget_size(&mut self) -> Result<(), L::Error> {
        let idle = self.pool.used == 0 && self.pool.until <= self.now;
        if self.kind != Kind::Lock && idle && self.queue.first()?.is_none() {
            self.pool = Pool::UNKNOWN;
        }
        Ok(())
    }

    /// When a waiter should look for itself: when the first holder's claim ends. If there is pool for
    /// it, and only those ahead of it are in its way, then when the first of them is dead.
    pub(super) fn recheck_after(
        &mut self,
        owner: &Owner,
        weight: u32,
    ) -> Result<Option<Duration>, L::Error> {
        let mut end = self.queue.first_to_expire()?.map(|holder| holder.expires);
        if self.fits(weight)
            && let Some(head) = self.queue.first()?.filter(|head| head.owner != *owner)
        {
            end = Some(end.map_or(head.expires, |end| end.min(head.expires)));
        }
        Ok(end.map(|end| end.since(self.now)))
    }

    /// Removes dead holders, and gives what is free to the first waiters alive.
    pub(super) fn expire_and_grant(&mut self) -> Result<(), L::Error> {
        while let Some(holder) = self.queue.first_to_expire()? {
            if holder.expires > self.now {
                break;
            }
            self.remove(&holder)?;
        }
        if self.queue.first_to_expire()?.is_none() {
            // Nobody holds: whatever was written down, nothing is taken.
            self.pool.used = 0;
            self.pool.open = None;
        }
        while let Some(waiter) = self.queue.first()? {
            if waiter.weight > self.pool.size {
                // It would wait for ever, and all behind it. Told to ask, it hears why.
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
                // Until its own claim ends, and no longer: it may have died in queue together with the
                // one before it, and lives on only by its next sign of life.
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

    pub(super) fn fits(&self, weight: u32) -> bool {
        self.pool.open.is_none() && self.pool.used + u64::from(weight) <= u64::from(self.pool.size)
    }

    pub(super) fn grant(&mut self, record: ClaimRecord) -> Result<(), L::Error> {
        self.pool.used += u64::from(record.weight);
        self.queue.set_holder(record)?;
        if self.kind == Kind::Barrier && self.pool.used == u64::from(self.pool.size) {
            self.pool.open = Some(self.queue.next_fence()?);
        }
        self.notification = true;
        Ok(())
    }

    pub(super) fn remove(&mut self, holder: &ClaimRecord) -> Result<(), L::Error> {
        self.queue.remove_holder(holder)?;
        self.pool.used = self.pool.used.saturating_sub(holder.weight.into());
        self.notification = true;
        Ok(())
    }

    /// Why the request cannot be granted now or later. Learns the size if it was not known.
    pub(super) fn refuses(&mut self, ask: &AcquireRequest) -> Result<Option<Refusal>, L::Error> {
        let share = ask.share;
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
        let claim = match self.queue.holder(&ask.owner)? {
            Some(held) => Some(held),
            None => {
                let waiter = self.queue.waiter(&ask.owner)?;
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
