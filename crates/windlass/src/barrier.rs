//! [`Barrier`]: a double barrier, where N parties start together and finish together.

use std::time::Duration;

use crate::acquirer::Acquirer;
use crate::coordinator::Coordinator;
use crate::lease::{
    AcquireOutcome, Fence, Lease, RequestOptions, WaitPolicy, guard, note_option, request_options,
};
use crate::wait::{Checked, wait_until};
use windlass_core::error::{Error, ErrorKind, Result};
use windlass_core::store::{Channel, Kind, Occupancy, OnSizeMismatch, Order, Released, Share};

/// A double barrier for N parties: no party continues before all have entered, and none finishes before all have
/// left.
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
/// - [`enter`](Barrier::enter) returns once all parties have entered. Waiting parties are notified; they do not poll.
/// - A round ends when all have left. A party that enters before that waits in the queue for the next round.
/// - A place in the barrier is a lease, renewed in the background. If a party dies before the round starts, its place
///   is freed after its TTL and another party can take it: a round never starts with a dead party, unless the party
///   died within its TTL. A party that dies later counts as having left after its TTL.
/// - A quorum (`redlock://`) refuses barriers with [`Unsupported`](ErrorKind::Unsupported).
#[derive(Clone, Debug)]
#[must_use = "a barrier does nothing until a party enters"]
pub struct Barrier {
    coordinator: Coordinator,
    name: String,
    parties: u32,
    request: RequestOptions,
}

/// A place in a round of the barrier.
///
/// Dropping it leaves the barrier in the background, without waiting for the others.
#[derive(Debug)]
#[must_use = "dropping the party leaves"]
pub struct Party {
    lease: Lease,
    barrier: Barrier,
    round: Fence,
}

guard!(Party, "place");

impl Party {
    /// Leaves, and waits until all others have left too.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the party leaves in the background.
    pub async fn leave(self) -> Result<()> {
        self.leave_with(WaitPolicy::Forever).await.map(drop)
    }

    /// Leaves, and waits until all others have left too, at most for `wait`. Returns whether they have.
    ///
    /// # Cancel safety
    ///
    /// As [`leave`](Party::leave).
    pub async fn leave_within(self, wait: Duration) -> Result<bool> {
        let wait = WaitPolicy::of(Some(wait), self.barrier.coordinator.keeper());
        self.leave_with(wait).await
    }

    async fn leave_with(self, wait: WaitPolicy) -> Result<bool> {
        let Party {
            lease,
            barrier,
            round,
        } = self;
        // A claim that was gone already has left too; the others are awaited in any case.
        let _: Released = lease.release().await?;
        let check = || async {
            let occupancy = barrier.inspect_up_to(1).await?;
            // An empty round has ended, even if no request has come since that would have closed it.
            if occupancy.open != Some(round) || occupancy.used == 0 {
                return Ok(Checked::Done(()));
            }
            let first = occupancy.holders.first();
            Ok(Checked::NotYet(first.and_then(|holder| holder.remaining)))
        };
        let left = wait_until(&barrier.coordinator, barrier.channel()?, wait, check).await?;
        Ok(left.is_some())
    }

    /// The number of this round; it is unique.
    pub fn round(&self) -> Fence {
        self.round
    }
}

impl Barrier {
    /// The most parties that a barrier can have.
    pub const MAX_PARTIES: u32 = 1_000_000;

    pub(crate) fn new(coordinator: Coordinator, name: &str, parties: u32) -> Barrier {
        Barrier {
            request: RequestOptions::new(coordinator.default_ttl()),
            coordinator,
            name: name.to_owned(),
            parties,
        }
    }

    request_options!();
    note_option!();

    /// Enters, and waits until all parties have entered.
    ///
    /// # Errors
    ///
    /// [`WaitElapsed`](ErrorKind::WaitElapsed) if [`wait`](Barrier::wait) was set and has passed; the place is released
    /// then. [`Mismatch`](ErrorKind::Mismatch) if the barrier has another number of parties.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the place is released.
    pub async fn enter(&self) -> Result<Party> {
        let wait = WaitPolicy::of(self.request.wait, self.coordinator.keeper());
        match self.enter_with(wait).await? {
            Some(party) => Ok(party),
            None => {
                let waited = self.request.wait.unwrap_or_default();
                let message = format!("not all parties entered within {waited:?}");
                let error = Error::new(ErrorKind::WaitElapsed, "enter", message);
                Err(self.coordinator.describe(error.with_name(&self.name)))
            }
        }
    }

    /// Enters, and waits for the others at most for `wait`. `None` if they have not entered by then: the place is
    /// released.
    ///
    /// # Cancel safety
    ///
    /// As [`enter`](Barrier::enter).
    pub async fn enter_within(&self, wait: Duration) -> Result<Option<Party>> {
        let wait = WaitPolicy::of(Some(wait), self.coordinator.keeper());
        self.enter_with(wait).await
    }

    async fn enter_with(&self, wait: WaitPolicy) -> Result<Option<Party>> {
        let lease = match self.acquirer()?.attempt(wait).await? {
            AcquireOutcome::Held(lease) => lease,
            AcquireOutcome::Busy(_) => return Ok(None),
        };
        let check = || async {
            let occupancy = self.inspect_up_to(0).await?;
            if !lease.is_held() {
                let lost = "the place was lost while waiting for the other parties";
                let error = Error::new(ErrorKind::Lost, "enter", lost);
                return Err(self.coordinator.describe(error.with_name(&self.name)));
            }
            Ok(match occupancy.open {
                Some(round) => Checked::Done(round),
                None => Checked::NotYet(Some(lease.remaining())),
            })
        };
        let opened = wait_until(&self.coordinator, self.channel()?, wait, check);
        Ok(opened.await?.map(|round| Party {
            lease,
            barrier: self.clone(),
            round,
        }))
    }

    /// Releases what `owner` has, a place or a queue entry, without a [`Party`] and without waiting for the others.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the release may or may not have happened; calling again is harmless.
    pub async fn leave_as(&self, owner: impl Into<String>) -> Result<Released> {
        self.acquirer()?.release_as(owner.into()).await
    }

    /// Returns how many parties have entered, how many wait for the next round, and all parties that have entered.
    pub async fn inspect(&self) -> Result<Occupancy> {
        self.inspect_up_to(usize::MAX).await
    }

    /// As [`inspect`](Barrier::inspect), with at most `max_holders` parties: for large barriers.
    pub async fn inspect_up_to(&self, max_holders: usize) -> Result<Occupancy> {
        self.acquirer()?.inspect(max_holders).await
    }

    fn channel(&self) -> Result<Channel> {
        Ok(Channel {
            kind: Kind::Barrier.word(),
            name: self.acquirer()?.full_name("enter")?,
        })
    }

    fn acquirer(&self) -> Result<Acquirer<'_>> {
        const MAX: u32 = Barrier::MAX_PARTIES;
        if !(1..=MAX).contains(&self.parties) {
            let message = format!("{} parties are outside 1 to {MAX}", self.parties);
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
