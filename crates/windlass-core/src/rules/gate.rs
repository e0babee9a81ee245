//! Gates: reject a fence that is lower than the highest one admitted, and one that no store can have
//! issued.
//!
//! A gate that has admitted a fence far too high, such as a mistyped one, rejects every genuine fence
//! until its retention ends. So a fence above [`Fence::MAX`] is refused on every store. Between that
//! and the genuine fences, only a store whose fences follow a clock can tell: see [`is_too_high`].

use std::time::Duration;

use crate::store::{Admission, GateState};
use crate::{Fence, Moment};

/// How far a fence may be ahead of the highest that the gate's store can have issued.
///
/// The lock may be in another store, whose clock is ahead. A day covers a clock that is set to local
/// time instead of UTC, which is 14 hours at most. And it bounds the damage: a fence that is too high
/// by less than a day blocks a gate for less than a day, because genuine fences have passed it then.
pub const MAX_LEAD: Duration = Duration::from_secs(24 * 60 * 60);

/// Whether no store can have issued `fence`, as far as the gate's store knows.
/// `highest_issued` is the answer of [`GateStore`](crate::store::GateStore).
pub fn is_too_high(fence: Fence, highest_issued: Option<Fence>) -> bool {
    let lead = MAX_LEAD.as_micros() as u64;
    fence > Fence::MAX
        || highest_issued.is_some_and(|highest| fence.get() > highest.get().saturating_add(lead))
}

/// The state of a gate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HighestFence {
    /// The highest fence admitted.
    pub highest: Fence,
    /// When it may be forgotten.
    pub until: Moment,
}

impl HighestFence {
    /// The state, unless the retention is over.
    pub fn state(self, now: Moment) -> Option<GateState> {
        let remaining = self.until.since(now);
        (self.until > now).then(|| GateState::new(self.highest, remaining))
    }
}

/// Decides on `fence`. Returns the state afterwards; an admitted fence is kept until `until`.
pub fn admit(
    seen: Option<HighestFence>,
    now: Moment,
    fence: Fence,
    until: Moment,
) -> (Admission, HighestFence) {
    match seen {
        Some(seen) if seen.until > now && seen.highest > fence => (
            Admission::Stale {
                highest: seen.highest,
            },
            seen,
        ),
        _ => (
            Admission::Admitted,
            HighestFence {
                highest: fence,
                until,
            },
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_fences_that_nothing_can_have_issued_are_too_high() {
        let day = MAX_LEAD.as_micros() as u64;
        let clock = Fence::new(1_800_000_000_000_000);
        for (fence, highest_issued, too_high) in [
            (Fence::MAX, None, false),
            (Fence::new(Fence::MAX.get() + 1), None, true),
            (Fence::new(1), Some(clock), false),
            (clock, Some(clock), false),
            (Fence::new(clock.get() + day), Some(clock), false),
            (Fence::new(clock.get() + day + 1), Some(clock), true),
            (Fence::new(u64::MAX), Some(Fence::new(u64::MAX)), true),
        ] {
            let answer = is_too_high(fence, highest_issued);
            assert_eq!(answer, too_high, "{fence} after {highest_issued:?}");
        }
    }

    #[test]
    fn only_lower_fences_are_rejected() {
        let now = Moment::from_nanos(10);
        let until = Moment::from_nanos(100);
        let (a, seen) = admit(None, now, Fence::new(5), until);
        assert!(a.is_admitted());
        let (a, seen) = admit(Some(seen), now, Fence::new(5), until);
        assert!(a.is_admitted(), "the same holder writes again");
        let (a, seen) = admit(Some(seen), now, Fence::new(4), until);
        assert_eq!(
            a,
            Admission::Stale {
                highest: Fence::new(5)
            }
        );
        let (a, _) = admit(Some(seen), now, Fence::new(6), until);
        assert!(a.is_admitted());
    }
}
