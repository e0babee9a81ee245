//! Additions that are collected for a while.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use tokio::runtime::Handle;

use super::Counter;
use crate::error::{Error, ErrorKind, Result};
use crate::lease::Clock;

/// How often a [`BufferedCounter`] sends what it has collected, unless told otherwise.
pub const DEFAULT_FLUSH_EVERY: Duration = Duration::from_millis(500);

/// A [`Counter`] that collects additions in this process, and sends their sum now and then: adding costs
/// nanoseconds, and the store hears of a thousand of them once.
///
/// # Guarantees
///
/// - What was added is sent within the [interval](Counter::buffered_every), as long as the store
///   answers; if it does not, it is kept and sent later.
/// - Each sum is added once, even if an answer was lost and it was sent again.
/// - Dropping it sends the rest in the background; [`flush`](BufferedCounter::flush) does so now.
///
/// **What a crash can lose**: what was added since the last flush that succeeded. If that matters, use
/// the counter itself.
///
/// # Example
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> windlass::Result<()> {
/// let w = windlass::connect("memory:").await?;
/// let views = w.counter("views").buffered()?;
/// for _ in 0..1_000 {
///     views.add(1)?;
/// }
/// views.flush().await?;
/// assert_eq!(w.counter("views").get().await?, 1_000);
/// # Ok(()) }
/// ```
#[derive(Clone)]
#[must_use = "a counter does nothing until it is asked"]
pub struct BufferedCounter {
    inner: Arc<Inner>,
}

struct Inner {
    counter: Counter,
    every: Duration,
    pending: Mutex<Pending>,
    /// One flush at a time.
    flushing: tokio::sync::Mutex<()>,
    flusher: tokio::task::AbortHandle,
    runtime: Handle,
}

#[derive(Default)]
struct Pending {
    /// Not sent yet.
    collected: i64,
    /// Sent, and not confirmed yet: the same operation is sent again until it is.
    sent: Option<(String, i64)>,
}

impl Counter {
    /// The same counter, collecting additions for [`DEFAULT_FLUSH_EVERY`].
    ///
    /// # Errors
    ///
    /// If the counter has a bound: nobody could be told of a refusal any more.
    ///
    /// # Panics
    ///
    /// Outside a tokio runtime.
    pub fn buffered(&self) -> Result<BufferedCounter> {
        self.buffered_every(DEFAULT_FLUSH_EVERY)
    }

    /// The same, for so long: no addition is older than this when it is sent.
    pub fn buffered_every(&self, every: Duration) -> Result<BufferedCounter> {
        if self.min != i64::MIN || self.max != i64::MAX {
            return Err(
                Error::invalid("buffer", "a counter with a bound answers each addition")
                    .with_name(&self.name)
                    .with_hint("leave the bound out, or add without a buffer"),
            );
        }
        let mut counter = self.clone();
        counter.remember = counter.remember.max(super::DEFAULT_REMEMBER_OPERATION);
        let clock = self.coordinator.keeper().clock().clone();
        let inner = Arc::new_cyclic(|weak: &Weak<Inner>| Inner {
            counter,
            every,
            pending: Mutex::default(),
            flushing: tokio::sync::Mutex::default(),
            flusher: Handle::current()
                .spawn(flush_now_and_then(weak.clone(), clock, every))
                .abort_handle(),
            runtime: Handle::current(),
        });
        Ok(BufferedCounter { inner })
    }
}

impl BufferedCounter {
    /// Adds, or subtracts if negative. Nobody is asked, and nothing waits.
    ///
    /// # Errors
    ///
    /// If more than 63 bits would be waiting to be sent.
    pub fn add(&self, amount: i64) -> Result<()> {
        let mut pending = self.inner.pending();
        match pending.collected.checked_add(amount) {
            Some(sum) => {
                pending.collected = sum;
                Ok(())
            }
            None => Err(Error::invalid("add", "too much is waiting to be sent")
                .with_name(&self.inner.counter.name)
                .with_hint("flush first")),
        }
    }

    /// What is waiting to be sent, or to be confirmed.
    pub fn pending(&self) -> i64 {
        let pending = self.inner.pending();
        let sent = pending.sent.as_ref().map_or(0, |sent| sent.1);
        pending.collected.saturating_add(sent)
    }

    /// The store's value, and what this process has collected since: what others have collected is
    /// missing, up to their intervals old.
    pub async fn get(&self) -> Result<i64> {
        let stored = self.inner.counter.get().await?;
        Ok(stored.saturating_add(self.inner.pending().collected))
    }

    /// How often what was collected is sent.
    pub fn every(&self) -> Duration {
        self.inner.every
    }

    /// Sends what was collected, now.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, what was sent is sent again with the next flush, and added once.
    pub async fn flush(&self) -> Result<()> {
        self.inner.flush().await
    }
}

impl Inner {
    fn pending(&self) -> MutexGuard<'_, Pending> {
        self.pending.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn flush(&self) -> Result<()> {
        let _one_at_a_time = self.flushing.lock().await;
        loop {
            let next = self.pending().next();
            let Some((operation, amount)) = next else {
                return Ok(());
            };
            let counted = self.counter.add_once(&operation, amount).await;
            match counted {
                Ok(counted) if counted.added => self.pending().sent = None,
                Ok(counted) => {
                    // Beyond 64 bits. It stays collected, for a counter that is reset one day.
                    self.pending().put_back();
                    let value = counted.value;
                    let message = format!("{amount} on top of {value} cannot be counted");
                    return Err(Error::new(ErrorKind::Store, "add", message)
                        .with_name(&self.counter.name)
                        .with_hint("reset the counter"));
                }
                Err(error) => return Err(error),
            }
        }
    }
}

impl Pending {
    /// What to send: what was sent and not confirmed, or else what was collected.
    fn next(&mut self) -> Option<(String, i64)> {
        if self.sent.is_none() && self.collected != 0 {
            let amount = std::mem::take(&mut self.collected);
            self.sent = Some((format!("flush-{:032x}", rand::random::<u128>()), amount));
        }
        self.sent.clone()
    }

    /// What was sent was not added.
    fn put_back(&mut self) {
        if let Some((_, amount)) = self.sent.take() {
            self.collected = self.collected.saturating_add(amount);
        }
    }
}

async fn flush_now_and_then(inner: Weak<Inner>, clock: Clock, every: Duration) {
    loop {
        clock.sleep(every).await;
        let Some(inner) = inner.upgrade() else {
            return;
        };
        if let Err(error) = inner.flush().await {
            tracing::warn!(%error, "a counter could not be flushed; it will be tried again");
        }
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.flusher.abort();
        let pending = std::mem::take(&mut *self.pending());
        let runtime = self.runtime.clone();
        let clock = self.counter.coordinator.keeper().clock().clone();
        let counter = self.counter.clone();
        runtime.spawn(async move {
            let mut pending = pending;
            let mut failures = 0;
            while let Some((operation, amount)) = pending.next() {
                match counter.add_once(&operation, amount).await {
                    Ok(_) => pending.sent = None,
                    Err(error) if error.is_retryable() && failures < 60 => {
                        failures += 1;
                        clock.sleep(Duration::from_millis(500)).await;
                    }
                    Err(error) => {
                        tracing::warn!(%error, amount, "the last of a counter could not be sent");
                        return;
                    }
                }
            }
        });
    }
}

impl fmt::Debug for BufferedCounter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("BufferedCounter")
            .field(&self.inner.counter)
            .finish()
    }
}
