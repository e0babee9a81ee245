//! Additions that are collected for a while.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use tokio::runtime::Handle;

use super::Counter;
use crate::lease::Clock;
use windlass_core::error::{Error, ErrorKind, Result};

/// How often a [`BufferedCounter`] sends what it has collected, unless told otherwise.
pub const DEFAULT_FLUSH_EVERY: Duration = Duration::from_millis(500);

/// A [`Counter`] that collects additions in this process, and sends their sum now and then: adding costs
/// nanoseconds, and the store hears of a thousand of them once.
///
/// # Guarantees
///
/// - What was added is sent within the [interval](Counter::buffered_every), as long as the store
///   answers; if it does not, it is kept and sent later.
/// - Each sum is added once, even if an answer was lost and it was sent again, for as long as operations are
///   [remembered](Counter::remember), and no less than 24 hours. What the store keeps for this is one small
///   record for each buffer, however often it is flushed.
/// - [`flush`](BufferedCounter::flush) sends what was collected now.
///   [`close`](BufferedCounter::close) sends the rest, and says whether it was added: call it before the
///   program ends.
/// - Dropping the last clone sends the rest in the background, for half a minute if it must, as long as the
///   runtime lives. What could not be sent is logged as a warning.
///
/// **What can be lost**: by a crash, what was added since the last flush that succeeded; by leaving `main`
/// without [`close`](BufferedCounter::close), the same. If that matters, use the counter itself.
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
///
/// views.add(1)?;
/// views.close().await?;
/// assert_eq!(w.counter("views").get().await?, 1_001);
/// # Ok(()) }
/// ```
#[derive(Clone)]
#[must_use = "a counter does nothing until it is asked"]
pub struct BufferedCounter {
    inner: Arc<Inner>,
}

struct Inner {
    counter: Counter,
    /// What the store knows this buffer by.
    id: Arc<str>,
    every: Duration,
    pending: Mutex<Pending>,
    /// One flush at a time.
    flushing: tokio::sync::Mutex<()>,
    flusher: tokio::task::AbortHandle,
    runtime: Handle,
}

#[derive(Clone, Copy, Default)]
struct Pending {
    /// Not sent yet.
    collected: i64,
    /// Sent, and not confirmed yet: the same number, with the same amount, is sent again until it is.
    sent: Option<(u64, i64)>,
    /// The last number that was used.
    number: u64,
    /// Nothing is collected any more.
    closed: bool,
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
            id: format!("buffer-{:032x}", rand::random::<u128>()).into(),
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
    /// If more than 63 bits would be waiting to be sent, or it was [closed](BufferedCounter::close).
    pub fn add(&self, amount: i64) -> Result<()> {
        let mut pending = self.inner.pending();
        if pending.closed {
            return Err(Error::invalid("add", "the buffer is closed")
                .with_name(&self.inner.counter.name)
                .with_hint("add before it is closed, or make another one"));
        }
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
        self.inner.pending().sum()
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
    /// # Errors
    ///
    /// If it could not be sent, or was refused because the counter cannot hold it. It is kept, and
    /// [`pending`](BufferedCounter::pending) says how much it is.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, what was sent is sent again with the next flush, and added once.
    pub async fn flush(&self) -> Result<()> {
        self.inner.flush().await
    }

    /// Sends the rest, and takes no more: neither from this clone nor from another. Once it has succeeded,
    /// all that was ever added is in the store.
    ///
    /// # Errors
    ///
    /// As [`flush`](BufferedCounter::flush). What is left is not lost yet: call it again.
    ///
    /// # Cancel safety
    ///
    /// As [`flush`](BufferedCounter::flush).
    pub async fn close(&self) -> Result<()> {
        self.inner.pending().closed = true;
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
            let Some((number, amount)) = next else {
                return Ok(());
            };
            let counted = self.counter.add_numbered(&self.id, number, amount);
            let counted = counted.await?;
            self.pending().answered(counted.added);
            if !counted.added {
                return Err(refused(&self.counter, amount, counted.value));
            }
        }
    }
}

/// Beyond what the counter can hold.
fn refused(counter: &Counter, amount: i64, value: i64) -> Error {
    let message = format!("{amount} on top of {value} cannot be counted");
    Error::new(ErrorKind::Store, "add", message)
        .with_name(&counter.name)
        .with_hint("reset the counter")
}

impl Pending {
    /// What to send: what was sent and not confirmed, or else what was collected.
    fn next(&mut self) -> Option<(u64, i64)> {
        if self.sent.is_none() && self.collected != 0 {
            self.number += 1;
            let amount = std::mem::take(&mut self.collected);
            self.sent = Some((self.number, amount));
        }
        self.sent
    }

    /// What was sent was added, or refused. What was refused stays collected, for a counter that is reset
    /// one day, and goes into the next sum.
    fn answered(&mut self, added: bool) {
        if let (Some((_, amount)), false) = (self.sent.take(), added) {
            self.collected = self.collected.saturating_add(amount);
        }
    }

    fn is_empty(&self) -> bool {
        self.collected == 0 && self.sent.is_none()
    }

    fn sum(&self) -> i64 {
        let sent = self.sent.map_or(0, |sent| sent.1);
        self.collected.saturating_add(sent)
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
        let rest = Rest {
            counter: self.counter.clone(),
            id: Arc::clone(&self.id),
            pending: *self.pending(),
            problem: None,
        };
        if !rest.pending.is_empty() {
            self.runtime.spawn(rest.send());
        }
    }
}

/// What was left when the last clone was dropped.
struct Rest {
    counter: Counter,
    id: Arc<str>,
    pending: Pending,
    problem: Option<Error>,
}

/// How often the rest is sent before it is given up, half a second apart.
const TRIES: usize = 60;

impl Rest {
    async fn send(mut self) {
        let clock = self.counter.coordinator.keeper().clock().clone();
        for _ in 0..TRIES {
            let Some((number, amount)) = self.pending.next() else {
                return;
            };
            let counted = self.counter.add_numbered(&self.id, number, amount).await;
            match counted {
                Ok(counted) => {
                    self.pending.answered(counted.added);
                    if !counted.added {
                        self.problem = Some(refused(&self.counter, amount, counted.value));
                        return;
                    }
                }
                Err(error) => {
                    let again = error.is_retryable();
                    self.problem = Some(error);
                    if !again {
                        return;
                    }
                    clock.sleep(Duration::from_millis(500)).await;
                }
            }
        }
    }
}

/// Also if the runtime ends before it was sent.
impl Drop for Rest {
    fn drop(&mut self) {
        if self.pending.is_empty() {
            return;
        }
        let (amount, counter) = (self.pending.sum(), &self.counter.name);
        let problem = self.problem.as_ref().map(ToString::to_string);
        let problem = problem.unwrap_or_else(|| "the runtime has ended".to_owned());
        tracing::warn!(
            counter,
            amount,
            problem,
            "the rest of a buffered counter is lost; close it before it is dropped"
        );
    }
}

impl fmt::Debug for BufferedCounter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("BufferedCounter")
            .field(&self.inner.counter)
            .finish()
    }
}
