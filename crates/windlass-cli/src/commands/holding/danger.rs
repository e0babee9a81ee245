//! How close a lease is to its end, and what that calls for.
//!
//! A lease is renewed at a third of its ttl, so two thirds of it are always left. Less than half left
//! means that renewals fail. The command must be dead before the lease is over, and deserves some time
//! to clean up before it is killed:
//!
//! ```text
//! ttl ──────── 2/3 ───── 1/2 ──────── min(kill-after, 1/3) ──────── margin ── 0
//!   all is well   │        trouble: say so       TERM                 KILL
//!             renewals
//! ```

use std::time::Duration;

/// No more than this is kept in reserve for the killing itself, which takes milliseconds, also on a busy machine.
const MOST_RESERVE: Duration = Duration::from_millis(250);

/// The marks on the way from a fresh lease to its end.
#[derive(Clone, Copy, Debug)]
pub(super) struct Danger {
    trouble: Duration,
    term: Duration,
    reserve: Duration,
}

/// What a lease with so much time left calls for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Stage {
    Safe,
    /// Renewals fail.
    Trouble,
    /// The command has to end now to be gone in time.
    End,
}

impl Danger {
    pub(super) fn new(ttl: Duration, kill_after: Duration) -> Danger {
        let reserve = (ttl / 20).min(MOST_RESERVE);
        Danger {
            trouble: ttl / 2,
            term: kill_after.min(ttl / 3).max(reserve),
            reserve,
        }
    }

    pub(super) fn stage(&self, left: Duration) -> Stage {
        if left <= self.term {
            Stage::End
        } else if left <= self.trouble {
            Stage::Trouble
        } else {
            Stage::Safe
        }
    }

    /// How long the command may still live.
    pub(super) fn until_kill(&self, left: Duration) -> Duration {
        left.saturating_sub(self.reserve)
    }

    /// When to look again at the latest, with so much time left: at the next mark, and often enough to
    /// notice renewals.
    pub(super) fn next_look(&self, left: Duration) -> Duration {
        let marks = [self.trouble, self.term, self.reserve];
        let to_mark = marks
            .into_iter()
            .find_map(|mark| left.checked_sub(mark).filter(|gap| !gap.is_zero()));
        let often = (self.trouble / 3).min(Duration::from_secs(1));
        to_mark
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
    fn the_command_gets_its_time_unless_the_lease_is_too_short() {
        let usual = Danger::new(ms(30_000), ms(5_000));
        assert_eq!(usual.stage(ms(20_000)), Stage::Safe);
        assert_eq!(usual.stage(ms(15_000)), Stage::Trouble);
        assert_eq!(usual.stage(ms(5_001)), Stage::Trouble);
        assert_eq!(usual.stage(ms(5_000)), Stage::End);
        assert_eq!(usual.until_kill(ms(5_000)), ms(4_750));

        let short = Danger::new(ms(3_000), ms(5_000));
        assert_eq!(short.stage(ms(1_001)), Stage::Trouble);
        assert_eq!(short.stage(ms(1_000)), Stage::End);
        assert_eq!(short.until_kill(ms(1_000)), ms(850));
        assert_eq!(short.until_kill(ms(100)), ms(0));
    }

    #[test]
    fn a_freshly_renewed_lease_is_safe_whatever_the_options() {
        for ttl in [ms(10), ms(100), ms(1_000), ms(30_000), ms(86_400_000)] {
            for kill_after in [ms(0), ms(5_000), ms(3_600_000)] {
                let danger = Danger::new(ttl, kill_after);
                assert_eq!(danger.stage(ttl * 6 / 10), Stage::Safe);
                assert_eq!(danger.stage(ms(0)), Stage::End);
                assert!(danger.until_kill(ttl / 3) > ms(0));
            }
        }
    }

    #[test]
    fn no_mark_is_slept_through() {
        let danger = Danger::new(ms(3_000), ms(5_000));
        assert_eq!(danger.next_look(ms(2_900)), ms(500));
        assert_eq!(danger.next_look(ms(1_600)), ms(100));
        assert_eq!(danger.next_look(ms(1_010)), ms(10));
        assert_eq!(danger.next_look(ms(1_000)), ms(500));
        assert_eq!(danger.next_look(ms(160)), ms(10));
        assert_eq!(danger.next_look(ms(0)), ms(500));
    }
}
