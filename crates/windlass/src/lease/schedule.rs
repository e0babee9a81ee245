//! When the keeper checks a claim: renewals, heartbeats, retries.

use std::time::Duration;

use super::claim::State;
use super::{Claim, Moment};

/// A grant that the store does not show completely yet is renewed for the first time after this long.
const RECORD_AFTER: Duration = Duration::from_millis(50);
/// A waiter checks this long after the holder's claim should have ended, so that the store has expired it.
const AFTER_EXPIRY: Duration = Duration::from_millis(5);

/// When to renew a held claim: at a third of its TTL, or never again.
pub(super) fn next_renewal(claim: &Claim, state: &State) -> Moment {
    let end = claim.held_until();
    if !claim.spec.renews {
        return end;
    }
    let third = claim.spec.ttl / 3;
    round_down(state.confirmed + third, batching_grid(third)).min(end)
}

/// When to renew a claim granted to a request sent at `sent`, which the store does not show completely yet.
pub(super) fn first_recording(sent: Moment) -> Moment {
    round_down(sent + RECORD_AFTER, RECORD_AFTER / 4)
}

/// When to send a queued claim's heartbeat: at a third of its TTL, or when the holder's claim ends,
/// whichever comes first. A heartbeat also finds a grant whose wake-up was lost.
pub(super) fn next_heartbeat(
    claim: &Claim,
    state: &State,
    now: Moment,
    held_for: Option<Duration>,
) -> Moment {
    let third = claim.spec.ttl / 3;
    let heartbeat = round_down(state.confirmed + third, batching_grid(third));
    match held_for {
        Some(held_for) => heartbeat.min(now + held_for + AFTER_EXPIRY),
        None => heartbeat,
    }
}

/// The pause before a failed renewal is retried: short, but not a tight loop.
pub(super) fn retry_pause(ttl: Duration) -> Duration {
    (ttl / 20).clamp(Duration::from_millis(1), Duration::from_millis(250))
}

/// Claims with the same interval fall due on a common grid, so that one call renews many.
fn batching_grid(interval: Duration) -> Duration {
    (interval / 10).min(Duration::from_millis(20))
}

/// The last point of the grid before `moment`.
fn round_down(moment: Moment, grid: Duration) -> Moment {
    let grid = (grid.as_nanos() as u64).max(1);
    Moment::from_nanos(moment.as_nanos() / grid * grid)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn claims_of_one_interval_fall_due_together_and_never_late() {
        let interval = Duration::from_secs(10);
        let grid = batching_grid(interval);
        let due = |nanos| round_down(Moment::from_nanos(nanos) + interval, grid);
        assert_eq!(due(1_000_000_001), due(1_019_999_999));
        assert!(due(1_015_000_000) <= Moment::from_nanos(1_015_000_000) + interval);
        // A short interval has a finer grid, or else it would round down to nothing.
        let short = Duration::from_millis(3);
        let start = Moment::from_nanos(1_000_000_000);
        assert!(round_down(start + short, batching_grid(short)) > start);
    }

    #[test]
    fn failed_renewal_leaves_time_for_more_tries() {
        assert!(retry_pause(Duration::from_millis(10)) >= Duration::from_millis(1));
        assert!(retry_pause(Duration::from_secs(30)) <= Duration::from_millis(250));
    }
}
