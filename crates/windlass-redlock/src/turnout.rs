//! Who is asked, and when: a majority first, and the others when they are needed.
//!
//! A lock that is free is granted by whoever is asked, so most often a majority is all it takes, and
//! asking the others is work for nothing. To the protocol, not to be asked is the same as a message that
//! got lost: whatever is safe then is safe here. What must not suffer is that any minority may fail:
//!
//! - All clients ask the **same** majority first. So those who want the same lock meet there, whoever
//!   waits stands in line where the holder is, and these nodes see all requests and give the same numbers.
//! - If one of them is known to be in trouble, **all** are asked at once. If one turns out to be (an
//!   error, or no answer in a few times the usual time), the others are asked right then, and from then
//!   on all at once until it answers in time again. So nobody waits twice for the same trouble.
//! - Those who are **spared** are looked after all the same: one that was started anew, and has lost what it
//!   knew, is let in again while the others are there to be heard.
//! - What is held for longer than a moment is on **all** nodes: the keeper renews such a claim early, and
//!   that renewal asks for it where it was not asked for yet. Therefore only claims of which that is
//!   certain begin on a majority.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use super::nodes::NodeSet;
use windlass_core::store::{AcquireRequest, Kind};

/// So many times the usual time is not late yet.
const LATE: u32 = 8;
/// Nor is less than this: the asker's own machine may have been busy.
const SHORTEST: Duration = Duration::from_millis(5);
/// What is usual as long as nothing is known.
const AT_FIRST: Duration = Duration::from_millis(5);
/// Of how many rounds the usual time is about the average.
const MEMORY: u64 = 16;

/// Whether a claim may begin on a majority.
pub(super) fn begins_on_few(ask: &AcquireRequest) -> bool {
    // It will be renewed early (see `record_now`), and on behalf of the other kinds, or of one that may
    // be anywhere already, it cannot be told what to ask for or where to release it.
    ask.kind == Kind::Lock && !ask.record_now && !ask.again && !ask.heal_missing_ttl
}

/// The nodes to ask at first: those of `preferred` if that is enough, or all of them.
pub(super) fn first_asked(
    nodes: usize,
    preferred: NodeSet,
    begins_on_few: bool,
    in_doubt: impl Fn(usize) -> bool,
) -> NodeSet {
    match begins_on_few && !preferred.iter().any(in_doubt) {
        true => preferred,
        false => NodeSet::first(nodes),
    }
}

/// Whether the others are needed, as long as nothing is decided.
pub(super) fn needs_the_rest(asked: usize, answered: usize, failed: usize) -> bool {
    failed > 0 || answered >= asked
}

/// How long a decision usually takes, in nanoseconds.
#[derive(Debug)]
pub(super) struct Pace(AtomicU64);

impl Default for Pace {
    fn default() -> Pace {
        Pace(AtomicU64::new(nanos(AT_FIRST)))
    }
}

impl Pace {
    /// A majority has decided after so long.
    pub(super) fn decided_after(&self, took: Duration) {
        let usual = self.0.load(Ordering::Relaxed);
        // Of two at once one may be forgotten: it is an average.
        let usual = usual - usual / MEMORY + nanos(took) / MEMORY;
        self.0.store(usual, Ordering::Relaxed);
    }

    /// How long to wait for those who were asked before asking others, where `limit` is all the time
    /// there is.
    pub(super) fn patience(&self, limit: Duration) -> Duration {
        let usual = Duration::from_nanos(self.0.load(Ordering::Relaxed));
        (usual * LATE).max(SHORTEST).min(limit / 2)
    }
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX / 2)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn a_majority_is_asked_unless_one_of_it_is_in_doubt() {
        let all = NodeSet::first(5);
        let preferred: NodeSet = [1, 2, 4].into_iter().collect();
        assert_eq!(first_asked(5, preferred, true, |_| false), preferred);
        assert_eq!(first_asked(5, preferred, true, |n| n == 3), preferred);
        for node in [1, 2, 4] {
            assert_eq!(first_asked(5, preferred, true, |n| n == node), all);
        }
        assert_eq!(first_asked(5, preferred, false, |_| false), all);
    }

    #[test]
    fn the_rest_is_asked_when_somebody_fails_or_all_have_spoken() {
        assert!(!needs_the_rest(3, 0, 0));
        assert!(!needs_the_rest(3, 2, 0));
        assert!(needs_the_rest(3, 1, 1));
        assert!(needs_the_rest(3, 3, 0));
    }

    #[test]
    fn late_is_a_few_times_what_is_usual() {
        let pace = Pace::default();
        let long = Duration::from_secs(10);
        for _ in 0..1000 {
            pace.decided_after(MS / 10);
        }
        assert_eq!(pace.patience(long), SHORTEST);
        for _ in 0..1000 {
            pace.decided_after(4 * MS);
        }
        let slow = pace.patience(long);
        assert!(slow > 28 * MS && slow <= 32 * MS, "{slow:?}");
        // One that is slow changes little.
        pace.decided_after(100 * MS);
        assert!(pace.patience(long) < 90 * MS);
        // Half of the time is left for the others.
        assert_eq!(pace.patience(20 * MS), 10 * MS);
    }
}
