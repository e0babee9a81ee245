//! How long a grant may be relied upon.

use std::time::Duration;

use super::Moment;

/// What two clocks may disagree by over `ttl`, with the granularity of timers.
///
/// The allowance of the Redlock description: one percent and two milliseconds.
pub(crate) fn drift(ttl: Duration) -> Duration {
    ttl / 100 + Duration::from_millis(2)
}

/// Until when a claim of `ttl` holds if the store confirmed a request sent at `sent`.
///
/// Counted from *before* the request left: whatever time it spent on the way, the store began to
/// count later than we did.
pub(crate) fn valid_until(sent: Moment, ttl: Duration) -> Moment {
    sent + ttl.saturating_sub(drift(ttl))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ends_before_the_store_lets_go() {
        let sent = Moment::from_nanos(1_000_000_000);
        let ttl = Duration::from_secs(30);
        assert_eq!(
            valid_until(sent, ttl).since(sent),
            Duration::from_millis(30_000 - 300 - 2)
        );
        let shortest = Duration::from_millis(10);
        assert!(valid_until(sent, shortest) > sent);
    }
}
