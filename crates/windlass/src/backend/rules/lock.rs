//! The decisions of a lock.
//!
//! Invariants, which every decision keeps:
//! - at most one holder, and nobody overtakes: whoever arrives while others wait goes behind them;
//! - the holder's fence is lower than every waiter's, so fences grow from grant to grant;
//! - a lock that comes free goes to the first waiter alive, in the same step, and only that
//!   waiter is woken.

use crate::backend::{
    Acquired, Ask, Holder, IfHeld, Released, Renewal, Renewed, SameOwner, WakeAddress,
};
use crate::lease::{Fence, Moment, Owner};

use super::line::{Line, Record};

/// An outcome, and the waiter that became the holder on the way, to be woken.
#[derive(Clone, Debug, PartialEq)]
pub struct Decided<T> {
    /// The answer to the caller.
    pub outcome: T,
    /// The new holder. It may be the asker itself, who is then told twice.
    pub wake: Option<(WakeAddress, Fence)>,
}

/// Decides on a request for the lock.
pub fn acquire<L: Line>(
    line: &mut L,
    now: Moment,
    ask: &Ask,
) -> Result<Decided<Acquired>, L::Error> {
    let (holder, handed) = settle(line, now)?;
    let wake = handed.map(address);
    let outcome = match holder {
        None => {
            let fence = line.next_fence()?;
            line.set_holder(fresh(ask, fence, now))?;
            granted(fence)
        }
        Some(holder) if holder.owner == ask.owner => {
            let fence = holder.fence;
            line.set_holder(Record {
                since: holder.since,
                // Never shorter than it was promised to the one who came before.
                expires: holder.expires.max(now + ask.ttl),
                ..fresh(ask, fence, now)
            })?;
            granted(fence)
        }
        Some(holder) => match ask.if_held {
            IfHeld::Answer => Acquired::Busy(describe(&holder, now)),
            IfHeld::LineUp => {
                let place = match line.waiter(&ask.owner)? {
                    Some(known) => known.fence,
                    None => line.next_fence()?,
                };
                line.set_waiter(fresh(ask, place, now))?;
                Acquired::Queued {
                    place,
                    held_for: Some(holder.expires.since(now)),
                }
            }
        },
    };
    Ok(Decided { outcome, wake })
}

/// Decides whether a claim lives on.
pub fn renew<L: Line>(
    line: &mut L,
    now: Moment,
    renewal: &Renewal,
) -> Result<Decided<Renewed>, L::Error> {
    let (holder, handed) = settle(line, now)?;
    let wake = handed.map(address);
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
    let outcome = match holder {
        Some(holder) if holder.owner == renewal.owner && ours(&holder) => {
            line.set_holder(kept(holder))?;
            Renewed::Held
        }
        other => match line.waiter(&renewal.owner)? {
            Some(waiter) if ours(&waiter) => {
                line.set_waiter(kept(waiter))?;
                Renewed::Waiting {
                    held_for: other.map(|h| h.expires.since(now)),
                }
            }
            _ => Renewed::Gone,
        },
    };
    Ok(Decided { outcome, wake })
}

/// Gives up what `owner` has, unless a later claim of the same owner has it.
pub fn release<L: Line>(
    line: &mut L,
    now: Moment,
    owner: &Owner,
    claim: Option<WakeAddress>,
) -> Result<Decided<Released>, L::Error> {
    let ours = |record: &Record| {
        let same = |claim| record.wake == claim || record.expires <= now;
        record.owner == *owner && claim.is_none_or(same)
    };
    let holder = line.holder()?.filter(|h| h.expires > now);
    let outcome = if let Some(holder) = holder.filter(ours) {
        line.remove_holder(&holder)?;
        Released::WasHeld
    } else if let Some(waiter) = line.waiter(owner)?.filter(ours) {
        // Out of line first: a free lock is not for one who is leaving.
        line.remove_waiter(&waiter)?;
        Released::WasWaiting
    } else {
        Released::WasGone
    };
    let (_, handed) = settle(line, now)?;
    Ok(Decided {
        outcome,
        wake: handed.map(address),
    })
}

/// Takes the lock from its holder.
pub fn break_lock<L: Line>(line: &mut L, now: Moment) -> Result<Decided<Option<Holder>>, L::Error> {
    let victim = line.holder()?.filter(|h| h.expires > now);
    if let Some(victim) = &victim {
        line.remove_holder(victim)?;
    }
    let (_, next) = settle(line, now)?;
    Ok(Decided {
        outcome: victim.map(|h| describe(&h, now)),
        wake: next.map(address),
    })
}

/// Looks at the lock.
pub fn inspect<L: Line>(line: &mut L, now: Moment) -> Result<(Option<Holder>, u64), L::Error> {
    let holder = line.holder()?.filter(|h| h.expires > now);
    Ok((holder.map(|h| describe(&h, now)), line.waiters()?))
}

/// Removes a dead holder and gives a free lock to the first waiter alive.
///
/// Returns the holder, and the same record again if it became the holder just now.
fn settle<L: Line>(
    line: &mut L,
    now: Moment,
) -> Result<(Option<Record>, Option<Record>), L::Error> {
    if let Some(holder) = line.holder()? {
        if holder.expires > now {
            return Ok((Some(holder), None));
        }
        line.remove_holder(&holder)?;
    }
    while let Some(waiter) = line.first()? {
        line.remove_waiter(&waiter)?;
        if waiter.expires > now {
            let holder = Record {
                expires: now + waiter.ttl,
                since: now,
                ..waiter
            };
            line.set_holder(holder.clone())?;
            return Ok((Some(holder.clone()), Some(holder)));
        }
    }
    Ok((None, None))
}

fn fresh(ask: &Ask, fence: Fence, now: Moment) -> Record {
    Record {
        owner: ask.owner.clone(),
        fence,
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

fn address(record: Record) -> (WakeAddress, Fence) {
    (record.wake, record.fence)
}

fn describe(record: &Record, now: Moment) -> Holder {
    Holder {
        owner: record.owner.to_string(),
        fence: Some(record.fence),
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
    use crate::lease::Clock;
    use crate::name::Name;

    fn ask(owner: &str, claim: u64) -> Ask {
        Ask {
            name: Name::new("test", None, "stock").unwrap(),
            owner: Owner::new(owner).unwrap(),
            ttl: Duration::from_secs(30),
            if_held: IfHeld::LineUp,
            note: None,
            heal_missing_ttl: false,
            record_now: true,
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
        let Ok(released) = release(&mut line.with(&mut draw), now, &holder, None);
        assert_eq!(released.outcome, Released::WasHeld);
        let next = WakeAddress {
            client: 1,
            claim: 3,
        };
        assert_eq!(released.wake, Some((next, Fence::new(3))));
        let Ok((holder, waiters)) = inspect(&mut line.with(&mut draw), now);
        assert_eq!(holder.unwrap().owner, "next");
        assert_eq!(waiters, 1, "the dead one is gone, the last one waits");
    }
}
