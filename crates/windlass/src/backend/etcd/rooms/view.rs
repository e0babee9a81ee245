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

use std::collections::HashMap;

use crate::backend::etcd::record::{Record, Room};
use crate::backend::etcd::store::foreign;
use crate::backend::etcd::wire::KeyValue;
use crate::backend::{Ask, Kind, Refusal};
use crate::error::Result;
use crate::lease::Fence;

/// A semaphore of this size is large. One that is smaller has fewer holders than that to make sure of, which
/// leaves some of [`MOST_OPS`](crate::backend::etcd::txn::MOST_OPS) for other conditions.
const LARGE: u32 = 100;

/// The most keys that are watched for one who waits; if it took more, all of the room is.
const MOST_WATCHED: usize = 64;

/// A room, as it was at one revision.
#[derive(Clone, Debug, Default)]
pub(in crate::backend::etcd) struct View {
    pub(in crate::backend::etcd) revision: i64,
    pub(in crate::backend::etcd) room: Option<Room>,
    /// The revision at which what is stored about the room was last written; 0 if nothing is.
    pub(in crate::backend::etcd) room_modified: i64,
    /// The oldest first.
    pub(in crate::backend::etcd) seats: Vec<Seat>,
    /// Which of them hold.
    held: Vec<bool>,
    by_key: HashMap<Vec<u8>, usize>,
}

/// One claim.
#[derive(Clone, Debug)]
pub(in crate::backend::etcd) struct Seat {
    pub(in crate::backend::etcd) owner: String,
    pub(in crate::backend::etcd) record: Record,
    pub(in crate::backend::etcd) kv: KeyValue,
}

/// One who waits.
#[derive(Clone, Copy, Debug)]
pub(in crate::backend::etcd) struct Wait {
    /// The revision at which its key was made.
    pub(in crate::backend::etcd) created: i64,
    pub(in crate::backend::etcd) weight: u32,
}

impl Seat {
    pub(in crate::backend::etcd) fn wait(&self) -> Wait {
        Wait {
            created: self.created(),
            weight: self.record.weight,
        }
    }

    pub(in crate::backend::etcd) fn created(&self) -> i64 {
        self.kv.create_revision
    }

    pub(in crate::backend::etcd) fn fence(&self) -> Fence {
        Fence::new(self.record.fence.unwrap_or(self.created() as u64))
    }
}

impl View {
    /// From all the keys under the room's prefix.
    pub(in crate::backend::etcd) fn read(
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
                    let owner = crate::backend::etcd::keys::unescape(owner);
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
    pub(in crate::backend::etcd) fn size(&self, kind: Kind) -> Option<u32> {
        let stored = match kind {
            Kind::Semaphore => self.room,
            // A barrier's is remembered no longer than its round lasts.
            _ => self.room.filter(|_| self.round().is_some()),
        };
        let stored = stored.map(|room| room.size).filter(|size| *size > 0);
        stored.or_else(|| self.seats.first().map(|seat| seat.record.size))
    }

    /// The round of a barrier that is open: until all who were in it have gone.
    pub(in crate::backend::etcd) fn round(&self) -> Option<Fence> {
        let room = self.room?;
        let through = room.through?;
        let some_left = self
            .seats
            .first()
            .is_some_and(|seat| seat.created() <= through);
        room.round().filter(|_| some_left)
    }

    /// Whether the seat at that place holds.
    pub(in crate::backend::etcd) fn holds(&self, at: usize) -> bool {
        self.held[at]
    }

    /// The seats, and whether they hold.
    pub(in crate::backend::etcd) fn standing(&self) -> impl Iterator<Item = (&Seat, bool)> {
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
    pub(in crate::backend::etcd) fn used(&self) -> u64 {
        let seats = self.standing().filter(|(_, held)| *held);
        seats.map(|(seat, _)| u64::from(seat.record.weight)).sum()
    }

    /// Whether anybody waits who can still be served.
    pub(in crate::backend::etcd) fn has_waiters(&self, kind: Kind) -> bool {
        let size = self.size(kind).unwrap_or(0);
        let waits = |(seat, held): (&Seat, bool)| !held && seat.record.weight <= size;
        self.standing().any(waits)
    }

    /// Whether so much more would fit, if nobody waited.
    pub(in crate::backend::etcd) fn fits(&self, size: u32, weight: u32) -> bool {
        self.round().is_none() && self.used() + u64::from(weight) <= u64::from(size)
    }

    pub(in crate::backend::etcd) fn seat(&self, key: &str) -> Option<(usize, &Seat)> {
        let at = *self.by_key.get(key.as_bytes())?;
        Some((at, &self.seats[at]))
    }

    /// Whether somebody has that for a fence, or may come to have it.
    pub(in crate::backend::etcd) fn is_taken(&self, revision: i64) -> bool {
        let fence = Fence::new(revision as u64);
        self.seats
            .iter()
            .any(|seat| seat.fence() == fence || seat.created() == revision)
    }

    /// Whether a waiter needs a higher fence than its place: somebody has overtaken it.
    pub(in crate::backend::etcd) fn was_overtaken(&self, seat: &Seat) -> bool {
        let overtook = self.room.and_then(|room| room.overtook);
        seat.record.fence.is_none() && overtook.is_some_and(|at| seat.created() <= at)
    }

    /// Of a room of which only a few claims were read: whether they alone leave no room for one who came
    /// after them.
    pub(in crate::backend::etcd) fn is_full_for(&self, size: u32, weight: u32) -> bool {
        let ahead = self.seats.iter().map(|seat| seat.record.weight);
        let ahead: u64 = ahead.filter(|weight| *weight <= size).map(u64::from).sum();
        ahead + u64::from(weight) > u64::from(size)
    }

    /// Why a request cannot be granted now or later.
    pub(in crate::backend::etcd) fn refuses(&self, ask: &Ask, key: &str) -> Option<Refusal> {
        use crate::backend::IfOtherSize;
        let share = ask.share;
        let stored = self.size(ask.kind).unwrap_or(share.size);
        if stored != share.size && share.if_other_size == IfOtherSize::Refuse {
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
    pub(in crate::backend::etcd) fn is_large(&self, kind: Kind) -> bool {
        kind == Kind::Semaphore && self.size(kind).is_some_and(is_large)
    }

    /// Whether one that holds by this view must write that down before it may go by it.
    pub(in crate::backend::etcd) fn must_be_written(&self, kind: Kind, seat: &Seat) -> bool {
        if seat.record.admitted {
            return false;
        }
        // One that has just come and fits has been written down by that.
        let waited = seat.created() < self.revision;
        let certain = |through: i64| seat.created() <= through;
        let is_certain = self.room.and_then(|room| room.through).is_some_and(certain);
        self.was_overtaken(seat) || (self.is_large(kind) && waited && !is_certain)
    }

    /// Those who must stay for nobody who waits to be let in: the first who waits, since those after it
    /// wait for that one, and holders enough to leave it no room. Nothing is written when they go, so what
    /// is decided while somebody waits must make sure of them. In a large room, nobody need be looked at.
    pub(in crate::backend::etcd) fn keeps_out(&self, kind: Kind) -> Vec<&Seat> {
        let size = self.size(kind).unwrap_or(0);
        let waits = |(seat, held): &(&Seat, bool)| !held && seat.record.weight <= size;
        let first = self.standing().find(waits);
        let Some((first, _)) = first.filter(|_| !self.is_large(kind)) else {
            return Vec::new();
        };
        let mut holders: Vec<&Seat> = self
            .standing()
            .filter_map(|(seat, held)| held.then_some(seat))
            .collect();
        holders.sort_by_key(|seat| std::cmp::Reverse(seat.record.weight));
        let mut taken = u64::from(first.record.weight);
        let mut needed = vec![first];
        for holder in holders {
            if taken > u64::from(size) {
                break;
            }
            taken += u64::from(holder.record.weight);
            needed.push(holder);
        }
        needed
    }

    /// Some who keep one out that waits, for as long as they stay as they are and the size does: those who came
    /// before it either hold, or wait, and then nobody behind them is let in; those who hold whatever else is there
    /// take room. The last who came before it are named first, since they are likely to stay the longest.
    /// `None` if that would be many, or if something else keeps it out.
    pub(in crate::backend::etcd) fn kept_out_by(
        &self,
        kind: Kind,
        wait: Wait,
    ) -> Option<Vec<&Seat>> {
        if !matches!(kind, Kind::Semaphore | Kind::ReadWrite) {
            return None; // a barrier opens and closes for all
        }
        let size = self.size(kind).filter(|size| wait.weight <= *size)?;
        let through = self.room.and_then(|room| room.through);
        let before = |seat: &&Seat| seat.created() < wait.created;
        let ahead = self.seats.iter().rev().filter(before);
        let behind = self
            .seats
            .iter()
            .filter(|seat| seat.created() > wait.created);
        let certain = behind.filter(|seat| is_certain(seat, through));
        // One that can never fit does not stand in the way.
        let ahead = ahead.filter(|seat| seat.record.weight <= size);
        let mut taken = u64::from(wait.weight);
        let mut out = Vec::new();
        for seat in ahead.chain(certain) {
            taken += u64::from(seat.record.weight);
            out.push(seat);
            if taken > u64::from(size) {
                return Some(out);
            }
            if out.len() == MOST_WATCHED {
                return None;
            }
        }
        None
    }

    /// Those who may not stay when the size changes. Some came no later than that and do not hold: they were
    /// too heavy, and in nobody's way. Others are too heavy now, so that whoever came after them may have been
    /// let in, and is gone: if they fitted again, their fences would be lower than that one's.
    pub(in crate::backend::etcd) fn left_out(
        &self,
        kind: Kind,
        through: Option<i64>,
    ) -> impl Iterator<Item = &Seat> {
        let size = self.size(kind).unwrap_or(0);
        let passed_over = move |seat: &Seat| {
            seat.record.weight > size || through.is_some_and(|through| seat.created() <= through)
        };
        let seats = self
            .standing()
            .filter(move |(seat, held)| !held && passed_over(seat));
        seats.map(|(seat, _)| seat)
    }

    /// The last of those that hold and were not written down, for [`Room::through`].
    pub(in crate::backend::etcd) fn held_through(&self) -> Option<i64> {
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
pub(in crate::backend::etcd) fn is_large(size: u32) -> bool {
    size >= LARGE
}

#[cfg(test)]
mod tests {
    use super::*;

    fn view(size: u32, seats: &[(i64, u32)]) -> View {
        let seat = |&(created, weight): &(i64, u32)| Seat {
            owner: created.to_string(),
            record: Record {
                weight,
                size,
                ..Record::default()
            },
            kv: KeyValue {
                create_revision: created,
                ..KeyValue::default()
            },
        };
        let mut view = View {
            seats: seats.iter().map(seat).collect(),
            room: Some(Room::of_size(size)),
            ..View::default()
        };
        view.held = view.who_holds(SEM);
        view
    }

    const SEM: Kind = Kind::Semaphore;

    #[test]
    fn the_oldest_hold_as_many_as_fit_and_nobody_overtakes() {
        let room = view(3, &[(1, 1), (2, 1), (3, 2), (4, 1)]);
        assert_eq!(room.who_holds(SEM), [true, true, false, false]);
    }

    #[test]
    fn one_that_can_never_fit_is_in_nobodys_way() {
        let room = view(3, &[(1, 4), (2, 3)]);
        assert_eq!(room.who_holds(SEM), [false, true]);
    }

    #[test]
    fn those_who_held_when_it_shrank_hold_on() {
        let mut room = view(2, &[(1, 1), (2, 1), (3, 1), (4, 1)]);
        room.room = Some(Room {
            through: Some(3),
            ..Room::of_size(2)
        });
        assert_eq!(room.who_holds(SEM), [true, true, true, false]);
        room.seats.remove(0);
        assert_eq!(room.who_holds(SEM), [true, true, false]);
        room.seats.remove(0);
        assert_eq!(room.who_holds(SEM), [true, true]);
    }

    #[test]
    fn one_who_barged_in_takes_room() {
        let mut room = view(3, &[(1, 2), (2, 2), (3, 1)]);
        room.seats[2].record.admitted = true;
        assert_eq!(room.who_holds(SEM), [true, false, true]);
        room.seats.remove(0);
        assert_eq!(room.who_holds(SEM), [true, true]);
    }

    #[test]
    fn who_keeps_the_first_out_is_known() {
        let kept = |size, seats: &[(i64, u32)]| -> Vec<i64> {
            let room = view(size, seats);
            let kept = room.keeps_out(SEM);
            kept.into_iter().map(Seat::created).collect()
        };
        assert!(kept(4, &[(1, 1), (2, 3)]).is_empty());
        // 3 waits for as long as 2 is there, whatever becomes of 1; and 4 for as long as 3 is.
        assert_eq!(kept(4, &[(1, 1), (2, 2), (3, 3), (4, 1)]), [3, 2]);
        assert_eq!(kept(4, &[(1, 1), (2, 2), (3, 2), (4, 1)]), [3, 2, 1]);
        let crowd: Vec<(i64, u32)> = (1..=99).map(|n| (n, 1)).chain([(100, 99)]).collect();
        assert_eq!(kept(99, &crowd), [100, 1]);
        // As many as it can be: they fit into a transaction.
        let crowd: Vec<(i64, u32)> = (1..=100).map(|n| (n, 1)).collect();
        assert_eq!(kept(99, &crowd).len(), 100);
    }

    #[test]
    fn one_who_waits_watches_no_more_than_keeps_it_out() {
        let kept = |size, seats: &[(i64, u32)], at: usize| -> Option<Vec<i64>> {
            let room = view(size, seats);
            let kept = room.kept_out_by(SEM, room.seats[at].wait())?;
            Some(kept.into_iter().map(Seat::created).collect())
        };
        // Of three who hold and many who wait: as many as there are shares, right before it.
        let crowd: Vec<(i64, u32)> = (1..=50).map(|n| (n, 1)).collect();
        assert_eq!(kept(3, &crowd, 49), Some(vec![49, 48, 47]));
        assert_eq!(kept(3, &crowd, 3), Some(vec![3, 2, 1]));
        // A writer is kept out by any reader, and a reader by any writer.
        assert_eq!(kept(9, &[(1, 1), (2, 1), (3, 9)], 2), Some(vec![2]));
        assert_eq!(kept(9, &[(1, 9), (2, 1), (3, 1)], 2), Some(vec![2, 1]));
        // One that is too heavy is in nobody's way.
        assert_eq!(kept(2, &[(1, 2), (2, 3), (3, 1)], 2), Some(vec![1]));
        let crowd: Vec<(i64, u32)> = (1..=200).map(|n| (n, 1)).collect();
        assert_eq!(kept(99, &crowd, 150), None, "too many to be watched");
        // One who barged in takes room, though it came later.
        let mut room = view(2, &[(2, 2), (3, 1)]);
        room.seats[1].record.admitted = true;
        let out = room.kept_out_by(SEM, room.seats[0].wait()).unwrap();
        assert_eq!(out[0].created(), 3);
        assert!(
            room.kept_out_by(Kind::Barrier, room.seats[0].wait())
                .is_none()
        );
    }

    #[test]
    fn into_a_large_room_whoever_waited_is_let_in_by_writing() {
        let must = |size, revision, kind| {
            let mut room = view(size, &[(1, 1), (2, 1)]);
            room.revision = revision;
            room.must_be_written(kind, &room.seats[1])
        };
        assert!(must(100, 3, SEM));
        assert!(!must(99, 3, SEM));
        assert!(!must(100, 2, SEM), "it fits as it comes");
        assert!(!must(100, 3, Kind::ReadWrite));
        let mut room = view(100, &[(1, 1), (2, 1)]);
        room.revision = 3;
        room.room = Some(Room {
            through: Some(1),
            ..Room::of_size(100)
        });
        assert!(!room.must_be_written(SEM, &room.seats[0]), "certain anyway");
        assert!(room.must_be_written(SEM, &room.seats[1]));
        room.seats[1].record.admitted = true;
        assert!(!room.must_be_written(SEM, &room.seats[1]));
    }

    #[test]
    fn one_that_was_too_heavy_does_not_come_to_hold_by_a_resize() {
        let room = view(3, &[(1, 2), (2, 4), (3, 1)]);
        assert_eq!(room.held, [true, false, true]);
        let out: Vec<i64> = room
            .left_out(SEM, room.held_through())
            .map(Seat::created)
            .collect();
        assert_eq!(out, [2]);
    }

    #[test]
    fn an_open_barrier_lets_nobody_in_until_all_have_gone() {
        let mut room = view(2, &[(1, 1), (2, 1), (3, 1), (4, 1)]);
        room.room = Some(Room {
            through: Some(2),
            open: Some(9),
            ..Room::of_size(2)
        });
        assert_eq!(room.who_holds(Kind::Barrier), [true, true, false, false]);
        room.seats.remove(0);
        assert_eq!(room.who_holds(Kind::Barrier), [true, false, false]);
        assert!(room.round().is_some());
        room.seats.remove(0);
        assert!(room.round().is_none());
        assert_eq!(room.who_holds(Kind::Barrier), [true, true]);
    }
}
