//! [`BufferedCounter`]: collects additions in this process and sends their sum at intervals.
//!
//! Each sum has the buffer's id and a number. A sum without a reply is sent again with the same number and amount
//! until the store confirms it, so it is added once. The store keeps one record per buffer: the last number.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use tokio::runtime::Handle;

use super::Counter;
use crate::lease::Clock;
use windlass_core::error::{Error, ErrorKind, Result};

/// A [`Counter`] that collects additions in this process and sends their sum at intervals: adding costs
/// nanoseconds, and a thousand additions cost one store call.
///
/// # Guarantees
///
/// - An addition is sent within the [interval](Counter::buffered_every), as long as the store answers. If it does not,
///   the addition is kept and sent later.
/// - Each sum is added once, even if its reply was lost and it was sent again, for the counter's
///   [retention](Counter::retention), at least 24 hours. The store keeps one small record per buffer for this.
/// - [`flush`](BufferedCounter::flush) sends what was collected now. [`close`](BufferedCounter::close) sends the rest
///   and returns whether it was added: call it before the program ends.
/// - Dropping the last clone sends the rest in the background, for up to half a minute while the runtime lives.
///   A warning is logged if it could not be sent.
///
/// **What can be lost**: additions since the last successful flush, by a crash or by leaving `main` without
/// [`close`](BufferedCounter::close). If that matters, use the counter itself.
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
#[must_use = "a counter does nothing until one of its methods is called"]
pub struct BufferedCounter {
    inner: Arc<BufferedCounterInner>,
}

struct BufferedCounterInner {
    counter: Counter,
    /// Identifies this buffer in the store.
    id: Arc<str>,
    interval: Duration,
    pending: Mutex<PendingSum>,
    /// One flush at a time.
    flushing: tokio::sync::Mutex<()>,
    flusher: tokio::task::AbortHandle,
    runtime: Handle,
}

#[derive(Clone, Copy, Default)]
struct PendingSum {
    /// Not sent yet.
    collected: i64,
    /// Number and amount that were sent and not confirmed yet.
    sent: Option<(u64, i64)>,
    /// The last number used.
    number: u64,
    /// No more additions are accepted.
    closed: bool,
}

impl Counter {
    /// The same counter, sending additions every [`BufferedCounter::DEFAULT_INTERVAL`].
    ///
    /// # Errors
    ///
    /// If the counter has a bound: a buffered addition cannot be refused.
    ///
    /// # Panics
    ///
    /// Outside a tokio runtime.
    pub fn buffered(&self) -> Result<BufferedCounter> {
        self.buffered_every(BufferedCounter::DEFAULT_INTERVAL)
    }

    /// The same counter, sending additions at this interval.
    ///
    /// # Errors and panics
    ///
    /// As [`buffered`](Counter::buffered).
    pub fn buffered_every(&self, interval: Duration) -> Result<BufferedCounter> {
        if self.min != i64::MIN || self.max != i64::MAX {
            return Err(
                Error::invalid("buffer", "a counter with a bound cannot be buffered")
                    .with_name(&self.name)
                    .with_hint("remove the bound, or add without a buffer"),
            );
        }
        let mut counter = self.clone();
        counter.retention = counter.retention.max(Counter::DEFAULT_RETENTION);
        let clock = self.coordinator.keeper().clock().clone();
        let inner = Arc::new_cyclic(|weak: &Weak<BufferedCounterInner>| BufferedCounterInner {
            counter,
            id: format!("buffer-{:032x}", rand::random::<u128>()).into(),
            interval,
            pending: Mutex::default(),
            flushing: tokio::sync::Mutex::default(),
            flusher: Handle::current()
                .spawn(flush_loop(weak.clone(), clock, interval))
                .abort_handle(),
            runtime: Handle::current(),
        });
        Ok(BufferedCounter { inner })
    }
}

impl BufferedCounter {
    /// How often the sum is sent, unless another [interval](Counter::buffered_every) is set.
    pub const DEFAULT_INTERVAL: Duration = Duration::from_millis(500);

    /// Adds, or subtracts if negative, without waiting.
    ///
    /// # Errors
    ///
    /// If the pending sum would exceed 64 bits, or the buffer was [closed](BufferedCounter::close).
    pub fn add(&self, amount: i64) -> Result<()> {
        let mut pending = self.inner.pending();
        if pending.closed {
            return Err(Error::invalid("add", "the buffer is closed")
                .with_name(&self.inner.counter.name)
                .with_hint("add before close, or create another buffer"));
        }
        match pending.collected.checked_add(amount) {
            Some(sum) => {
                pending.collected = sum;
                Ok(())
            }
            None => Err(Error::invalid("add", "the pending sum exceeds 64 bits")
                .with_name(&self.inner.counter.name)
                .with_hint("flush first")),
        }
    }

    /// The sum that is not sent or not confirmed yet.
    pub fn pending(&self) -> i64 {
        self.inner.pending().sum()
    }

    /// Returns the store's value plus what this process has collected since. What other processes have collected within
    /// their intervals is missing.
    pub async fn get(&self) -> Result<i64> {
        let stored = self.inner.counter.get().await?;
        Ok(stored.saturating_add(self.inner.pending().collected))
    }

    /// How often the sum is sent.
    pub fn interval(&self) -> Duration {
        self.inner.interval
    }

    /// Sends what was collected, now.
    ///
    /// # Errors
    ///
    /// If the sum could not be sent, or the counter would exceed 64 bits. The sum is kept:
    /// [`pending`](BufferedCounter::pending) returns it.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the sum is sent again with the next flush, and added once.
    pub async fn flush(&self) -> Result<()> {
        self.inner.flush().await
    }

    /// Sends the rest, and accepts no more additions, from any clone. After success, everything that was added is in
    /// the store.
    ///
    /// # Errors
    ///
    /// As [`flush`](BufferedCounter::flush). The rest is kept: call it again.
    ///
    /// # Cancel safety
    ///
    /// As [`flush`](BufferedCounter::flush).
    pub async fn close(&self) -> Result<()> {
        self.inner.pending().closed = true;
        self.inner.flush().await
    }
}

impl BufferedCounterInner {
    fn pending(&self) -> MutexGuard<'_, PendingSum> {
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
            self.pending().confirm(counted.added);
            if !counted.added {
                return Err(refused(&self.counter, amount, counted.value));
            }
        }
    }
}

/// The counter would exceed 64 bits.
fn refused(counter: &Counter, amount: i64, value: i64) -> Error {
    let message = format!("{amount} on top of {value} cannot be counted: it exceeds 64 bits");
    Error::new(ErrorKind::Store, "add", message)
        .with_name(&counter.name)
        .with_hint("reset the counter")
}

impl PendingSum {
    /// What to send: the unconfirmed sum, or else what was collected.
    fn next(&mut self) -> Option<(u64, i64)> {
        if self.sent.is_none() && self.collected != 0 {
            self.number += 1;
            let amount = std::mem::take(&mut self.collected);
            self.sent = Some((self.number, amount));
        }
        self.sent
    }

    /// The sum was added or refused. A refused sum goes into the next one, in case the counter is reset.
    fn confirm(&mut self, added: bool) {
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

async fn flush_loop(inner: Weak<BufferedCounterInner>, clock: Clock, interval: Duration) {
    loop {
        clock.sleep(interval).await;
        let Some(inner) = inner.upgrade() else {
            return;
        };
        if let Err(error) = inner.flush().await {
            tracing::warn!(%error, "a counter could not be flushed; it will be retried");
        }
    }
}

impl Drop for BufferedCounterInner {
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

/// The pending sum of a buffer whose last clone was dropped.
struct Rest {
    counter: Counter,
    id: Arc<str>,
    pending: PendingSum,
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
                    self.pending.confirm(counted.added);
                    if !counted.added {
                        self.problem = Some(refused(&self.counter, amount, counted.value));
                        return;
                    }
                }
                Err(error) => {
                    let retryable = error.is_retryable();
                    self.problem = Some(error);
                    if !retryable {
                        return;
                    }
                    clock.sleep(Duration::from_millis(500)).await;
                }
            }
        }
    }
}

/// Logs what is lost; also if the runtime ends first.
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
