//! Gates: reject a fence that is lower than the highest one admitted.

use crate::store::Admission;
use crate::{Fence, Moment};

/// The state of a gate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HighestFence {
    /// The highest fence admitted.
    pub highest: Fence,
    /// When it may be forgotten.
    pub until: Moment,
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
