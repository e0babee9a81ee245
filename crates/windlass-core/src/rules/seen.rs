//! Deduplication windows.

use std::time::Duration;

/// Whether an item is in the window.
pub fn is_known(until: Option<Duration>, now: Duration) -> bool {
    until.is_some_and(|until| until > now)
}

/// Whether an item is new, and until when it stays in the window.
///
/// The window runs from the first time: seeing an item again does not extend it, or an item that
/// arrives often enough would never be new again.
pub fn first(until: Option<Duration>, now: Duration, window: Duration) -> (bool, Duration) {
    match until {
        Some(until) if until > now => (false, until),
        _ => (true, now + window),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_window_runs_from_the_first_time() {
        let at = Duration::from_millis;
        let (new, until) = first(None, at(100), at(50));
        assert_eq!((new, until), (true, at(150)));
        let (new, until) = first(Some(until), at(149), at(50));
        assert_eq!((new, until), (false, at(150)), "not prolonged");
        assert!(is_known(Some(until), at(149)) && !is_known(Some(until), at(150)));
        assert_eq!(first(Some(until), at(150), at(50)), (true, at(200)));
    }
}
