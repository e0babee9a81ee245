//! Decisions of a quorum of independent nodes: which number a node issues, which numbers make a
//! fence, and whether a node may vote.
//!
//! Why these fences are unique and grow without a clock is argued in
//! `windlass-redlock/src/fence.rs`, and why a node that lost its data has no vote in
//! `windlass-redlock/src/quarantine.rs`. `crates/windlass-model` checks both arguments with these
//! functions, in every order of events within its bounds.

use super::claims::{self, Decided};
use super::wait_queue::{ClaimRecord, Pool, WaitQueue};
use crate::store::{AcquireRequest, Acquired, Kind, Renewal, Renewed};
use crate::{Fence, Moment};

/// The smallest majority of this many nodes.
pub const fn majority(nodes: usize) -> usize {
    nodes / 2 + 1
}

/// The next number of a node: the proposed one if it is higher than all before, otherwise the
/// highest plus one.
pub fn next_number(counter: &mut u64, proposal: u64) -> u64 {
    *counter = match proposal > *counter {
        true => proposal,
        false => *counter + 1,
    };
    *counter
}

/// The fence, if a majority of nodes issued the same number in one round.
pub fn agreed(numbers: &[u64], majority: usize) -> Option<u64> {
    numbers
        .iter()
        .copied()
        .find(|n| numbers.iter().filter(|other| *other == n).count() >= majority)
}

/// The number to propose after a round without a majority: higher than all received, by a margin
/// for the numbers that other clients take meanwhile. The margin grows with the spread of the
/// numbers and with the number of tries.
pub fn next_proposal(numbers: &[u64], tries: u32) -> u64 {
    let highest = numbers.iter().copied().max().unwrap_or(0);
    let lowest = numbers.iter().copied().min().unwrap_or(0);
    let apart = (highest - lowest).clamp(1, 1 << 12);
    highest + (apart << tries.min(10))
}

/// Decides on a request as [`claims::acquire`] does. The number of a repeated request stays, unless
/// it is a ticket: the holders meanwhile may have taken higher numbers.
///
/// `handed` says that a lock's owner was granted from the queue and has taken no number since. The
/// other kinds record in their pool that waiters were overtaken.
pub fn acquire<Q: WaitQueue>(
    queue: &mut Q,
    now: Moment,
    request: &AcquireRequest,
    handed: bool,
) -> Result<Decided<Acquired>, Q::Error> {
    let mut decided = claims::acquire(queue, now, request)?;
    if let Acquired::Granted { fence, .. } = &mut decided.outcome
        && handed
        && let Some(holder) = queue.holder(&request.owner)?
    {
        *fence = queue.next_fence()?;
        let fence = *fence;
        queue.set_holder(ClaimRecord { fence, ..holder })?;
    }
    Ok(decided)
}

/// A node's answer to [`confirm`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConfirmOutcome {
    /// Held, with a number taken just now.
    Held(Fence),
    /// In the queue.
    Waiting,
    /// Neither held nor waiting.
    Gone,
}

/// Renews a claim, and takes a number for it if it is held. Every later holder of this node takes a
/// higher one.
pub fn confirm<Q: WaitQueue>(
    queue: &mut Q,
    now: Moment,
    claim: &Renewal,
) -> Result<Decided<ConfirmOutcome>, Q::Error> {
    let renewed = claims::renew(queue, now, claim)?;
    let outcome = match renewed.outcome {
        Renewed::Held { .. } => {
            let fence = queue.next_fence()?;
            if let Some(holder) = queue.holder(&claim.owner)? {
                queue.set_holder(ClaimRecord { fence, ..holder })?;
            }
            if claim.kind != Kind::Lock && queue.first_waiter()?.is_some() {
                // The tickets of the waiters are lower now, so they cannot become fences.
                let pool = queue.pool()?;
                let overtook = fence;
                queue.set_pool(Pool { overtook, ..pool })?;
            }
            ConfirmOutcome::Held(fence)
        }
        Renewed::Waiting { .. } => ConfirmOutcome::Waiting,
        Renewed::Gone => ConfirmOutcome::Gone,
    };
    Ok(Decided {
        outcome,
        wakes: renewed.wakes,
        notification: renewed.notification,
    })
}

/// Moves a held claim to the end of the queue, and grants its weight to the waiters. Does nothing
/// if the claim has taken another number than `number` since, or if no one else waits.
pub fn requeue<Q: WaitQueue>(
    queue: &mut Q,
    now: Moment,
    claim: &Renewal,
    number: Fence,
) -> Result<Decided<bool>, Q::Error> {
    let holder = queue.holder(&claim.owner)?;
    let holder = holder.filter(|h| h.expires > now && h.fence == number);
    while let Some(first) = queue.first_waiter()?.filter(|first| first.expires <= now) {
        queue.remove_waiter(&first)?;
    }
    let (Some(holder), Some(_)) = (holder, queue.first_waiter()?) else {
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

/// Whether a node may vote: it kept its memory, or it has been up for longer than any claim that it
/// may have forgotten.
pub fn may_vote(durable: bool, up_ms: u64, longest_ttl_ms: u64) -> bool {
    durable || up_ms > longest_ttl_ms
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_number_is_issued_twice() {
        let mut counter = 10;
        assert_eq!(next_number(&mut counter, 12), 12);
        assert_eq!(next_number(&mut counter, 12), 13);
        assert_eq!(next_number(&mut counter, 5), 14);
        assert_eq!(next_number(&mut counter, 15), 15);
    }

    #[test]
    fn only_a_majority_agrees() {
        assert_eq!(agreed(&[7, 7, 8], 2), Some(7));
        assert_eq!(agreed(&[7, 8, 9], 2), None);
        assert_eq!(agreed(&[7, 7, 8, 8], 3), None);
        assert_eq!(agreed(&[], 2), None);
    }

    #[test]
    fn proposals_exceed_the_numbers_of_others() {
        assert_eq!(next_proposal(&[7, 7, 7], 0), 8);
        assert_eq!(next_proposal(&[7, 17], 0), 27);
        assert!(next_proposal(&[7, 17], 3) > next_proposal(&[7, 17], 2));
        assert!(next_proposal(&[1, u64::from(u32::MAX)], 0) < u64::from(u32::MAX) + 5000);
    }

    #[test]
    fn a_node_that_may_have_forgotten_has_no_vote() {
        assert!(may_vote(true, 0, 60_000));
        assert!(!may_vote(false, 60_000, 60_000));
        assert!(may_vote(false, 60_001, 60_000));
    }
}
