//! How often, and how patiently, an unreachable store is asked again.

use std::time::Duration;

/// What to do when the store cannot be reached, or does not answer, while acquiring.
///
/// A lock that is merely *held* is not retried: waiting in line does that. Asking again is safe even
/// when the first request may have arrived, because it comes from the same owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RetryPolicy {
    tries: u32,
    first_pause: Duration,
    longest_pause: Duration,
}

impl RetryPolicy {
    /// No second try.
    pub const fn none() -> RetryPolicy {
        RetryPolicy::tries(1)
    }

    /// So many tries in all, with pauses that double from 50 ms up to one second, each
    /// shortened by a random part.
    pub const fn tries(tries: u32) -> RetryPolicy {
        RetryPolicy {
            tries: if tries == 0 { 1 } else { tries },
            first_pause: Duration::from_millis(50),
            longest_pause: Duration::from_secs(1),
        }
    }

    /// The first pause and the longest.
    pub const fn pausing(self, first: Duration, longest: Duration) -> RetryPolicy {
        RetryPolicy {
            first_pause: first,
            longest_pause: longest,
            ..self
        }
    }

    /// The pause before try number `done + 1`, or `None` if there is none.
    pub(crate) fn pause_after(&self, done: u32) -> Option<Duration> {
        if done >= self.tries {
            return None;
        }
        let doubled = self.first_pause.saturating_mul(1 << (done - 1).min(20));
        let pause = doubled.min(self.longest_pause);
        // Between half and the whole, so that clients do not come back in step.
        Some(pause.mul_f64(rand::random_range(0.5..=1.0)))
    }
}

impl Default for RetryPolicy {
    /// Three tries.
    fn default() -> RetryPolicy {
        RetryPolicy::tries(3)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_and_end() {
        let policy =
            RetryPolicy::tries(4).pausing(Duration::from_millis(100), Duration::from_millis(250));
        let ms = |d| Duration::from_millis(d);
        assert!((ms(50)..=ms(100)).contains(&policy.pause_after(1).unwrap()));
        assert!((ms(100)..=ms(200)).contains(&policy.pause_after(2).unwrap()));
        assert!((ms(125)..=ms(250)).contains(&policy.pause_after(3).unwrap()));
        assert_eq!(policy.pause_after(4), None);
        assert_eq!(RetryPolicy::none().pause_after(1), None);
    }
}
