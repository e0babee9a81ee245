//! Who holds in a room: a semaphore, a read-write lock or a barrier.
//!
//! Nothing is written when a share passes from one to the next. Who holds follows from what is there: the
//! oldest claims, as many as fit. So whoever leaves, in whatever way, has handed on with that.
//!
//! What makes that safe: a claim that holds goes on holding until its own key is gone, whatever else happens.
//! Those after it cannot push it out, and those before it only leave. When the size is made smaller, those who
//! held are written down; so are those who barge in, who do so only if nobody was let in since they looked.
//!
//! How they make sure of that: whoever leaves writes nothing, so it takes a look at those who must still be there
//! for nobody to have been let in ([`View::keeps_out`]). In a large room these would be more than a transaction can
//! look at. There, whoever has waited is let in by writing it down, as one who barges in is: so nobody was let in
//! if nothing was written.

mod out;
#[cfg(test)]
mod tests;

use std::collections::HashMap;

use crate::record::{Record, Room};
use crate::store::foreign;
use crate::wire::KeyValue;
use windlass_core::Fence;
use windlass_core::error::Result;
use windlass_core::store::{AcquireRequest, Kind, Refusal};

/// The most keys that are watched for one who waits, unless all of the room is.
const MOST_WATCHED: usize = 64;

/// A semaphore of this size is large: those who keep one out of it may be too many to be watched. One that is
/// smaller has fewer holders to make sure of, too, which leaves some of
/// [`MOST_OPS`](crate::txn::MOST_OPS) for other conditions.
const LARGE: u32 = MOST_WATCHED as u32 + 1;

/// A room, as it was at one revision.
#[derive(Clone, Debug, Default)]
pub(crate) struct View {
    pub(crate) revision: i64,
    pub(crate) room: Option<Room>,
    /// The revision at which what is stored about the room was last written; 0 if nothing is.
    pub(crate) room_modified: i64,
    /// The oldest first.
    pub(crate) seats: Vec<Seat>,
    /// Which of them hold.
    held: Vec<bool>,
    by_key: HashMap<Vec<u8>, usize>,
}

/// One claim.
#[derive(Clone, Debug)]
pub(crate) struct Seat {
    pub(crate) owner: String,
    pub(crate) record: Record,
    pub(crate) kv: KeyValue,
}

/// One who waits.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wait {
    /// The revision at which its key was made.
    pub(crate) created: i64,
    pub(crate) weight: u32,
}

impl Seat {
    pub(crate) fn wait(&self) -> Wait {
        Wait {
            created: self.created(),
            weight: self.record.weight,
        }
    }

    pub(crate) fn created(&self) -> i64 {
        self.kv.create_revision
    }

    pub(crate) fn fence(&self) -> Fence {
        Fence::new(self.record.fence.unwrap_or(self.created() as u64))
    }
}

impl View {
    /// From all the keys under the room's prefix.
    pub(crate) fn read(
        kind: Kind,
        prefix: &str,
        revision: i64,
        kvs: Vec<KeyValue>,
    ) -> Result<View> {
        let mut view = View {
            revision,
            ..View::default()
        };
        for kv in kvs {
            let rest = kv.key.get(prefix.len()..).unwrap_or_default();
            let rest = String::from_utf8_lossy(rest).into_owned();
            match rest.strip_prefix(':') {
                Some(owner) => {
                    let record = Record::read(&kv.value).ok_or_else(|| foreign(&kv.key))?;
                    let owner = crate::keys::unescape(owner);
                    view.seats.push(Seat { owner, record, kv });
                }
                None => {
                    let room = Room::read(&kv.value).ok_or_else(|| foreign(&kv.key))?;
                    view.room = Some(room);
                    view.room_modified = kv.mod_revision;
                }
            }
        }
        view.seats.sort_by_key(Seat::created);
        let keys = view.seats.iter().map(|seat| seat.kv.key.clone());
        view.by_key = keys.zip(0..).collect();
        view.held = view.who_holds(kind);
        Ok(view)
    }

    /// The size, if anybody has told it lately.
    pub(crate) fn size(&self, kind: Kind) -> Option<u32> {
        let stored = match kind {
            Kind::Semaphore => self.room,
            // A barrier's is remembered no longer than its round lasts.
            _ => self.room.filter(|_| self.round().is_some()),
        };
        let stored = stored.map(|room| room.size).filter(|size| *size > 0);
        stored.or_else(|| self.seats.first().map(|seat| seat.record.size))
    }

    /// The round of a barrier that is open: until all who were in it have gone.
    pub(crate) fn round(&self) -> Option<Fence> {
        let room = self.room?;
        let through = room.through?;
        let some_left = self
            .seats
            .first()
            .is_some_and(|seat| seat.created() <= through);
        room.round().filter(|_| some_left)
    }

    /// Whether the seat at that place holds.
    pub(crate) fn holds(&self, at: usize) -> bool {
        self.held[at]
    }

    /// The seats, and whether they hold.
    pub(crate) fn standing(&self) -> impl Iterator<Item = (&Seat, bool)> {
        self.seats.iter().zip(self.held.iter().copied())
    }

    /// Which of the seats hold, in their order.
    fn who_holds(&self, kind: Kind) -> Vec<bool> {
        let size = u64::from(self.size(kind).unwrap_or(0));
        let through = match kind {
            Kind::Barrier => self.round().and(self.room).and_then(|room| room.through),
            _ => self.room.and_then(|room| room.through),
        };
        let certain = |seat: &Seat| is_certain(seat, through);
        let weight = |seat: &Seat| u64::from(seat.record.weight);
        let mut used: u64 = self
            .seats
            .iter()
            .filter(|seat| certain(seat))
            .map(weight)
            .sum();
        let mut full = self.round().is_some();
        self.seats
            .iter()
            .map(|seat| {
                if certain(seat) {
                    return true;
                }
                // One that can never fit does not stand in the way.
                if full || weight(seat) > size {
                    return false;
                }
                full = used + weight(seat) > size;
                if !full {
                    used += weight(seat);
                }
                !full
            })
            .collect()
    }

    /// How much is taken.
    pub(crate) fn used(&self) -> u64 {
        let seats = self.standing().filter(|(_, held)| *held);
        seats.map(|(seat, _)| u64::from(seat.record.weight)).sum()
    }

    /// Whether anybody waits who can still be served.
    pub(crate) fn has_waiters(&self, kind: Kind) -> bool {
        let size = self.size(kind).unwrap_or(0);
        let waits = |(seat, held): (&Seat, bool)| !held && seat.record.weight <= size;
        self.standing().any(waits)
    }

    /// Whether so much more would fit, if nobody waited.
    pub(crate) fn fits(&self, size: u32, weight: u32) -> bool {
        self.round().is_none() && self.used() + u64::from(weight) <= u64::from(size)
    }

    pub(crate) fn seat(&self, key: &str) -> Option<(usize, &Seat)> {
        let at = *self.by_key.get(key.as_bytes())?;
        Some((at, &self.seats[at]))
    }

    /// Whether somebody has that for a fence, or may come to have it.
    pub(crate) fn is_taken(&self, revision: i64) -> bool {
        let fence = Fence::new(revision as u64);
        self.seats
            .iter()
            .any(|seat| seat.fence() == fence || seat.created() == revision)
    }

    /// Whether a waiter needs a higher fence than its place: somebody has overtaken it.
    pub(crate) fn was_overtaken(&self, seat: &Seat) -> bool {
        let overtook = self.room.and_then(|room| room.overtook);
        seat.record.fence.is_none() && overtook.is_some_and(|at| seat.created() <= at)
    }

    /// Why a request cannot be granted now or later.
    pub(crate) fn refuses(&self, ask: &AcquireRequest, key: &str) -> Option<Refusal> {
        use windlass_core::store::OnSizeMismatch;
        let share = ask.share;
        let stored = self.size(ask.kind).unwrap_or(share.size);
        if stored != share.size && share.on_size_mismatch == OnSizeMismatch::Refuse {
            return Some(Refusal::OtherSize { stored });
        }
        if share.weight > stored {
            return Some(Refusal::TooHeavy { stored });
        }
        let claimed = self.seat(key)?.1.record.weight;
        (claimed != share.weight).then_some(Refusal::OtherWeight { claimed })
    }

    /// Whether whoever waits is let in by writing it down. Only a semaphore's size changes, and only there
    /// anybody barges in.
    pub(crate) fn is_large(&self, kind: Kind) -> bool {
        kind == Kind::Semaphore && self.size(kind).is_some_and(is_large)
    }

    /// Whether one that holds by this view must write that down before it may go by it.
    pub(crate) fn must_be_written(&self, kind: Kind, seat: &Seat) -> bool {
        if seat.record.admitted {
            return false;
        }
        // One that has just come and fits has been written down by that.
        let waited = seat.created() < self.revision;
        let certain = |through: i64| seat.created() <= through;
        let is_certain = self.room.and_then(|room| room.through).is_some_and(certain);
        self.was_overtaken(seat) || (self.is_large(kind) && waited && !is_certain)
    }

    /// The last of those that hold and were not written down, for [`Room::through`].
    pub(crate) fn held_through(&self) -> Option<i64> {
        let held = self
            .standing()
            .filter(|(seat, held)| *held && !seat.record.admitted);
        held.map(|(seat, _)| seat.created()).max()
    }
}

/// Whether it holds whatever else is there: it was let in by writing that down, or held when the size changed.
fn is_certain(seat: &Seat, through: Option<i64>) -> bool {
    seat.record.admitted || through.is_some_and(|through| seat.created() <= through)
}

/// Whether a semaphore of that size is large.
pub(crate) fn is_large(size: u32) -> bool {
    size >= LARGE
}
