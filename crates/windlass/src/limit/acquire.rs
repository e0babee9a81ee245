//! Waiting for units.

use std::time::Duration;

use super::limiter::Limiter;
use super::reservation::{Reservation, Reserve, reservable, reserve};
use windlass_core::decision::Decision;
use windlass_core::error::Result;
use windlass_core::rules::limit::MAX_PERIOD_MICROS;

/// Longer than any wait.
const FOR_EVER: Duration = Duration::from_micros(MAX_PERIOD_MICROS);

impl Limiter {
    /// Takes `units` units for `key`, and waits until they may be used, however long that is. More than the limit are
    /// denied at once.
    ///
    /// A token bucket serves callers in the order of their calls. In windows, the first callers after a
    /// window opens are served.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped while it waits, the units are returned in the background, as far as later
    /// reservations do not depend on them.
    pub async fn acquire(&self, key: &str, units: u64) -> Result<Decision> {
        self.acquire_within(key, units, FOR_EVER).await
    }

    /// As [`acquire`](Limiter::acquire), waiting at most for `wait`. If that is not enough, the call is denied at
    /// once, and nothing was taken.
    ///
    /// # Cancel safety
    ///
    /// As [`acquire`](Limiter::acquire).
    pub async fn acquire_within(&self, key: &str, units: u64, wait: Duration) -> Result<Decision> {
        if self.rules()?.iter().all(reservable) {
            return match reserve(self, "acquire", key, units, wait).await? {
                Reserve::Denied(decision) => Ok(decision),
                Reserve::Granted(reservation) => {
                    Ok(AwaitedReservation(Some(reservation)).wait().await)
                }
            };
        }
        let clock = self.clock().clone();
        let deadline = clock.now() + wait.min(FOR_EVER);
        loop {
            let decision = self.check_n(key, units).await?;
            let pause = match decision.retry_after() {
                _ if decision.is_allowed() => return Ok(decision),
                Some(pause) if clock.now() + pause <= deadline => pause,
                _ => return Ok(decision),
            };
            clock.sleep(pause).await;
        }
    }
}

/// A reservation that is cancelled if its caller stops waiting.
struct AwaitedReservation(Option<Reservation>);

impl AwaitedReservation {
    async fn wait(mut self) -> Decision {
        let reservation = self.0.as_ref().expect("it is taken only below");
        reservation.ready().await;
        let decision = reservation.decision();
        self.0 = None;
        decision
    }
}

impl Drop for AwaitedReservation {
    fn drop(&mut self) {
        // Without a runtime nothing can be sent; the bucket refills on its own.
        if let Some(reservation) = self.0.take()
            && let Ok(runtime) = tokio::runtime::Handle::try_current()
        {
            runtime.spawn(async move {
                if let Err(error) = reservation.cancel().await {
                    tracing::debug!(%error, "a reservation could not be cancelled");
                }
            });
        }
    }
}
