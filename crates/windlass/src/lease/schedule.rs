//! When the keeper looks at a claim.

use std::time::Duration;

use super::Moment;

/// A failed renewal is tried again soon, but not in a tight loop.
pub(super) fn retry_pause(ttl: Duration) -> Duration {
    (ttl / 20).clamp(Duration::from_millis(1), Duration::from_millis(250))
}

/// Claims that are renewed at the same interval fall due on a common grid, so that one call carries
/// many.
pub(super) fn batching_grid(interval: Duration) -> Duration {
    (interval / 10).min(Duration::from_millis(20))
}

/// The last point of the grid before `moment`.
pub(super) fn round_down(moment: Moment, grid: Duration) -> Moment {
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
        // A short interval has a finer grid: it must not come to nothing.
        let short = Duration::from_millis(3);
        let start = Moment::from_nanos(1_000_000_000);
        assert!(round_down(start + short, batching_grid(short)) > start);
    }

    #[test]
    fn a_failed_renewal_leaves_time_for_more() {
        assert!(retry_pause(Duration::from_millis(10)) >= Duration::from_millis(1));
        assert!(retry_pause(Duration::from_secs(30)) <= Duration::from_millis(250));
    }
}
