//! Who keeps whom out of a room.

use super::{MOST_WATCHED, Seat, View, Wait, is_certain};
use windlass_core::store::Kind;

impl View {
    /// Those who must stay for nobody who waits to be let in: the first who waits, since those after it
    /// wait for that one, and holders enough to leave it no room. Nothing is written when they go, so what
    /// is decided while somebody waits must make sure of them. In a large room, nobody need be looked at.
    pub(crate) fn keeps_out(&self, kind: Kind) -> Vec<&Seat> {
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
    /// take room. The last who came before it are named first, since they are likely to stay the longest; or the
    /// heaviest, if these would be many.
    ///
    /// Of a large room, two of those who wait before it, if there are so many: they are let in by writing it down, and
    /// it cannot come in before them. One is right before it. The other is half-way to the first: so those behind
    /// one that has died hear of room all the same, and if there is much room at once, all of them soon do.
    ///
    /// `None` if that would be many, or if something else keeps it out.
    pub(crate) fn kept_out_by(&self, kind: Kind, wait: Wait) -> Option<Vec<&Seat>> {
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
        let waits =
            |(seat, held): &(&Seat, bool)| !held && before(seat) && seat.record.weight <= size;
        let line = self.standing().filter(waits).map(|(seat, _)| seat);
        let line: Vec<&Seat> = line.collect();
        if self.is_large(kind) && line.len() >= 2 {
            let last = line.len() - 1;
            return Some(vec![line[last / 2], line[last]]);
        }
        let mut all: Vec<&Seat> = ahead.chain(certain).collect();
        let few = |seats: &[&'_ Seat]| {
            let mut taken = u64::from(wait.weight);
            let enough = |seat: &&Seat| {
                taken += u64::from(seat.record.weight);
                taken > u64::from(size)
            };
            let last = seats.iter().take(MOST_WATCHED).position(enough)?;
            Some(last + 1)
        };
        let mut count = few(&all);
        if count.is_none() {
            all.sort_by_key(|seat| std::cmp::Reverse(seat.record.weight));
            count = few(&all);
        }
        all.truncate(count?);
        Some(all)
    }

    /// Those who may not stay when the size changes. Some came no later than that and do not hold: they were
    /// too heavy, and in nobody's way. Others are too heavy now, so that whoever came after them may have been
    /// let in, and is gone: if they fitted again, their fences would be lower than that one's.
    pub(crate) fn left_out(&self, kind: Kind, through: Option<i64>) -> impl Iterator<Item = &Seat> {
        let size = self.size(kind).unwrap_or(0);
        let passed_over = move |seat: &Seat| {
            seat.record.weight > size || through.is_some_and(|through| seat.created() <= through)
        };
        let seats = self
            .standing()
            .filter(move |(seat, held)| !held && passed_over(seat));
        seats.map(|(seat, _)| seat)
    }

    /// Of a room of which only a few claims were read: whether they alone leave no room for one who came
    /// after them.
    pub(crate) fn is_full_for(&self, size: u32, weight: u32) -> bool {
        let ahead = self.seats.iter().map(|seat| seat.record.weight);
        let ahead: u64 = ahead.filter(|weight| *weight <= size).map(u64::from).sum();
        ahead + u64::from(weight) > u64::from(size)
    }
}
