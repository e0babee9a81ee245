//! The semaphore: at most so many at once.

use std::time::Duration;

use crate::acquirer::Acquirer;
use crate::coordinator::Coordinator;
use crate::lease::{Detached, Lease, Request, WaitPolicy, guard, note_option, request_options};
use crate::lock::Attempt;
use windlass_core::error::{Error, Result};
use windlass_core::store::{Holder, Kind, Occupancy, OnSizeMismatch, Order, Released, Share};

/// The most permits a semaphore can have.
pub const MAX_PERMITS: u32 = 1_000_000;

/// A semaphore to be acquired: its name, its size, and how.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> windlass::Result<()> {
/// let w = windlass::connect("memory:").await?;
/// let downloads = w.semaphore("downloads", 3);
/// let one = downloads.acquire().await?;
/// let two = downloads.acquire_many(2).await?;
/// assert!(downloads.try_acquire().await?.is_busy());
/// drop(two);
/// # one.release().await?;
/// # Ok(()) }
/// ```
///
/// # Guarantees
///
/// - At most as many permits are held at once as the size says, by the store's clock and in one
///   decision, as long as holders stop when told that their lease is lost.
/// - First come, first served, whatever the weight: whoever wants 5 is not starved by others that
///   want 1. With [`Order::Barging`], whoever comes while there is room takes it.
/// - A permit is a lease: renewed, lost in time, fenced. A crash frees it after the ttl, once.
/// - Everybody must say the same size. It is remembered for at least 12 hours after the last use; who
///   says another one gets an error of kind [`Mismatch`](crate::ErrorKind::Mismatch), unless that is
///   what [`resize`](Semaphore::resize) is for.
///
/// # When not to use this
///
/// To bound how *often* something happens rather than how many do it at once: that is a limiter.
#[derive(Clone, Debug)]
#[must_use = "a semaphore does nothing until it is acquired"]
pub struct Semaphore {
    coordinator: Coordinator,
    name: String,
    size: u32,
    on_size_mismatch: OnSizeMismatch,
    order: Order,
    request: Request,
}

/// A held share of a semaphore: one permit, or several acquired together.
///
/// Renewed in the background for as long as it lives; dropping it releases it in the background.
#[derive(Debug)]
#[must_use = "dropping the permit releases it"]
pub struct Permit {
    lease: Lease,
    weight: u32,
}

guard!(Permit, "permit");

impl Permit {
    /// How many permits this one stands for.
    pub fn weight(&self) -> u32 {
        self.weight
    }

    /// Gives up this handle but not the permit: it is renewed once more, and then lives for its
    /// ttl, for another process to [take over](Semaphore::attach).
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the permit is released.
    pub async fn detach(self) -> Result<Detached> {
        self.lease.detach().await
    }
}

impl Semaphore {
    pub(crate) fn new(coordinator: Coordinator, name: &str, size: u32) -> Semaphore {
        Semaphore {
            coordinator,
            name: name.to_owned(),
            size,
            on_size_mismatch: OnSizeMismatch::Refuse,
            order: Order::Fifo,
            request: Request::new(),
        }
    }

    request_options!();
    note_option!();

    /// In what order this caller wants to be served. One who [barges](Order::Barging) overtakes those
    /// who wait, whatever they have chosen.
    pub fn order(mut self, order: Order) -> Semaphore {
        self.order = order;
        self
    }

    /// Goes by the size that is stored, if one is: the size given here is only for the first to come.
    pub fn adopt_size(mut self) -> Semaphore {
        self.on_size_mismatch = OnSizeMismatch::Adopt;
        self
    }

    /// Asks for one permit, once: the answer comes at once.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future leaves nothing behind: what was granted is given back.
    pub async fn try_acquire(&self) -> Result<Attempt<Permit>> {
        self.try_acquire_many(1).await
    }

    /// Asks for `weight` permits, all or none, once.
    ///
    /// # Cancel safety
    ///
    /// As [`try_acquire`](Semaphore::try_acquire).
    pub async fn try_acquire_many(&self, weight: u32) -> Result<Attempt<Permit>> {
        let attempted = self.asking(weight)?.attempt(WaitPolicy::None).await?;
        Ok(Attempt::from(attempted, permit(weight)))
    }

    /// Waits in line for one permit.
    ///
    /// # Errors
    ///
    /// If a patience was set with [`wait`](Semaphore::wait) and it ran out, the error's kind is
    /// [`WaitElapsed`](crate::ErrorKind::WaitElapsed).
    ///
    /// # Cancel safety
    ///
    /// Dropping the future loses the place in line, and leaves nothing behind.
    pub async fn acquire(&self) -> Result<Permit> {
        self.acquire_many(1).await
    }

    /// Waits in line for `weight` permits, all at once.
    ///
    /// # Cancel safety
    ///
    /// As [`acquire`](Semaphore::acquire).
    pub async fn acquire_many(&self, weight: u32) -> Result<Permit> {
        let lease = self.asking(weight)?.acquire().await?;
        Ok(permit(weight)(lease))
    }

    /// Waits in line for one permit, but no longer than `wait`.
    ///
    /// # Cancel safety
    ///
    /// As [`acquire`](Semaphore::acquire).
    pub async fn acquire_within(&self, wait: Duration) -> Result<Attempt<Permit>> {
        self.acquire_many_within(1, wait).await
    }

    /// Waits in line for `weight` permits, but no longer than `wait`.
    ///
    /// # Cancel safety
    ///
    /// As [`acquire`](Semaphore::acquire).
    pub async fn acquire_many_within(
        &self,
        weight: u32,
        wait: Duration,
    ) -> Result<Attempt<Permit>> {
        let attempted = self.asking(weight)?.acquire_within(wait).await?;
        Ok(Attempt::from(attempted, permit(weight)))
    }

    /// Takes over what `owner` holds, from a permit that was [detached](Permit::detach).
    ///
    /// # Errors
    ///
    /// [`Lost`](crate::ErrorKind::Lost) if `owner` holds nothing now.
    pub async fn attach(&self, owner: impl Into<String>) -> Result<Permit> {
        let (lease, weight) = self.asking(1)?.attach(owner.into()).await?;
        Ok(Permit { lease, weight })
    }

    /// Gives up whatever `owner` has, permits or a place in line, without a [`Permit`].
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, it may or may not have happened; asking again is harmless.
    pub async fn release_as(&self, owner: impl Into<String>) -> Result<Released> {
        self.asking(1)?.release_as(owner.into()).await
    }

    /// Makes the semaphore larger or smaller, on purpose, and tells what the size was, if it was
    /// known.
    ///
    /// Growing serves those who wait. Shrinking takes nothing away: until enough is released, nobody
    /// gets more. Those who wait for more than there will ever be are told so. From then on everybody
    /// must say the new size; callers that [adopt](Semaphore::adopt_size) it need not.
    pub async fn resize(&self, size: u32) -> Result<Option<u32>> {
        check_size("resize", &self.name, size)?;
        let asking = self.asking(1)?;
        let name = asking.checked_name("resize")?;
        let answer = self.coordinator.claims();
        let answer = answer.resize(Kind::Semaphore, name, size);
        asking.call("resize", answer).await
    }

    /// Looks: size, what is taken, who waits, and up to `most` of the holders.
    pub async fn inspect(&self, most: usize) -> Result<Occupancy> {
        self.asking(1)?.inspect(most).await
    }

    /// Everybody who holds permits, those first whose claims would end first.
    pub async fn holders(&self) -> Result<Vec<Holder>> {
        Ok(self.inspect(usize::MAX).await?.holders)
    }

    /// How many permits are free. Somebody may wait for more than that, and then the next to come
    /// waits too.
    pub async fn available(&self) -> Result<u32> {
        let seen = self.inspect(0).await?;
        let size = match seen.size {
            0 => self.size,
            known => known,
        };
        let used = u32::try_from(seen.used).unwrap_or(u32::MAX);
        Ok(size.saturating_sub(used))
    }

    fn asking(&self, weight: u32) -> Result<Acquirer<'_>> {
        check_size("acquire", &self.name, self.size)?;
        let too_much = self.on_size_mismatch == OnSizeMismatch::Refuse && weight > self.size;
        if weight == 0 || weight > MAX_PERMITS || too_much {
            return Err(Error::invalid(
                "acquire",
                format!("{weight} permits of {} can never be granted", self.size),
            )
            .with_name(&self.name)
            .with_hint("ask for at least 1, and no more than there are"));
        }
        Ok(Acquirer {
            coordinator: &self.coordinator,
            kind: Kind::Semaphore,
            name: &self.name,
            share: Share {
                weight,
                size: self.size,
                on_size_mismatch: self.on_size_mismatch,
                order: self.order,
            },
            request: &self.request,
            heal_missing_ttl: false,
        })
    }
}

fn permit(weight: u32) -> impl FnOnce(Lease) -> Permit {
    move |lease| Permit { lease, weight }
}

fn check_size(operation: &'static str, name: &str, size: u32) -> Result<()> {
    if (1..=MAX_PERMITS).contains(&size) {
        return Ok(());
    }
    let message = format!("a size of {size} is outside 1 to {MAX_PERMITS}");
    Err(Error::invalid(operation, message).with_name(name))
}
