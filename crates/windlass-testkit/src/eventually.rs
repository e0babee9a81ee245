//! Polling, for conditions that nobody signals.

use std::future::Future;
use std::thread;
use std::time::{Duration, Instant};

const FIRST_PAUSE: Duration = Duration::from_millis(5);
const LONGEST_PAUSE: Duration = Duration::from_millis(50);

/// Polls `check` until it is true, and tells whether that happened within `timeout`.
///
/// The condition is checked at least once, and once more when the time is up. A check that is still
/// running then is cancelled.
///
/// Time is tokio's: on a paused clock the pauses pass at once, so real servers and processes get no
/// time to do anything. Use [`eventually_blocking`] for those.
///
/// ```
/// # use std::time::Duration;
/// # tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(async {
/// let mut left = 3;
/// let done = windlass_testkit::eventually(Duration::from_secs(1), || {
///     left -= 1;
///     let done = left == 0;
///     async move { done }
/// });
/// assert!(done.await);
/// # });
/// ```
pub async fn eventually<C, F>(timeout: Duration, mut check: C) -> bool
where
    C: FnMut() -> F,
    F: Future<Output = bool>,
{
    let deadline = tokio::time::Instant::now() + timeout;
    let mut pause = FIRST_PAUSE;
    loop {
        // Read before the check: a check that starts when the time is up is the last one.
        let last = tokio::time::Instant::now() >= deadline;
        match tokio::time::timeout_at(deadline, check()).await {
            Ok(true) => return true,
            Ok(false) if !last => {}
            _ => return false,
        }
        let next = tokio::time::Instant::now() + pause;
        tokio::time::sleep_until(next.min(deadline)).await;
        pause = longer(pause);
    }
}

/// Polls `check` until it is true, and tells whether that happened within `timeout`.
///
/// The condition is checked at least once, and once more when the time is up. Blocks the thread.
pub fn eventually_blocking(timeout: Duration, mut check: impl FnMut() -> bool) -> bool {
    let deadline = Instant::now() + timeout;
    let mut pause = FIRST_PAUSE;
    loop {
        let last = Instant::now() >= deadline;
        if check() {
            return true;
        }
        if last {
            return false;
        }
        thread::sleep(pause.min(deadline.saturating_duration_since(Instant::now())));
        pause = longer(pause);
    }
}

fn longer(pause: Duration) -> Duration {
    (pause * 2).min(LONGEST_PAUSE)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocking_checks_at_least_once_and_gives_up() {
        assert!(eventually_blocking(Duration::ZERO, || true));
        let mut checks = 0;
        assert!(!eventually_blocking(Duration::from_millis(30), || {
            checks += 1;
            false
        }));
        assert!(checks >= 2, "checked only {checks} times");
    }

    #[tokio::test(start_paused = true)]
    async fn condition_that_becomes_true_is_seen() {
        let start = tokio::time::Instant::now();
        let becomes_true = || async { start.elapsed() >= Duration::from_millis(300) };
        assert!(eventually(Duration::from_secs(1), becomes_true).await);
        assert!(start.elapsed() <= Duration::from_millis(350));
    }

    #[tokio::test(start_paused = true)]
    async fn condition_true_at_the_deadline_is_seen() {
        let start = tokio::time::Instant::now();
        let becomes_true = || async { start.elapsed() >= Duration::from_millis(333) };
        assert!(eventually(Duration::from_millis(333), becomes_true).await);
        assert!(eventually(Duration::ZERO, || async { true }).await);
    }

    #[tokio::test(start_paused = true)]
    async fn hanging_check_is_cancelled_at_the_timeout() {
        let start = tokio::time::Instant::now();
        assert!(!eventually(Duration::from_millis(200), std::future::pending).await);
        assert_eq!(start.elapsed().as_millis() / 10, 20);
    }
}
