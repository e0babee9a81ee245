//! When to warn, to send TERM and to kill, by the remaining time of the lease.
//!
//! A lease is renewed after a third of its TTL, so two thirds of it are always left. Less than half left means that
//! renewals fail. The command must be dead before the lease expires, and should have some time to clean up before it is
//! killed:
//!
//! ```text
//! ttl ──────── 2/3 ───── 1/2 ──────── min(kill-after, 1/3) ──────── margin ── 0
//!     renewed     │        failing: warn         TERM                 KILL
//!             renewals
//! ```

use std::time::Duration;

/// Maximum reserve for the killing itself, which takes milliseconds even on a busy machine.
const MAX_RESERVE: Duration = Duration::from_millis(250);

/// The thresholds of the remaining time.
#[derive(Clone, Copy, Debug)]
pub(super) struct Deadlines {
    warn: Duration,
    term: Duration,
    reserve: Duration,
}

/// The state of a lease by its remaining time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum LeaseStage {
    Safe,
    /// Renewals fail.
    Failing,
    /// The command must end now, to be dead before the lease expires.
    Expiring,
}

impl Deadlines {
    pub(super) fn new(ttl: Duration, kill_after: Duration) -> Deadlines {
        let reserve = (ttl / 20).min(MAX_RESERVE);
        Deadlines {
            warn: ttl / 2,
            term: kill_after.min(ttl / 3).max(reserve),
            reserve,
        }
    }

    pub(super) fn stage(&self, left: Duration) -> LeaseStage {
        if left <= self.term {
            LeaseStage::Expiring
        } else if left <= self.warn {
            LeaseStage::Failing
        } else {
            LeaseStage::Safe
        }
    }

    /// Time until the command is killed.
    pub(super) fn until_kill(&self, left: Duration) -> Duration {
        left.saturating_sub(self.reserve)
    }

    /// Time until the next check: at the next threshold, and often enough to notice renewals.
    pub(super) fn next_check(&self, left: Duration) -> Duration {
        let thresholds = [self.warn, self.term, self.reserve];
        let to_threshold = thresholds
            .into_iter()
            .find_map(|threshold| left.checked_sub(threshold).filter(|gap| !gap.is_zero()));
        let often = (self.warn / 3).min(Duration::from_secs(1));
        to_threshold
            .unwrap_or(often)
            .min(often)
            .max(Duration::from_millis(1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn ms(millis: u64) -> Duration {
        Duration::from_millis(millis)
    }

    #[test]
    fn term_comes_kill_after_before_the_end_unless_the_lease_is_short() {
        let usual = Deadlines::new(ms(30_000), ms(5_000));
        assert_eq!(usual.stage(ms(20_000)), LeaseStage::Safe);
        assert_eq!(usual.stage(ms(15_000)), LeaseStage::Failing);
        assert_eq!(usual.stage(ms(5_001)), LeaseStage::Failing);
        assert_eq!(usual.stage(ms(5_000)), LeaseStage::Expiring);
        assert_eq!(usual.until_kill(ms(5_000)), ms(4_750));

        let short = Deadlines::new(ms(3_000), ms(5_000));
        assert_eq!(short.stage(ms(1_001)), LeaseStage::Failing);
        assert_eq!(short.stage(ms(1_000)), LeaseStage::Expiring);
        assert_eq!(short.until_kill(ms(1_000)), ms(850));
        assert_eq!(short.until_kill(ms(100)), ms(0));
    }

    #[test]
    fn freshly_renewed_lease_is_safe_with_any_options() {
        for ttl in [ms(10), ms(100), ms(1_000), ms(30_000), ms(86_400_000)] {
            for kill_after in [ms(0), ms(5_000), ms(3_600_000)] {
                let deadlines = Deadlines::new(ttl, kill_after);
                assert_eq!(deadlines.stage(ttl * 6 / 10), LeaseStage::Safe);
                assert_eq!(deadlines.stage(ms(0)), LeaseStage::Expiring);
                assert!(deadlines.until_kill(ttl / 3) > ms(0));
            }
        }
    }

    #[test]
    fn next_check_is_never_later_than_a_threshold() {
        let deadlines = Deadlines::new(ms(3_000), ms(5_000));
        assert_eq!(deadlines.next_check(ms(2_900)), ms(500));
        assert_eq!(deadlines.next_check(ms(1_600)), ms(100));
        assert_eq!(deadlines.next_check(ms(1_010)), ms(10));
        assert_eq!(deadlines.next_check(ms(1_000)), ms(500));
        assert_eq!(deadlines.next_check(ms(160)), ms(10));
        assert_eq!(deadlines.next_check(ms(0)), ms(500));
    }
}
