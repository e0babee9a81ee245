//! Fences over a quorum, without a clock: how a node gives numbers, and when a number is a fence.
//!
//! Every node counts, and never gives a number twice. Whoever holds a majority of the nodes draws a
//! number from each *while it holds them*. If a majority gives the same number, that is the fence; if
//! not, it draws again, and proposes a number higher than all it was given. Therefore, as long as a node
//! keeps its counter:
//!
//! - **no two acquisitions share a fence**: two majorities have a node in common, which would have given
//!   the number twice;
//! - **fences grow in real time**: if one acquisition was complete before another drew its first
//!   number, the node that they have in common gave the later one a higher number.
//!
//! A node that lost its memory lost its counter, too. It has no vote until nobody can count on what it
//! granted before (the longest ttl has passed), and is then told the counters of others: as many as make
//! a majority. Whatever fence it had a part in before, one of those was part of it as well.
//!
//! The model in `crates/windlass-model` checks all of this with these very functions.

use super::claims::{self, Decided};
use super::wait_queue::{ClaimRecord, Pool, WaitQueue};
use crate::store::{AcquireRequest, Acquired, Kind, Renewal, Renewed};
use crate::{Fence, Moment};

/// How many of so many nodes must agree.
pub const fn majority(nodes: usize) -> usize {
    nodes / 2 + 1
}

/// Draws a number from a node: the one proposed if it is higher than all it has given, and one more than
/// the highest otherwise.
pub fn draw(counter: &mut u64, proposal: u64) -> u64 {
    *counter = match proposal > *counter {
        true => proposal,
        false => *counter + 1,
    };
    *counter
}

/// The fence, if enough nodes have given the same number in one round.
pub fn agreed(numbers: &[u64], majority: usize) -> Option<u64> {
    numbers
        .iter()
        .copied()
        .find(|n| numbers.iter().filter(|other| *other == n).count() >= majority)
}

/// What to propose when the nodes did not give the same: higher than all that was given, by as much as
/// others are likely to draw meanwhile. The more the numbers differ, and the more often it was
/// tried, the more that is.
pub fn next_proposal(numbers: &[u64], tries: u32) -> u64 {
    let highest = numbers.iter().copied().max().unwrap_or(0);
    let lowest = numbers.iter().copied().min().unwrap_or(0);
    let apart = (highest - lowest).clamp(1, 1 << 12);
    highest + (apart << tries.min(10))
}

/// Decides on a request for a share, as [`claims::acquire`] does. The same owner again keeps its number,
/// unless that is a ticket in queue: those who held meanwhile may have drawn higher ones.
///
/// For a lock, `handed` says whether the owner has drawn no number since it stood in queue; all else
/// remembers itself who was overtaken.
pub fn acquire<L: WaitQueue>(
    queue: &mut L,
    now: Moment,
    ask: &AcquireRequest,
    handed: bool,
) -> Result<Decided<Acquired>, L::Error> {
    let mut decided = claims::acquire(queue, now, ask)?;
    if let Acquired::Granted { fence, .. } = &mut decided.outcome
        && handed
        && let Some(holder) = queue.holder(&ask.owner)?
    {
        *fence = queue.next_fence()?;
        let fence = *fence;
        queue.set_holder(ClaimRecord { fence, ..holder })?;
    }
    Ok(decided)
}

/// What a node says of a claim that was to be confirmed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Confirmed {
    /// Held, under a number that was drawn just now.
    Held(Fence),
    /// In queue.
    Waiting,
    /// Neither.
    Gone,
}

/// Keeps a claim alive, and draws a number for it if it is held: whoever holds this node later draws a
/// higher one.
pub fn confirm<L: WaitQueue>(
    queue: &mut L,
    now: Moment,
    claim: &Renewal,
) -> Result<Decided<Confirmed>, L::Error> {
    let renewed = claims::renew(queue, now, claim)?;
    let outcome = match renewed.outcome {
        Renewed::Held { .. } => {
            let fence = queue.next_fence()?;
            if let Some(holder) = queue.holder(&claim.owner)? {
                queue.set_holder(ClaimRecord { fence, ..holder })?;
            }
            if claim.kind != Kind::Lock && queue.first()?.is_some() {
                // Their places are lower, and no fences for them any more.
                let pool = queue.pool()?;
                let overtook = fence;
                queue.set_pool(Pool { overtook, ..pool })?;
            }
            Confirmed::Held(fence)
        }
        Renewed::Waiting { .. } => Confirmed::Waiting,
        Renewed::Gone => Confirmed::Gone,
    };
    Ok(Decided {
        outcome,
        wakes: renewed.wakes,
        notification: renewed.notification,
    })
}

/// Gives what is held to those in queue, and goes to the end of it; unless another number than `number`
/// was drawn since, or nobody else waits.
pub fn line_up_again<L: WaitQueue>(
    queue: &mut L,
    now: Moment,
    claim: &Renewal,
    number: Fence,
) -> Result<Decided<bool>, L::Error> {
    let holder = queue.holder(&claim.owner)?;
    let holder = holder.filter(|h| h.expires > now && h.fence == number);
    while let Some(first) = queue.first()?.filter(|first| first.expires <= now) {
        queue.remove_waiter(&first)?;
    }
    let (Some(holder), Some(_)) = (holder, queue.first()?) else {
        return Ok(Decided {
            outcome: false,
            wakes: Vec::new(),
            notification: false,
        });
    };
    let released = claims::release(queue, claim.kind, now, &claim.owner, None)?;
    let fence = queue.next_fence()?;
    queue.set_waiter(ClaimRecord {
        fence,
        ttl: claim.ttl,
        expires: now + claim.ttl,
        note: claim.note.clone(),
        wake: claim.wake,
        ..holder
    })?;
    Ok(Decided {
        outcome: true,
        wakes: released.wakes,
        notification: released.notification,
    })
}

/// Whether a node has a vote: nobody can count any more on what it may have forgotten.
pub fn may_vote(durable: bool, up_ms: u64, longest_ttl_ms: u64) -> bool {
    durable || up_ms > longest_ttl_ms
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_number_is_given_twice() {
        let mut counter = 10;
        assert_eq!(draw(&mut counter, 12), 12);
        assert_eq!(draw(&mut counter, 12), 13);
        assert_eq!(draw(&mut counter, 5), 14);
        assert_eq!(draw(&mut counter, 15), 15);
    }

    #[test]
    fn only_a_majority_agrees() {
        assert_eq!(agreed(&[7, 7, 8], 2), Some(7));
        assert_eq!(agreed(&[7, 8, 9], 2), None);
        assert_eq!(agreed(&[7, 7, 8, 8], 3), None);
        assert_eq!(agreed(&[], 2), None);
    }

    #[test]
    fn proposals_outgrow_what_others_draw() {
        assert_eq!(next_proposal(&[7, 7, 7], 0), 8);
        assert_eq!(next_proposal(&[7, 17], 0), 27);
        assert!(next_proposal(&[7, 17], 3) > next_proposal(&[7, 17], 2));
        assert!(next_proposal(&[1, u64::from(u32::MAX)], 0) < u64::from(u32::MAX) + 5000);
    }

    #[test]
    fn whoever_may_have_forgotten_has_no_vote() {
        assert!(may_vote(true, 0, 60_000));
        assert!(!may_vote(false, 60_000, 60_000));
        assert!(may_vote(false, 60_001, 60_000));
    }
}
