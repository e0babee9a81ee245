//! How a decision about claims is taken, from looking to writing down: the dead go, and what comes free goes to
//! those in line.

use std::time::Duration;

use super::claims::Decided;
use super::line::{Line, Record, Room};
use crate::store::{Ask, IfOtherSize, Kind, Refusal, WakeAddress};
use crate::{Fence, Moment, Owner};

/// One decision, from looking to writing down.
pub(super) struct Sitting<'a, L: Line> {
    pub(super) line: &'a mut L,
    pub(super) kind: Kind,
    pub(super) now: Moment,
    pub(super) room: Room,
    found: Room,
    wakes: Vec<(WakeAddress, Fence)>,
    pub(super) news: bool,
}

impl<'a, L: Line> Sitting<'a, L> {
    pub(super) fn begin(
        line: &'a mut L,
        kind: Kind,
        now: Moment,
    ) -> Result<Sitting<'a, L>, L::Error> {
        let found = line.room()?;
        let mut room = found;
        if kind == Kind::Lock {
            room.size = 1;
        }
        Ok(Sitting {
            line,
            kind,
            now,
            room,
            found,
            wakes: Vec::new(),
            news: false,
        })
    }

    pub(super) fn end<T>(self, outcome: T) -> Result<Decided<T>, L::Error> {
        if self.room != self.found {
            self.line.set_room(self.room)?;
        }
        Ok(Decided {
            outcome,
            wakes: self.wakes,
            news: self.news && self.kind.is_watched(),
        })
    }

    /// Of all that has a size to be agreed on, only a semaphore's is remembered when nobody needs it.
    pub(super) fn forget_size(&mut self) -> Result<(), L::Error> {
        let idle = self.room.used == 0 && self.room.until <= self.now;
        if self.kind != Kind::Lock && idle && self.line.first()?.is_none() {
            self.room = Room::UNKNOWN;
        }
        Ok(())
    }

    /// When a waiter should look for itself: when the first holder's claim ends. If there is room for
    /// it, and only those ahead of it are in its way, then when the first of them is dead.
    pub(super) fn look_after(
        &mut self,
        owner: &Owner,
        weight: u32,
    ) -> Result<Option<Duration>, L::Error> {
        let mut end = self.line.first_to_expire()?.map(|holder| holder.expires);
        if self.fits(weight)
            && let Some(head) = self.line.first()?.filter(|head| head.owner != *owner)
        {
            end = Some(end.map_or(head.expires, |end| end.min(head.expires)));
        }
        Ok(end.map(|end| end.since(self.now)))
    }

    /// Removes dead holders, and gives what is free to the first waiters alive.
    pub(super) fn settle(&mut self) -> Result<(), L::Error> {
        while let Some(holder) = self.line.first_to_expire()? {
            if holder.expires > self.now {
                break;
            }
            self.remove(&holder)?;
        }
        if self.line.first_to_expire()?.is_none() {
            // Nobody holds: whatever was written down, nothing is taken.
            self.room.used = 0;
            self.room.open = None;
        }
        while let Some(waiter) = self.line.first()? {
            if waiter.weight > self.room.size {
                // It would wait for ever, and all behind it. Told to ask, it hears why.
                self.line.remove_waiter(&waiter)?;
                self.wakes.push((waiter.wake, Fence::new(0)));
            } else if !self.fits(1) {
                break;
            } else if waiter.expires <= self.now {
                self.line.remove_waiter(&waiter)?;
            } else if self.fits(waiter.weight) {
                self.line.remove_waiter(&waiter)?;
                let fence = match waiter.fence > self.room.overtook {
                    true => waiter.fence,
                    false => {
                        self.room.overtook = self.line.next_fence()?;
                        self.room.overtook
                    }
                };
                self.wakes.push((waiter.wake, fence));
                // Until its own claim ends, and no longer: it may have died in line together with the
                // one before it, and lives on only by its next sign of life.
                self.grant(Record {
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
        self.room.open.is_none() && self.room.used + u64::from(weight) <= u64::from(self.room.size)
    }

    pub(super) fn grant(&mut self, record: Record) -> Result<(), L::Error> {
        self.room.used += u64::from(record.weight);
        self.line.set_holder(record)?;
        if self.kind == Kind::Barrier && self.room.used == u64::from(self.room.size) {
            self.room.open = Some(self.line.next_fence()?);
        }
        self.news = true;
        Ok(())
    }

    pub(super) fn remove(&mut self, holder: &Record) -> Result<(), L::Error> {
        self.line.remove_holder(holder)?;
        self.room.used = self.room.used.saturating_sub(holder.weight.into());
        self.news = true;
        Ok(())
    }

    /// Why the request cannot be granted now or later. Learns the size if it was not known.
    pub(super) fn refuses(&mut self, ask: &Ask) -> Result<Option<Refusal>, L::Error> {
        let share = ask.share;
        let stored = match self.room.size {
            0 => share.size,
            known => known,
        };
        if stored != share.size && share.if_other_size == IfOtherSize::Refuse {
            return Ok(Some(Refusal::OtherSize { stored }));
        }
        if share.weight > stored {
            return Ok(Some(Refusal::TooHeavy { stored }));
        }
        let claim = match self.line.holder(&ask.owner)? {
            Some(held) => Some(held),
            None => {
                let waiter = self.line.waiter(&ask.owner)?;
                waiter.filter(|waiter| waiter.expires > self.now)
            }
        };
        if let Some(claim) = claim.filter(|c| c.weight != share.weight) {
            return Ok(Some(Refusal::OtherWeight {
                claimed: claim.weight,
            }));
        }
        self.room.size = stored;
        Ok(None)
    }
}
