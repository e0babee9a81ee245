//! How often a call to an unreachable store is retried, and with what pauses.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

/// What to do when the store cannot be reached, or does not answer, while acquiring.
///
/// A lock that is *held* is not retried: the wait queue is for that. A retry is safe even when the
/// first request may have arrived, because it has the same owner.
///
/// ```
/// use std::time::Duration;
/// use windlass::RetryPolicy;
///
/// let exponential = RetryPolicy::tries(10).pausing(Duration::from_millis(20), Duration::from_secs(5));
/// let linear = RetryPolicy::tries(5).pausing_by(|tries| Duration::from_millis(100) * tries);
/// # let _ = (exponential, linear);
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RetryPolicy {
    tries: u32,
    pauses: Pauses,
}

/// The pauses between tries.
#[derive(Clone)]
enum Pauses {
    /// Exponential backoff with jitter.
    Doubling { first: Duration, longest: Duration },
    /// Computed by the caller's function.
    By(Arc<dyn Fn(u32) -> Duration + Send + Sync>),
}

impl RetryPolicy {
    /// One try, no retry.
    pub const fn none() -> RetryPolicy {
        RetryPolicy::tries(1)
    }

    /// At most `tries` tries, with exponential backoff from 50 ms up to one second, and jitter.
    pub const fn tries(tries: u32) -> RetryPolicy {
        RetryPolicy {
            tries: if tries == 0 { 1 } else { tries },
            pauses: Pauses::Doubling {
                first: Duration::from_millis(50),
                longest: Duration::from_secs(1),
            },
        }
    }

    /// Exponential backoff from `first` up to `longest`, with jitter.
    pub fn pausing(self, first: Duration, longest: Duration) -> RetryPolicy {
        RetryPolicy {
            pauses: Pauses::Doubling { first, longest },
            ..self
        }
    }

    /// Pauses for exactly what `pause` returns for the number of tries so far (1 after the first).
    ///
    /// No jitter is added: let the function vary where many clients may fail together. A pause that
    /// would outlast the caller's [`wait`](crate::Lock::wait) is not started: acquiring fails at once with
    /// the last error.
    pub fn pausing_by(
        self,
        pause: impl Fn(u32) -> Duration + Send + Sync + 'static,
    ) -> RetryPolicy {
        RetryPolicy {
            pauses: Pauses::By(Arc::new(pause)),
            ..self
        }
    }

    /// The pause before try number `done + 1`; `None` if there is no further try.
    pub(crate) fn pause_after(&self, done: u32) -> Option<Duration> {
        if done >= self.tries {
            return None;
        }
        Some(match &self.pauses {
            Pauses::Doubling { first, longest } => {
                let doubled = first.saturating_mul(1 << (done - 1).min(20));
                let pause = doubled.min(*longest);
                // Between half and all of it, so that clients do not retry in step.
                pause.mul_f64(rand::random_range(0.5..=1.0))
            }
            Pauses::By(pause) => pause(done),
        })
    }
}

impl Default for RetryPolicy {
    /// Three tries.
    fn default() -> RetryPolicy {
        RetryPolicy::tries(3)
    }
}

impl PartialEq for Pauses {
    /// Functions cannot be compared: two are equal if one is a clone of the other.
    fn eq(&self, other: &Pauses) -> bool {
        match (self, other) {
            (Pauses::By(one), Pauses::By(other)) => Arc::ptr_eq(one, other),
            (
                Pauses::Doubling { first, longest },
                Pauses::Doubling {
                    first: other_first,
                    longest: other_longest,
                },
            ) => (first, longest) == (other_first, other_longest),
            _ => false,
        }
    }
}

impl Eq for Pauses {}

impl fmt::Debug for Pauses {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Pauses::Doubling { first, longest } => write!(f, "{first:?} to {longest:?}"),
            Pauses::By(_) => f.write_str("by a function"),
        }
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

    #[test]
    fn a_function_sets_each_pause_exactly() {
        let policy = RetryPolicy::tries(3).pausing_by(|tries| Duration::from_secs(7) * tries);
        assert_eq!(policy.pause_after(1), Some(Duration::from_secs(7)));
        assert_eq!(policy.pause_after(2), Some(Duration::from_secs(14)));
        assert_eq!(policy.pause_after(3), None);
        assert_eq!(policy, policy.clone());
        assert_ne!(policy, RetryPolicy::tries(3));
        assert!(format!("{policy:?}").contains("by a function"));
    }
}
