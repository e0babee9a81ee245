//! The decisions about claims: to a lock, a semaphore, a read-write lock, an election, a barrier.
//!
//! Invariants, which every decision keeps:
//! - the living holders never take more than the size, save after the size was made smaller;
//! - nobody who respects the line overtakes: whoever arrives while others wait goes behind them,
//!   even if there is room for the newcomer and not for the first in line;
//! - fences grow from grant to grant;
//! - what comes free goes to the first waiters alive, in the same step, and only those who get
//!   something are woken.

use crate::store::{
    Acquired, Ask, Holder, IfHeld, Kind, Occupancy, Order, Released, Renewal, Renewed, SameOwner,
    WakeAddress,
};
use crate::{Fence, Moment, Owner};

use super::line::{Line, Record};
use super::sitting::Sitting;

/// An outcome, and whom to tell of what happened on the way.
#[derive(Clone, Debug, PartialEq)]
pub struct Decided<T> {
    /// The answer to the caller.
    pub outcome: T,
    /// Those who were in line and hold now. The asker may be among them, and is then told twice.
    pub wakes: Vec<(WakeAddress, Fence)>,
    /// Whether something changed that those who watch want to know.
    pub news: bool,
}

/// Decides on a request for a share.
pub fn acquire<L: Line>(
    line: &mut L,
    now: Moment,
    ask: &Ask,
) -> Result<Decided<Acquired>, L::Error> {
    let mut sitting = Sitting::begin(line, ask.kind, now)?;
    sitting.settle()?;
    sitting.forget_size()?;
    if let Some(refusal) = sitting.refuses(ask)? {
        return sitting.end(Acquired::Refused(refusal));
    }
    sitting.room.until = now + ask.kind.remember_size();
    if let Some(held) = sitting.line.holder(&ask.owner)? {
        let fence = held.fence;
        sitting.line.set_holder(Record {
            since: held.since,
            // Never shorter than it was promised to the one who came before.
            expires: held.expires.max(now + ask.ttl),
            ..fresh(ask, fence, now)
        })?;
        sitting.news = true; // it may come with another note
        return sitting.end(granted(fence));
    }
    let waits = sitting.line.first()?.is_some();
    if sitting.fits(ask.share.weight) && (!waits || ask.share.order == Order::Barging) {
        if let Some(place) = sitting.line.waiter(&ask.owner)? {
            sitting.line.remove_waiter(&place)?;
        }
        let fence = sitting.line.next_fence()?;
        if waits {
            sitting.room.overtook = fence;
        }
        sitting.grant(fresh(ask, fence, now))?;
        return sitting.end(granted(fence));
    }
    match ask.if_held {
        IfHeld::Answer => {
            let first = sitting.line.first_to_expire()?;
            let first = first.expect("settling has checked that somebody takes what is taken");
            sitting.end(Acquired::Busy(describe(&first, now)))
        }
        IfHeld::LineUp => {
            let place = match sitting.line.waiter(&ask.owner)? {
                Some(known) => known.fence,
                None => sitting.line.next_fence()?,
            };
            sitting.line.set_waiter(fresh(ask, place, now))?;
            let held_for = sitting.look_after(&ask.owner, ask.share.weight)?;
            sitting.end(Acquired::Queued { place, held_for })
        }
    }
}

/// Whether a lock could be granted at once; if not, who has it.
pub fn is_free<L: Line>(
    line: &mut L,
    now: Moment,
) -> Result<Decided<Result<(), Option<Holder>>>, L::Error> {
    let mut sitting = Sitting::begin(line, Kind::Lock, now)?;
    sitting.settle()?;
    let holder = sitting.line.first_to_expire()?;
    let free = match holder {
        Some(holder) => Err(Some(describe(&holder, now))),
        None => Ok(()),
    };
    sitting.end(free)
}

/// Decides whether a claim lives on.
pub fn renew<L: Line>(
    line: &mut L,
    now: Moment,
    renewal: &Renewal,
) -> Result<Decided<Renewed>, L::Error> {
    let mut sitting = Sitting::begin(line, renewal.kind, now)?;
    sitting.settle()?;
    let kept = |record: Record| Record {
        ttl: renewal.ttl,
        expires: now + renewal.ttl,
        note: renewal.note.clone(),
        wake: renewal.wake,
        ..record
    };
    // A dead claim in line is nobody's in particular: whoever comes as its owner revives it.
    let ours = |record: &Record| {
        renewal.same_owner != SameOwner::Respect
            || record.wake == renewal.wake
            || record.expires <= now
    };
    let outcome = match sitting.line.holder(&renewal.owner)? {
        Some(holder) if ours(&holder) => {
            let fence = holder.fence;
            sitting.line.set_holder(kept(holder))?;
            Renewed::Held { fence }
        }
        Some(_) => Renewed::Gone,
        None => match sitting.line.waiter(&renewal.owner)? {
            Some(waiter) if ours(&waiter) => {
                let weight = waiter.weight;
                sitting.line.set_waiter(kept(waiter))?;
                Renewed::Waiting {
                    held_for: sitting.look_after(&renewal.owner, weight)?,
                }
            }
            _ => Renewed::Gone,
        },
    };
    sitting.end(outcome)
}

/// Gives up what `owner` has, unless a later claim of the same owner has it.
pub fn release<L: Line>(
    line: &mut L,
    kind: Kind,
    now: Moment,
    owner: &Owner,
    claim: Option<WakeAddress>,
) -> Result<Decided<Released>, L::Error> {
    let ours = |record: &Record| {
        let same = |claim| record.wake == claim || record.expires <= now;
        claim.is_none_or(same)
    };
    let mut sitting = Sitting::begin(line, kind, now)?;
    let holder = sitting.line.holder(owner)?.filter(|h| h.expires > now);
    let outcome = if let Some(holder) = holder {
        if ours(&holder) {
            sitting.remove(&holder)?;
            Released::WasHeld
        } else {
            Released::WasGone
        }
    } else if let Some(waiter) = sitting.line.waiter(owner)?.filter(ours) {
        // Out of line first: what is free is not for one who is leaving.
        sitting.line.remove_waiter(&waiter)?;
        Released::WasWaiting
    } else {
        Released::WasGone
    };
    sitting.settle()?;
    sitting.end(outcome)
}

/// Makes a held share smaller. False if there is none, or it is smaller already.
pub fn shrink<L: Line>(
    line: &mut L,
    kind: Kind,
    now: Moment,
    owner: &Owner,
    claim: WakeAddress,
    weight: u32,
) -> Result<Decided<bool>, L::Error> {
    let mut sitting = Sitting::begin(line, kind, now)?;
    sitting.settle()?;
    let held = sitting.line.holder(owner)?;
    let shrunk = match held {
        Some(held) if held.wake == claim && held.weight >= weight => {
            sitting.room.used = sitting
                .room
                .used
                .saturating_sub((held.weight - weight).into());
            sitting.line.set_holder(Record { weight, ..held })?;
            sitting.settle()?;
            true
        }
        _ => false,
    };
    sitting.end(shrunk)
}

/// Sets the size, and tells what it was.
pub fn resize<L: Line>(
    line: &mut L,
    kind: Kind,
    now: Moment,
    size: u32,
) -> Result<Decided<Option<u32>>, L::Error> {
    let mut sitting = Sitting::begin(line, kind, now)?;
    sitting.settle()?;
    sitting.forget_size()?;
    let before = sitting.room.size;
    sitting.room.size = size;
    sitting.room.until = now + kind.remember_size();
    sitting.settle()?;
    sitting.end((before != 0).then_some(before))
}

/// Takes the lock from its holder.
pub fn break_lock<L: Line>(line: &mut L, now: Moment) -> Result<Decided<Option<Holder>>, L::Error> {
    let mut sitting = Sitting::begin(line, Kind::Lock, now)?;
    let victim = sitting.line.first_to_expire()?.filter(|h| h.expires > now);
    if let Some(victim) = &victim {
        sitting.remove(victim)?;
    }
    sitting.settle()?;
    sitting.end(victim.map(|h| describe(&h, now)))
}

/// Looks, and changes nothing.
pub fn inspect<L: Line>(
    line: &mut L,
    kind: Kind,
    name: &str,
    now: Moment,
    most: usize,
) -> Result<Occupancy, L::Error> {
    let room = Sitting::begin(line, kind, now)?.room;
    let holders = line.holders(now, most)?;
    let used = room.used.saturating_sub(line.dead_weight(now)?);
    let waiters = line.waiters()?;
    // Of all that has a size to be agreed on, only a semaphore's is remembered when nobody needs it.
    let forgotten = kind != Kind::Lock && room.until <= now && used == 0 && waiters == 0;
    Ok(Occupancy {
        kind,
        name: name.to_owned(),
        size: if forgotten { 0 } else { room.size },
        used,
        waiters,
        holders: holders.iter().map(|r| describe(r, now)).collect(),
        open: room.open,
    })
}

fn fresh(ask: &Ask, fence: Fence, now: Moment) -> Record {
    Record {
        owner: ask.owner.clone(),
        fence,
        weight: ask.share.weight,
        ttl: ask.ttl,
        expires: now + ask.ttl,
        since: now,
        note: ask.note.clone(),
        wake: ask.wake,
    }
}

fn granted(fence: Fence) -> Acquired {
    Acquired::Granted {
        fence,
        recorded: true,
    }
}

fn describe(record: &Record, now: Moment) -> Holder {
    Holder {
        owner: record.owner.to_string(),
        fence: Some(record.fence),
        weight: record.weight,
        remaining: Some(record.expires.since(now)),
        age: Some(now.since(record.since)),
        note: record.note.as_deref().map(str::to_owned),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::line::MemoryLine;
    use super::*;
    use crate::Clock;
    use crate::name::Name;
    use crate::store::Share;

    fn ask(owner: &str, claim: u64) -> Ask {
        Ask {
            kind: Kind::Lock,
            share: Share::ONLY,
            name: Name::new("test", None, "stock").unwrap(),
            owner: Owner::new(owner).unwrap(),
            ttl: Duration::from_secs(30),
            if_held: IfHeld::LineUp,
            note: None,
            heal_missing_ttl: false,
            renewed: true,
            record_now: true,
            again: false,
            wake: WakeAddress { client: 1, claim },
        }
    }

    /// A process that was killed in line leaves its claim there, and nobody to withdraw it.
    #[test]
    fn a_dead_waiter_is_skipped_and_only_the_next_is_woken() {
        let now = Clock::manual().now();
        let mut line = MemoryLine::default();
        let mut last = 0;
        let mut draw = || {
            last += 1;
            Fence::new(last)
        };
        for (owner, claim) in [("holder", 1), ("dead", 2), ("next", 3), ("last", 4)] {
            let Ok(_) = acquire(&mut line.with(&mut draw), now, &ask(owner, claim));
        }
        line.expire(&Owner::new("dead").unwrap());
        let holder = Owner::new("holder").unwrap();
        let Ok(released) = release(&mut line.with(&mut draw), Kind::Lock, now, &holder, None);
        assert_eq!(released.outcome, Released::WasHeld);
        let next = WakeAddress {
            client: 1,
            claim: 3,
        };
        assert_eq!(released.wakes, [(next, Fence::new(3))]);
        let Ok(seen) = inspect(&mut line.with(&mut draw), Kind::Lock, "stock", now, 1);
        assert_eq!(seen.holders[0].owner, "next");
        assert_eq!(seen.waiters, 1, "the dead one is gone, the last one waits");
    }
    /// A holder and the first in line may die together, as tasks of one process do: that costs the others one
    /// ttl, not one for each.
    #[test]
    fn who_died_in_line_holds_no_longer_than_it_would_have_waited() {
        let start = Clock::manual().now();
        let later = |secs| start + Duration::from_secs(secs);
        let mut line = MemoryLine::default();
        let mut last = 0;
        let mut draw = || {
            last += 1;
            Fence::new(last)
        };
        for (owner, claim, at) in [("dead", 1, 0), ("dead-too", 2, 1), ("alive", 3, 2)] {
            let Ok(_) = acquire(&mut line.with(&mut draw), later(at), &ask(owner, claim));
        }
        let alive = Renewal {
            kind: Kind::Lock,
            name: Name::new("test", None, "stock").unwrap(),
            owner: Owner::new("alive").unwrap(),
            fence: Fence::new(3),
            ttl: Duration::from_secs(30),
            age: Duration::ZERO,
            note: None,
            wake: ask("alive", 3).wake,
            same_owner: SameOwner::Impossible,
            write_anew: false,
            renewed: true,
        };
        let mut beat = |at| {
            let Ok(renewed) = renew(&mut line.with(&mut draw), later(at), &alive);
            renewed.outcome
        };
        assert!(matches!(beat(20), Renewed::Waiting { .. }));
        let before = beat(30);
        assert!(
            matches!(before, Renewed::Waiting { .. }),
            "handed to the one before it"
        );
        assert!(matches!(beat(31), Renewed::Held { .. }));
    }
}
