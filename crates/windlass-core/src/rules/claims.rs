//! The decisions about claims: to a lock, a semaphore, a read-write lock, an election, a barrier.
//!
//! Invariants, which every decision keeps:
//! - the living holders never take more than the size, save after the size was made smaller;
//! - nobody who respects the queue overtakes: whoever arrives while others wait goes behind them,
//!   even if there is pool for the newcomer and not for the first in queue;
//! - fences grow from grant to grant;
//! - what comes free goes to the first waiters alive, in the same step, and only those who get
//!   something are woken.

use crate::store::{
    AcquireRequest, Acquired, Holder, Kind, Occupancy, OnBusy, Order, Released, Renewal, Renewed,
    SameOwner, WakeAddress,
};
use crate::{Fence, Moment, Owner};

use super::transaction::ClaimTransaction;
use super::wait_queue::{ClaimRecord, WaitQueue};

/// An outcome, and whom to tell of what happened on the way.
#[derive(Clone, Debug, PartialEq)]
pub struct Decided<T> {
    /// The answer to the caller.
    pub outcome: T,
    /// Those who were in queue and hold now. The asker may be among them, and is then told twice.
    pub wakes: Vec<(WakeAddress, Fence)>,
    /// Whether something changed that those who watch want to know.
    pub notification: bool,
}

/// Decides on a request for a share.
pub fn acquire<L: WaitQueue>(
    queue: &mut L,
    now: Moment,
    ask: &AcquireRequest,
) -> Result<Decided<Acquired>, L::Error> {
    let mut tx = ClaimTransaction::begin(queue, ask.kind, now)?;
    tx.expire_and_grant()?;
    tx.forget_size()?;
    if let Some(refusal) = tx.refuses(ask)? {
        return tx.end(Acquired::Refused(refusal));
    }
    tx.pool.until = now + ask.kind.size_retention();
    if let Some(held) = tx.queue.holder(&ask.owner)? {
        let fence = held.fence;
        tx.queue.set_holder(ClaimRecord {
            since: held.since,
            // Never shorter than it was promised to the one who came before.
            expires: held.expires.max(now + ask.ttl),
            ..fresh(ask, fence, now)
        })?;
        tx.notification = true; // it may come with another note
        return tx.end(granted(fence));
    }
    let waits = tx.queue.first()?.is_some();
    if tx.fits(ask.share.weight) && (!waits || ask.share.order == Order::Barging) {
        if let Some(ticket) = tx.queue.waiter(&ask.owner)? {
            tx.queue.remove_waiter(&ticket)?;
        }
        let fence = tx.queue.next_fence()?;
        if waits {
            tx.pool.overtook = fence;
        }
        tx.grant(fresh(ask, fence, now))?;
        return tx.end(granted(fence));
    }
    match ask.on_busy {
        OnBusy::Return => {
            let first = tx.queue.first_to_expire()?;
            let first = first.expect("settling has checked that somebody takes what is taken");
            tx.end(Acquired::Busy(describe(&first, now)))
        }
        OnBusy::Enqueue => {
            let ticket = match tx.queue.waiter(&ask.owner)? {
                Some(known) => known.fence,
                None => tx.queue.next_fence()?,
            };
            tx.queue.set_waiter(fresh(ask, ticket, now))?;
            let held_for = tx.recheck_after(&ask.owner, ask.share.weight)?;
            tx.end(Acquired::Queued { ticket, held_for })
        }
    }
}

/// Whether a lock could be granted at once; if not, who has it.
pub fn is_free<L: WaitQueue>(
    queue: &mut L,
    now: Moment,
) -> Result<Decided<Result<(), Option<Holder>>>, L::Error> {
    let mut tx = ClaimTransaction::begin(queue, Kind::Lock, now)?;
    tx.expire_and_grant()?;
    let holder = tx.queue.first_to_expire()?;
    let free = match holder {
        Some(holder) => Err(Some(describe(&holder, now))),
        None => Ok(()),
    };
    tx.end(free)
}

/// Decides whether a claim lives on.
pub fn renew<L: WaitQueue>(
    queue: &mut L,
    now: Moment,
    renewal: &Renewal,
) -> Result<Decided<Renewed>, L::Error> {
    let mut tx = ClaimTransaction::begin(queue, renewal.kind, now)?;
    tx.expire_and_grant()?;
    let kept = |record: ClaimRecord| ClaimRecord {
        ttl: renewal.ttl,
        expires: now + renewal.ttl,
        note: renewal.note.clone(),
        wake: renewal.wake,
        ..record
    };
    // A dead claim in queue is nobody's in particular: whoever comes as its owner revives it.
    let ours = |record: &ClaimRecord| {
        renewal.same_owner != SameOwner::Respect
            || record.wake == renewal.wake
            || record.expires <= now
    };
    let outcome = match tx.queue.holder(&renewal.owner)? {
        Some(holder) if ours(&holder) => {
            let fence = holder.fence;
            tx.queue.set_holder(kept(holder))?;
            Renewed::Held { fence }
        }
        Some(_) => Renewed::Gone,
        None => match tx.queue.waiter(&renewal.owner)? {
            Some(waiter) if ours(&waiter) => {
                let weight = waiter.weight;
                tx.queue.set_waiter(kept(waiter))?;
                Renewed::Waiting {
                    held_for: tx.recheck_after(&renewal.owner, weight)?,
                }
            }
            _ => Renewed::Gone,
        },
    };
    tx.end(outcome)
}

/// Gives up what `owner` has, unless a later claim of the same owner has it.
pub fn release<L: WaitQueue>(
    queue: &mut L,
    kind: Kind,
    now: Moment,
    owner: &Owner,
    claim: Option<WakeAddress>,
) -> Result<Decided<Released>, L::Error> {
    let ours = |record: &ClaimRecord| {
        let same = |claim| record.wake == claim || record.expires <= now;
        claim.is_none_or(same)
    };
    let mut tx = ClaimTransaction::begin(queue, kind, now)?;
    let holder = tx.queue.holder(owner)?.filter(|h| h.expires > now);
    let outcome = if let Some(holder) = holder {
        if ours(&holder) {
            tx.remove(&holder)?;
            Released::WasHeld
        } else {
            Released::WasGone
        }
    } else if let Some(waiter) = tx.queue.waiter(owner)?.filter(ours) {
        // Out of queue first: what is free is not for one who is leaving.
        tx.queue.remove_waiter(&waiter)?;
        Released::WasWaiting
    } else {
        Released::WasGone
    };
    tx.expire_and_grant()?;
    tx.end(outcome)
}

/// Makes a held share smaller. False if there is none, or it is smaller already.
pub fn shrink<L: WaitQueue>(
    queue: &mut L,
    kind: Kind,
    now: Moment,
    owner: &Owner,
    claim: WakeAddress,
    weight: u32,
) -> Result<Decided<bool>, L::Error> {
    let mut tx = ClaimTransaction::begin(queue, kind, now)?;
    tx.expire_and_grant()?;
    let held = tx.queue.holder(owner)?;
    let shrunk = match held {
        Some(held) if held.wake == claim && held.weight >= weight => {
            tx.pool.used = tx.pool.used.saturating_sub((held.weight - weight).into());
            tx.queue.set_holder(ClaimRecord { weight, ..held })?;
            tx.expire_and_grant()?;
            true
        }
        _ => false,
    };
    tx.end(shrunk)
}

/// Sets the size, and tells what it was.
pub fn resize<L: WaitQueue>(
    queue: &mut L,
    kind: Kind,
    now: Moment,
    size: u32,
) -> Result<Decided<Option<u32>>, L::Error> {
    let mut tx = ClaimTransaction::begin(queue, kind, now)?;
    tx.expire_and_grant()?;
    tx.forget_size()?;
    let before = tx.pool.size;
    tx.pool.size = size;
    tx.pool.until = now + kind.size_retention();
    tx.expire_and_grant()?;
    tx.end((before != 0).then_some(before))
}

/// Takes the lock from its holder.
pub fn break_lock<L: WaitQueue>(
    queue: &mut L,
    now: Moment,
) -> Result<Decided<Option<Holder>>, L::Error> {
    let mut tx = ClaimTransaction::begin(queue, Kind::Lock, now)?;
    let victim = tx.queue.first_to_expire()?.filter(|h| h.expires > now);
    if let Some(victim) = &victim {
        tx.remove(victim)?;
    }
    tx.expire_and_grant()?;
    tx.end(victim.map(|h| describe(&h, now)))
}

/// Looks, and changes nothing.
pub fn inspect<L: WaitQueue>(
    queue: &mut L,
    kind: Kind,
    name: &str,
    now: Moment,
    most: usize,
) -> Result<Occupancy, L::Error> {
    let pool = ClaimTransaction::begin(queue, kind, now)?.pool;
    let holders = queue.holders(now, most)?;
    let used = pool.used.saturating_sub(queue.dead_weight(now)?);
    let waiters = queue.waiters()?;
    // Of all that has a size to be agreed on, only a semaphore's is remembered when nobody needs it.
    let forgotten = kind != Kind::Lock && pool.until <= now && used == 0 && waiters == 0;
    Ok(Occupancy {
        kind,
        name: name.to_owned(),
        size: if forgotten { 0 } else { pool.size },
        used,
        waiters,
        holders: holders.iter().map(|r| describe(r, now)).collect(),
        open: pool.open,
    })
}

fn fresh(ask: &AcquireRequest, fence: Fence, now: Moment) -> ClaimRecord {
    ClaimRecord {
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

fn describe(record: &ClaimRecord, now: Moment) -> Holder {
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

    use super::super::wait_queue::MemoryQueue;
    use super::*;
    use crate::Clock;
    use crate::name::Name;
    use crate::store::Share;

    fn ask(owner: &str, claim: u64) -> AcquireRequest {
        AcquireRequest {
            kind: Kind::Lock,
            share: Share::ONLY,
            name: Name::new("test", None, "stock").unwrap(),
            owner: Owner::new(owner).unwrap(),
            ttl: Duration::from_secs(30),
            on_busy: OnBusy::Enqueue,
            note: None,
            heal_missing_ttl: false,
            renewed: true,
            record_now: true,
            again: false,
            wake: WakeAddress { client: 1, claim },
        }
    }

    /// A process that was killed in queue leaves its claim there, and nobody to withdraw it.
    #[test]
    fn a_dead_waiter_is_skipped_and_only_the_next_is_woken() {
        let now = Clock::manual().now();
        let mut queue = MemoryQueue::default();
        let mut last = 0;
        let mut draw = || {
            last += 1;
            Fence::new(last)
        };
        for (owner, claim) in [("holder", 1), ("dead", 2), ("next", 3), ("last", 4)] {
            let Ok(_) = acquire(&mut queue.with(&mut draw), now, &ask(owner, claim));
        }
        queue.expire(&Owner::new("dead").unwrap());
        let holder = Owner::new("holder").unwrap();
        let Ok(released) = release(&mut queue.with(&mut draw), Kind::Lock, now, &holder, None);
        assert_eq!(released.outcome, Released::WasHeld);
        let next = WakeAddress {
            client: 1,
            claim: 3,
        };
        assert_eq!(released.wakes, [(next, Fence::new(3))]);
        let Ok(seen) = inspect(&mut queue.with(&mut draw), Kind::Lock, "stock", now, 1);
        assert_eq!(seen.holders[0].owner, "next");
        assert_eq!(seen.waiters, 1, "the dead one is gone, the last one waits");
    }
    /// A holder and the first in queue may die together, as tasks of one process do: that costs the others one
    /// ttl, not one for each.
    #[test]
    fn who_died_in_line_holds_no_longer_than_it_would_have_waited() {
        let start = Clock::manual().now();
        let later = |secs| start + Duration::from_secs(secs);
        let mut queue = MemoryQueue::default();
        let mut last = 0;
        let mut draw = || {
            last += 1;
            Fence::new(last)
        };
        for (owner, claim, at) in [("dead", 1, 0), ("dead-too", 2, 1), ("alive", 3, 2)] {
            let Ok(_) = acquire(&mut queue.with(&mut draw), later(at), &ask(owner, claim));
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
            let Ok(renewed) = renew(&mut queue.with(&mut draw), later(at), &alive);
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
