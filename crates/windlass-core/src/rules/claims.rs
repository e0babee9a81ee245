//! Decisions about claims: acquire, renew, release, shrink, resize, break, inspect.
//!
//! Every decision keeps these invariants:
//! - the weight of the holders that have not expired is at most the size, except after the size was
//!   reduced;
//! - a FIFO claim never overtakes: if others wait, it joins the end of the queue, even if it would
//!   fit and the first waiter does not;
//! - fences grow from grant to grant;
//! - freed weight goes to the first waiters that have not expired, in the same decision, and only
//!   their clients are woken.

use crate::store::{
    AcquireRequest, Acquired, Holder, Kind, Occupancy, OnBusy, Order, Released, Renewal, Renewed,
    SameOwner, WakeAddress,
};
use crate::{Fence, Moment, Owner};

use super::transaction::ClaimTransaction;
use super::wait_queue::{ClaimRecord, WaitQueue};

/// The outcome of a decision, and its effects on other clients.
#[derive(Clone, Debug, PartialEq)]
pub struct Decided<T> {
    /// The answer for the caller.
    pub outcome: T,
    /// The waiters that were granted, with their fences. May include the caller, which then gets
    /// both. Fence 0 wakes a waiter that was removed, because its weight no longer fits the pool.
    pub wakes: Vec<(WakeAddress, Fence)>,
    /// Whether subscribers of the name are to be notified.
    pub notification: bool,
}

/// Grants, enqueues, or refuses a claim.
pub fn acquire<Q: WaitQueue>(
    queue: &mut Q,
    now: Moment,
    request: &AcquireRequest,
) -> Result<Decided<Acquired>, Q::Error> {
    let mut tx = ClaimTransaction::begin(queue, request.kind, now)?;
    tx.expire_and_grant()?;
    tx.forget_size()?;
    if let Some(refusal) = tx.refuses(request)? {
        return tx.end(Acquired::Refused(refusal));
    }
    tx.pool.until = now + request.kind.size_retention();
    if let Some(held) = tx.queue.holder(&request.owner)? {
        let fence = held.fence;
        tx.queue.set_holder(ClaimRecord {
            since: held.since,
            // Never earlier than promised to the earlier claim of this owner.
            expires: held.expires.max(now + request.ttl),
            ..record(request, fence, now)
        })?;
        tx.changed = true; // the note may differ
        return tx.end(granted(fence));
    }
    let waits = tx.queue.first_waiter()?.is_some();
    if tx.fits(request.share.weight) && (!waits || request.share.order == Order::Barging) {
        if let Some(waiter) = tx.queue.waiter(&request.owner)? {
            tx.queue.remove_waiter(&waiter)?;
        }
        let fence = tx.queue.next_fence()?;
        if waits {
            tx.pool.overtook = fence;
        }
        tx.grant(record(request, fence, now))?;
        return tx.end(granted(fence));
    }
    match request.on_busy {
        OnBusy::Return => {
            let first = tx.queue.first_to_expire()?;
            let first =
                first.expect("weight that is taken has a holder: expire_and_grant has checked it");
            tx.end(Acquired::Busy(describe(&first, now)))
        }
        OnBusy::Enqueue => {
            let ticket = match tx.queue.waiter(&request.owner)? {
                Some(waiter) => waiter.fence,
                None => tx.queue.next_fence()?,
            };
            tx.queue.set_waiter(record(request, ticket, now))?;
            let recheck_after = tx.recheck_after(&request.owner, request.share.weight)?;
            tx.end(Acquired::Queued {
                ticket,
                recheck_after,
            })
        }
    }
}

/// Whether a lock would be granted at once; if not, who holds it.
pub fn is_free<Q: WaitQueue>(
    queue: &mut Q,
    now: Moment,
) -> Result<Decided<Result<(), Option<Holder>>>, Q::Error> {
    let mut tx = ClaimTransaction::begin(queue, Kind::Lock, now)?;
    tx.expire_and_grant()?;
    let holder = tx.queue.first_to_expire()?;
    let free = match holder {
        Some(holder) => Err(Some(describe(&holder, now))),
        None => Ok(()),
    };
    tx.end(free)
}

/// Renews a claim, held or waiting.
pub fn renew<Q: WaitQueue>(
    queue: &mut Q,
    now: Moment,
    renewal: &Renewal,
) -> Result<Decided<Renewed>, Q::Error> {
    let mut tx = ClaimTransaction::begin(queue, renewal.kind, now)?;
    tx.expire_and_grant()?;
    let kept = |record: ClaimRecord| ClaimRecord {
        ttl: renewal.ttl,
        expires: now + renewal.ttl,
        note: renewal.note.clone(),
        wake: renewal.wake,
        ..record
    };
    // An expired waiter that is still in the queue is revived by any claim of its owner.
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
                    recheck_after: tx.recheck_after(&renewal.owner, weight)?,
                }
            }
            _ => Renewed::Gone,
        },
    };
    tx.end(outcome)
}

/// Releases the owner's claim, held or waiting, unless a later claim of the same owner has replaced
/// `claim`.
pub fn release<Q: WaitQueue>(
    queue: &mut Q,
    kind: Kind,
    now: Moment,
    owner: &Owner,
    claim: Option<WakeAddress>,
) -> Result<Decided<Released>, Q::Error> {
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
        // Before weight is granted: a leaving waiter must not be granted.
        tx.queue.remove_waiter(&waiter)?;
        Released::WasWaiting
    } else {
        Released::WasGone
    };
    tx.expire_and_grant()?;
    tx.end(outcome)
}

/// Reduces the weight of a held claim. False if it is not held, or its weight is lower already.
pub fn shrink<Q: WaitQueue>(
    queue: &mut Q,
    kind: Kind,
    now: Moment,
    owner: &Owner,
    claim: WakeAddress,
    weight: u32,
) -> Result<Decided<bool>, Q::Error> {
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

/// Sets the size, and returns the size before.
pub fn resize<Q: WaitQueue>(
    queue: &mut Q,
    kind: Kind,
    now: Moment,
    size: u32,
) -> Result<Decided<Option<u32>>, Q::Error> {
    let mut tx = ClaimTransaction::begin(queue, kind, now)?;
    tx.expire_and_grant()?;
    tx.forget_size()?;
    let before = tx.pool.size;
    tx.pool.size = size;
    tx.pool.until = now + kind.size_retention();
    tx.expire_and_grant()?;
    tx.end((before != 0).then_some(before))
}

/// Takes a lock from its holder, and grants it to the queue.
pub fn break_lock<Q: WaitQueue>(
    queue: &mut Q,
    now: Moment,
) -> Result<Decided<Option<Holder>>, Q::Error> {
    let mut tx = ClaimTransaction::begin(queue, Kind::Lock, now)?;
    let victim = tx.queue.first_to_expire()?.filter(|h| h.expires > now);
    if let Some(victim) = &victim {
        tx.remove(victim)?;
    }
    tx.expire_and_grant()?;
    tx.end(victim.map(|h| describe(&h, now)))
}

/// Up to `most` holders that have not expired, in the order of their expiry.
pub fn holders<Q: WaitQueue>(
    queue: &mut Q,
    now: Moment,
    most: usize,
) -> Result<Vec<Holder>, Q::Error> {
    let holders = queue.holders(now, most)?;
    Ok(holders.iter().map(|r| describe(r, now)).collect())
}

/// Reads the state of a name. Changes nothing, so expired claims are left out here instead of being
/// removed.
pub fn inspect<Q: WaitQueue>(
    queue: &mut Q,
    kind: Kind,
    name: &str,
    now: Moment,
    most: usize,
) -> Result<Occupancy, Q::Error> {
    let pool = ClaimTransaction::begin(queue, kind, now)?.pool;
    let holders = holders(queue, now, most)?;
    let used = pool.used.saturating_sub(queue.expired_weight(now)?);
    let waiters = queue.waiter_count(now)?;
    // As `forget_size` does.
    let forgotten = kind != Kind::Lock && pool.until <= now && used == 0 && waiters == 0;
    Ok(Occupancy {
        kind,
        name: name.to_owned(),
        size: if forgotten { 0 } else { pool.size },
        used,
        waiters,
        holders,
        open: pool.open,
    })
}

fn record(request: &AcquireRequest, fence: Fence, now: Moment) -> ClaimRecord {
    ClaimRecord {
        owner: request.owner.clone(),
        fence,
        weight: request.share.weight,
        ttl: request.ttl,
        expires: now + request.ttl,
        since: now,
        note: request.note.clone(),
        wake: request.wake,
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

    fn request(owner: &str, claim: u64) -> AcquireRequest {
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

    /// A process that was killed while waiting leaves its claim in the queue.
    #[test]
    fn a_dead_waiter_is_skipped_and_only_the_next_is_woken() {
        let now = Clock::manual().now();
        let mut queue = MemoryQueue::default();
        let mut last = 0;
        let mut next_fence = || {
            last += 1;
            Fence::new(last)
        };
        for (owner, claim) in [("holder", 1), ("dead", 2), ("next", 3), ("last", 4)] {
            let Ok(_) = acquire(
                &mut queue.with(&mut next_fence),
                now,
                &request(owner, claim),
            );
        }
        queue.expire(&Owner::new("dead").unwrap());
        let holder = Owner::new("holder").unwrap();
        let Ok(released) = release(
            &mut queue.with(&mut next_fence),
            Kind::Lock,
            now,
            &holder,
            None,
        );
        assert_eq!(released.outcome, Released::WasHeld);
        let next = WakeAddress {
            client: 1,
            claim: 3,
        };
        assert_eq!(released.wakes, [(next, Fence::new(3))]);
        let Ok(seen) = inspect(
            &mut queue.with(&mut next_fence),
            Kind::Lock,
            "stock",
            now,
            1,
        );
        assert_eq!(seen.holders[0].owner, "next");
        assert_eq!(
            seen.waiters, 1,
            "the expired waiter is gone, the last one waits"
        );
    }

    /// A holder and the first waiter may die together, as tasks of one process do: that costs the
    /// others one TTL, not one for each.
    #[test]
    fn a_waiter_that_died_holds_no_longer_than_it_would_have_waited() {
        let start = Clock::manual().now();
        let later = |secs| start + Duration::from_secs(secs);
        let mut queue = MemoryQueue::default();
        let mut last = 0;
        let mut next_fence = || {
            last += 1;
            Fence::new(last)
        };
        for (owner, claim, at) in [("dead", 1, 0), ("dead-too", 2, 1), ("alive", 3, 2)] {
            let Ok(_) = acquire(
                &mut queue.with(&mut next_fence),
                later(at),
                &request(owner, claim),
            );
        }
        let alive = Renewal {
            kind: Kind::Lock,
            name: Name::new("test", None, "stock").unwrap(),
            owner: Owner::new("alive").unwrap(),
            fence: Fence::new(3),
            ttl: Duration::from_secs(30),
            age: Duration::ZERO,
            note: None,
            wake: request("alive", 3).wake,
            same_owner: SameOwner::Impossible,
            rewrite_details: false,
            renewed: true,
        };
        let mut beat = |at| {
            let Ok(renewed) = renew(&mut queue.with(&mut next_fence), later(at), &alive);
            renewed.outcome
        };
        assert!(matches!(beat(20), Renewed::Waiting { .. }));
        let before = beat(30);
        assert!(
            matches!(before, Renewed::Waiting { .. }),
            "granted to the waiter before it"
        );
        assert!(matches!(beat(31), Renewed::Held { .. }));
    }
}
