//! [`Semaphore`]: at most N holders at once, with weights.

use std::time::Duration;

use crate::acquirer::Acquirer;
use crate::coordinator::Coordinator;
use crate::lease::{
    Detached, Lease, RequestOptions, WaitPolicy, guard, note_option, request_options,
};
use crate::lock::Attempt;
use windlass_core::error::{Error, Result};
use windlass_core::store::{Kind, Occupancy, OnSizeMismatch, Order, Released, Share};

/// A distributed semaphore: its name, its size, and how to acquire permits.
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
/// - Never more permits are held than the size, by the store's clock and in one decision, as long as
///   holders stop when their lease is lost.
/// - First come, first served, whatever the weight: a waiter for 5 permits is not starved by clients that want 1.
///   With [`Order::Barging`], a client takes free permits even if others wait for more.
/// - A permit is a lease: renewed, with a loss signal and a fence. After a crash, the TTL frees it.
/// - All clients must name the same size. The store keeps it for at least 12 hours after the last use. A different
///   size is an error of kind [`Mismatch`](crate::ErrorKind::Mismatch); [`resize`](Semaphore::resize) changes it.
///
/// # When not to use this
///
/// To bound how *often* something happens rather than how many do it at once, use a [limiter](crate::Limiter).
#[derive(Clone, Debug)]
#[must_use = "a semaphore does nothing until it is acquired"]
pub struct Semaphore {
    coordinator: Coordinator,
    name: String,
    size: u32,
    on_size_mismatch: OnSizeMismatch,
    order: Order,
    request: RequestOptions,
}

/// Held permits of a semaphore: one, or several acquired together.
///
/// Renewed in the background. Dropping it releases it in the background.
#[derive(Debug)]
#[must_use = "dropping the permit releases it"]
pub struct Permit {
    lease: Lease,
    weight: u32,
}

guard!(Permit, "permit");

impl Permit {
    /// How many permits it holds.
    pub fn weight(&self) -> u32 {
        self.weight
    }

    /// Gives up this handle but not the permit: the permit is renewed once more and then lives for its TTL, for
    /// another process to [attach](Semaphore::attach) to.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the permit is released.
    pub async fn detach(self) -> Result<Detached> {
        self.lease.detach().await
    }
}

impl Semaphore {
    /// The most permits that a semaphore can have.
    pub const MAX_PERMITS: u32 = 1_000_000;

    pub(crate) fn new(coordinator: Coordinator, name: &str, size: u32) -> Semaphore {
        Semaphore {
            request: RequestOptions::new(coordinator.default_ttl()),
            coordinator,
            name: name.to_owned(),
            size,
            on_size_mismatch: OnSizeMismatch::Refuse,
            order: Order::Fifo,
        }
    }

    request_options!();
    note_option!();

    /// The order in which this client is served. A client that [barges](Order::Barging) overtakes waiters, whatever
    /// order they chose.
    pub fn order(mut self, order: Order) -> Semaphore {
        self.order = order;
        self
    }

    /// Uses the stored size, if there is one. The size given here then only applies if the semaphore is new.
    pub fn adopt_size(mut self) -> Semaphore {
        self.on_size_mismatch = OnSizeMismatch::Adopt;
        self
    }

    /// Acquires one permit if it is free; does not wait.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future leaves nothing behind: a permit that was granted is released.
    pub async fn try_acquire(&self) -> Result<Attempt<Permit>> {
        self.try_acquire_many(1).await
    }

    /// Acquires `weight` permits, all or none; does not wait.
    ///
    /// # Cancel safety
    ///
    /// As [`try_acquire`](Semaphore::try_acquire).
    pub async fn try_acquire_many(&self, weight: u32) -> Result<Attempt<Permit>> {
        let outcome = self.acquirer(weight)?.attempt(WaitPolicy::None).await?;
        Ok(Attempt::from(outcome, permit(weight)))
    }

    /// Waits in the queue for one permit.
    ///
    /// # Errors
    ///
    /// [`WaitElapsed`](crate::ErrorKind::WaitElapsed) if [`wait`](Semaphore::wait) was set and has passed.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future leaves the queue, and leaves nothing behind.
    pub async fn acquire(&self) -> Result<Permit> {
        self.acquire_many(1).await
    }

    /// Waits in the queue for `weight` permits, granted together.
    ///
    /// # Cancel safety
    ///
    /// As [`acquire`](Semaphore::acquire).
    pub async fn acquire_many(&self, weight: u32) -> Result<Permit> {
        let lease = self.acquirer(weight)?.acquire().await?;
        Ok(permit(weight)(lease))
    }

    /// Waits in the queue for one permit, at most for `wait`.
    ///
    /// # Cancel safety
    ///
    /// As [`acquire`](Semaphore::acquire).
    pub async fn acquire_within(&self, wait: Duration) -> Result<Attempt<Permit>> {
        self.acquire_many_within(1, wait).await
    }

    /// Waits in the queue for `weight` permits, at most for `wait`.
    ///
    /// # Cancel safety
    ///
    /// As [`acquire`](Semaphore::acquire).
    pub async fn acquire_many_within(
        &self,
        weight: u32,
        wait: Duration,
    ) -> Result<Attempt<Permit>> {
        let outcome = self.acquirer(weight)?.acquire_within(wait).await?;
        Ok(Attempt::from(outcome, permit(weight)))
    }

    /// Takes over what `owner` holds, from a permit that was [detached](Permit::detach).
    ///
    /// # Errors
    ///
    /// [`Lost`](crate::ErrorKind::Lost) if `owner` holds nothing now.
    pub async fn attach(&self, owner: impl Into<String>) -> Result<Permit> {
        let (lease, weight) = self.acquirer(1)?.attach(owner.into()).await?;
        Ok(Permit { lease, weight })
    }

    /// Releases what `owner` has, permits or a queue entry, without a [`Permit`].
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the release may or may not have happened; calling again is harmless.
    pub async fn release_as(&self, owner: impl Into<String>) -> Result<Released> {
        self.acquirer(1)?.release_as(owner.into()).await
    }

    /// Changes the size for all clients, and returns the former size, if it was known.
    ///
    /// A larger size serves waiters. A smaller one revokes nothing: until enough permits are released, no more are
    /// granted. A waiter for more permits than the new size gets an error. Afterwards all clients must name the new
    /// size, except those that [adopt](Semaphore::adopt_size) it.
    pub async fn resize(&self, size: u32) -> Result<Option<u32>> {
        check_size("resize", &self.name, size)?;
        let acquirer = self.acquirer(1)?;
        let name = acquirer.full_name("resize")?;
        let claims = self.coordinator.claims();
        let reply = claims.resize(Kind::Semaphore, name, size);
        acquirer.call("resize", reply).await
    }

    /// Returns the size, the permits in use, the number of waiters, and all holders; those whose claims end first come
    /// first.
    pub async fn inspect(&self) -> Result<Occupancy> {
        self.inspect_up_to(usize::MAX).await
    }

    /// As [`inspect`](Semaphore::inspect), with at most `max_holders` holders: for large semaphores.
    pub async fn inspect_up_to(&self, max_holders: usize) -> Result<Occupancy> {
        self.acquirer(1)?.inspect(max_holders).await
    }

    /// How many permits are free. If a client waits for more than that, the next client waits too.
    pub async fn available(&self) -> Result<u32> {
        let occupancy = self.inspect_up_to(0).await?;
        let size = match occupancy.size {
            0 => self.size,
            known => known,
        };
        let used = u32::try_from(occupancy.used).unwrap_or(u32::MAX);
        Ok(size.saturating_sub(used))
    }

    fn acquirer(&self, weight: u32) -> Result<Acquirer<'_>> {
        check_size("acquire", &self.name, self.size)?;
        let too_much = self.on_size_mismatch == OnSizeMismatch::Refuse && weight > self.size;
        if weight == 0 || weight > Semaphore::MAX_PERMITS || too_much {
            return Err(Error::invalid(
                "acquire",
                format!("{weight} permits of {} can never be granted", self.size),
            )
            .with_name(&self.name)
            .with_hint("acquire at least 1, and at most as many as the semaphore has"));
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
    const MAX: u32 = Semaphore::MAX_PERMITS;
    if (1..=MAX).contains(&size) {
        return Ok(());
    }
    let message = format!("a size of {size} is outside 1 to {MAX}");
    Err(Error::invalid(operation, message).with_name(name))
}
