//! Waiting for units.

use std::time::Duration;

use super::limiter::{Limiter, check_units};
use super::reservation::{Reservation, Reserve, delay};
use super::store_call::Answer;
use windlass_core::decision::Decision;
use windlass_core::error::{Error, Result};
use windlass_core::rules::limit::{LONGEST_MICROS, LimitOp, Rule};

/// As long as it takes.
const FOR_EVER: Duration = Duration::from_micros(LONGEST_MICROS);

impl Limiter {
    /// Takes so many units for `key`, and waits until they may be used, however long that is. More
    /// than there can ever be are denied at once.
    ///
    /// In a token bucket, whoever asks first is served first. In windows, whoever comes first when a
    /// window opens is.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped while it waits, the units are given back in the background, as far as
    /// those behind have not built on them.
    pub async fn acquire(&self, key: &str, units: u64) -> Result<Decision> {
        self.acquire_within(key, units, FOR_EVER).await
    }

    /// The same, for so long at most. If that is not enough the answer is no, at once, and nothing was
    /// taken.
    pub async fn acquire_within(&self, key: &str, units: u64, wait: Duration) -> Result<Decision> {
        let reservable = |rule: &Rule| matches!(rule, Rule::Bucket(_) | Rule::Allowance { .. });
        if self.rules()?.iter().all(reservable) {
            return match reserve(self, "acquire", key, units, wait).await? {
                Reserve::Denied(decision) => Ok(decision),
                Reserve::Granted(reservation) => Ok(Waiting(Some(reservation)).wait().await),
            };
        }
        let clock = self.clock().clone();
        let deadline = clock.now() + wait.min(FOR_EVER);
        loop {
            let decision = self.check_n(key, units).await?;
            let again = match decision.retry_after() {
                _ if decision.is_allowed() => return Ok(decision),
                Some(again) if clock.now() + again <= deadline => again,
                _ => return Ok(decision),
            };
            clock.sleep(again).await;
        }
    }
}

pub(super) async fn reserve(
    limiter: &Limiter,
    operation: &'static str,
    key: &str,
    units: u64,
    max_wait: Duration,
) -> Result<Reserve> {
    check_units(units)?;
    let rules = limiter.rules()?;
    let window = rules
        .iter()
        .find(|rule| matches!(rule, Rule::Fixed { .. } | Rule::Sliding { .. }));
    if let Some(window) = window {
        let message = format!("a {} has nothing to take in advance", window.algorithm());
        return Err(Error::invalid(operation, message)
            .with_name(key)
            .with_hint("use a token bucket, or acquire, which waits"));
    }
    let name = limiter.name_of(operation, key)?;
    let wait = u64::try_from(max_wait.as_micros()).unwrap_or(u64::MAX);
    let want = LimitOp::Reserve(units, wait.min(LONGEST_MICROS));
    let answer = limiter.ask(operation, name.clone(), want).await?;
    let decision = answer.decision(rules, units);
    if !decision.is_allowed() {
        return Ok(Reserve::Denied(decision));
    }
    let (delay, after) = match answer {
        Answer::Decided(verdict, basis) => {
            let delay = delay(rules, &verdict.states, verdict.now);
            let theirs = basis == windlass_core::decision::Basis::Store;
            (delay, theirs.then_some(verdict.states))
        }
        Answer::Assumed { .. } => (0, None),
    };
    let delay = Duration::from_micros(delay);
    Ok(Reserve::Granted(Reservation::new(
        limiter, name, units, delay, decision, after,
    )))
}

/// A reservation that is waited for. Whoever stops waiting does not need it.
struct Waiting(Option<Reservation>);

impl Waiting {
    async fn wait(mut self) -> Decision {
        let reservation = self.0.as_ref().expect("it is taken only below");
        reservation.ready().await;
        let decision = reservation.allowed();
        self.0 = None;
        decision
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        // Without a runtime nothing can be sent; the bucket fills up by itself.
        if let Some(reservation) = self.0.take()
            && let Ok(runtime) = tokio::runtime::Handle::try_current()
        {
            runtime.spawn(async move {
                if let Err(error) = reservation.cancel().await {
                    tracing::debug!(%error, "a reservation could not be given back");
                }
            });
        }
    }
}
