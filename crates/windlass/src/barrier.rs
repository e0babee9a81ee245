//! The double barrier: parties that begin together and end together.

use std::time::Duration;

use crate::acquirer::Acquirer;
use crate::coordinator::Coordinator;
use crate::lease::{
    AcquireOutcome, Fence, Lease, Request, WaitPolicy, guard, note_option, request_options,
};
use crate::semaphore::MAX_PERMITS;
use crate::wait::{Look, wait_until};
use windlass_core::error::{Error, ErrorKind, Result};
use windlass_core::store::{Channel, Kind, Occupancy, OnSizeMismatch, Order, Released, Share};

/// A barrier for so many parties: nobody goes on before all have come, and nobody ends before all
/// have left.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> windlass::Result<()> {
/// let w = windlass::connect("memory:").await?;
/// let barrier = w.barrier("load-test", 2);
/// let (a, b) = tokio::join!(barrier.enter(), barrier.enter());
/// let (a, b) = (a?, b?);
/// // … both work at the same time …
/// let (left_a, left_b) = tokio::join!(a.leave(), b.leave());
/// left_a?;
/// left_b?;
/// # Ok(()) }
/// ```
///
/// # Guarantees
///
/// - [`enter`](Barrier::enter) returns once as many parties are in as the barrier is for; parties that
///   wait are woken, they do not poll.
/// - A round ends when all have left. Whoever comes before that waits in line for the next round.
/// - Being in is a lease, renewed in the background. A party that dies before all have come is
///   taken off after its ttl, and another can come in its place: a round never begins with a dead
///   party, unless it died within its ttl. One that dies afterwards counts as having left after its ttl.
/// - A quorum (`redlock://`) refuses barriers with [`Unsupported`](ErrorKind::Unsupported).
#[derive(Clone, Debug)]
#[must_use = "a barrier does nothing until somebody enters"]
pub struct Barrier {
    coordinator: Coordinator,
    name: String,
    parties: u32,
    request: Request,
}

/// One that is in, together with all others.
///
/// Dropping it leaves in the background, without waiting for the others.
#[derive(Debug)]
#[must_use = "dropping the party leaves"]
pub struct Party {
    lease: Lease,
    barrier: Barrier,
    round: Fence,
}

guard!(Party, "party's place");

impl Party {
    /// Leaves, and waits until all others have left too.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the party leaves in the background.
    pub async fn leave(self) -> Result<()> {
        self.leave_with(WaitPolicy::Forever).await.map(drop)
    }

    /// Leaves, and waits until all others have left too, but no longer than `wait`. Tells whether
    /// they have.
    ///
    /// # Cancel safety
    ///
    /// As [`leave`](Party::leave).
    pub async fn leave_within(self, wait: Duration) -> Result<bool> {
        let patience = WaitPolicy::of(Some(wait), self.barrier.coordinator.keeper());
        self.leave_with(patience).await
    }

    async fn leave_with(self, patience: WaitPolicy) -> Result<bool> {
        let Party {
            lease,
            barrier,
            round,
        } = self;
        // If it was gone already, it has left; the others are waited for all the same.
        let _: Released = lease.release().await?;
        let look = || async {
            let seen = barrier.inspect(1).await?;
            // Nobody may be there to remove the last one that died.
            if seen.open != Some(round) || seen.used == 0 {
                return Ok(Look::Done(()));
            }
            Ok(Look::After(first_end(&seen)))
        };
        let left = wait_until(&barrier.coordinator, barrier.channel()?, patience, look).await?;
        Ok(left.is_some())
    }

    /// The number of this round: no other has it.
    pub fn round(&self) -> Fence {
        self.round
    }
}

impl Barrier {
    pub(crate) fn new(coordinator: Coordinator, name: &str, parties: u32) -> Barrier {
        Barrier {
            coordinator,
            name: name.to_owned(),
            parties,
            request: Request::new(),
        }
    }

    request_options!();
    note_option!();

    /// Comes in, and waits until all others have come too.
    ///
    /// # Errors
    ///
    /// If a patience was set with [`wait`](Barrier::wait) and it ran out, the error's kind is
    /// [`WaitElapsed`](ErrorKind::WaitElapsed), and the place is given up. If it is for another number
    /// of parties, the kind is [`Mismatch`](ErrorKind::Mismatch).
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the place is given up.
    pub async fn enter(&self) -> Result<Party> {
        let patience = WaitPolicy::of(self.request.wait, self.coordinator.keeper());
        match self.enter_with(patience).await? {
            Some(party) => Ok(party),
            None => {
                let waited = self.request.wait.unwrap_or_default();
                let message = format!("the others had not come after {waited:?}");
                let error = Error::new(ErrorKind::WaitElapsed, "enter", message);
                Err(self.coordinator.describe(error.with_name(&self.name)))
            }
        }
    }

    /// Comes in, and waits for the others, but no longer than `wait`; then the place is given up.
    ///
    /// # Cancel safety
    ///
    /// As [`enter`](Barrier::enter).
    pub async fn enter_within(&self, wait: Duration) -> Result<Option<Party>> {
        let patience = WaitPolicy::of(Some(wait), self.coordinator.keeper());
        self.enter_with(patience).await
    }

    async fn enter_with(&self, patience: WaitPolicy) -> Result<Option<Party>> {
        let lease = match self.asking()?.attempt(patience).await? {
            AcquireOutcome::Held(lease) => lease,
            AcquireOutcome::Busy(_) => return Ok(None),
        };
        let look = || async {
            let seen = self.inspect(0).await?;
            if !lease.is_held() {
                let lost = "the place was lost while waiting for the others";
                let error = Error::new(ErrorKind::Lost, "enter", lost);
                return Err(self.coordinator.describe(error.with_name(&self.name)));
            }
            Ok(match seen.open {
                Some(round) => Look::Done(round),
                None => Look::After(Some(lease.remaining())),
            })
        };
        let waiting = wait_until(&self.coordinator, self.channel()?, patience, look);
        Ok(waiting.await?.map(|round| Party {
            lease,
            barrier: self.clone(),
            round,
        }))
    }

    /// Gives up whatever `owner` has, a place among those who are in or one in line, without a [`Party`],
    /// and without waiting for the others.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, it may or may not have happened; asking again is harmless.
    pub async fn leave_as(&self, owner: impl Into<String>) -> Result<Released> {
        self.asking()?.release_as(owner.into()).await
    }

    /// Looks: how many are in, how many wait for the next round, and up to `most` of those who are in.
    pub async fn inspect(&self, most: usize) -> Result<Occupancy> {
        self.asking()?.inspect(most).await
    }

    fn channel(&self) -> Result<Channel> {
        Ok(Channel {
            kind: Kind::Barrier.word(),
            name: self.asking()?.checked_name("enter")?,
        })
    }

    fn asking(&self) -> Result<Acquirer<'_>> {
        if !(1..=MAX_PERMITS).contains(&self.parties) {
            let message = format!("{} parties are outside 1 to {MAX_PERMITS}", self.parties);
            return Err(Error::invalid("enter", message).with_name(&self.name));
        }
        Ok(Acquirer {
            coordinator: &self.coordinator,
            kind: Kind::Barrier,
            name: &self.name,
            share: Share {
                weight: 1,
                size: self.parties,
                on_size_mismatch: OnSizeMismatch::Refuse,
                order: Order::Fifo,
            },
            request: &self.request,
            heal_missing_ttl: false,
        })
    }
}

fn first_end(seen: &Occupancy) -> Option<Duration> {
    seen.holders.first().and_then(|holder| holder.remaining)
}
