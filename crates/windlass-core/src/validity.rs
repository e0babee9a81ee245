//! How long a client may rely on a grant.

use std::time::Duration;

use super::Moment;
use crate::error::{Error, Result};

/// The clock drift to allow for, as a part of the TTL. Stored in millionths.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Drift(u32);

/// The granularity of timers on both sides.
const TIMERS: Duration = Duration::from_millis(2);

impl Drift {
    /// A drift of `factor` times the TTL: more than 0 and less than 0.5, or renewal could not keep
    /// up.
    ///
    /// # Errors
    ///
    /// If the factor is out of range.
    pub fn new(factor: f64) -> Result<Drift> {
        // NaN is in no range.
        if factor > 0.0 && factor < 0.5 {
            // Rounded up, never down.
            return Ok(Drift((factor * 1e6).ceil() as u32));
        }
        Err(Error::invalid(
            "connect",
            format!("a drift of {factor} is not between 0 and 0.5, both excluded"),
        )
        .with_hint("0.01 allows clocks to differ by one percent over the life of a claim"))
    }

    /// The drift over `ttl`, with the granularity of timers.
    pub fn over(self, ttl: Duration) -> Duration {
        let nanos = ttl.as_nanos() * u128::from(self.0) / 1_000_000;
        Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX)) + TIMERS
    }

    /// Until when a claim of `ttl` is valid, if the store confirmed a request sent at `sent`.
    ///
    /// The time runs from *before* the request was sent: however long it travelled, the store
    /// started the TTL later.
    pub fn valid_until(self, sent: Moment, ttl: Duration) -> Moment {
        sent + ttl.saturating_sub(self.over(ttl))
    }
}

impl Default for Drift {
    /// The allowance of the Redlock description: one percent.
    fn default() -> Drift {
        Drift(10_000)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn validity_ends_before_the_store_expires_the_claim() {
        let sent = Moment::from_nanos(1_000_000_000);
        let ttl = Duration::from_secs(30);
        assert_eq!(
            Drift::default().valid_until(sent, ttl).since(sent),
            Duration::from_millis(30_000 - 300 - 2)
        );
        let shortest = Duration::from_millis(10);
        assert!(Drift::default().valid_until(sent, shortest) > sent);
        let most = Drift::new(0.499_999).unwrap();
        assert!(most.valid_until(sent, shortest) > sent);
        assert!(most.over(Duration::MAX) > ttl, "nothing overflows");
    }

    #[test]
    fn the_drift_is_the_one_requested() {
        let ttl = Duration::from_secs(10);
        let millis = |factor| Drift::new(factor).unwrap().over(ttl).as_millis();
        assert_eq!(millis(0.01), 102);
        assert_eq!(millis(0.25), 2502);
        assert_eq!(Drift::new(0.01).unwrap(), Drift::default());
    }

    #[test]
    fn factors_out_of_range_are_rejected() {
        for factor in [0.0, -0.1, 0.5, 7.0, f64::NAN, f64::INFINITY] {
            let e = Drift::new(factor).unwrap_err();
            assert!(e.to_string().contains("between 0 and 0.5"), "{e}");
            assert!(e.hint().is_some());
        }
    }
}
