//! Asking many, and going on when enough have answered.

use std::future::poll_fn;
use std::pin::Pin;
use std::task::Poll;
use std::time::Duration;

/// Awaits all at once, until `enough` says so of what has come, or all have come, or `limit` has passed.
/// What has come, in the order in which it came.
pub(super) async fn first_until<F: Future + Unpin>(
    futures: Vec<F>,
    limit: Duration,
    enough: impl Fn(&[F::Output]) -> bool,
) -> Vec<F::Output>
where
    F::Output: Unpin,
{
    let mut futures: Vec<Option<F>> = futures.into_iter().map(Some).collect();
    let mut outputs = Vec::with_capacity(futures.len());
    let gathering = poll_fn(|cx| {
        for slot in &mut futures {
            if let Some(future) = slot
                && let Poll::Ready(output) = Pin::new(future).poll(cx)
            {
                outputs.push(output);
                *slot = None;
            }
        }
        match enough(&outputs) || futures.iter().all(Option::is_none) {
            true => Poll::Ready(()),
            false => Poll::Pending,
        }
    });
    // When the time is up, what has come has to do.
    let _ = tokio::time::timeout(limit, gathering).await;
    outputs
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_slow_are_not_waited_for() {
        let after = |ms: u64| {
            Box::pin(async move {
                tokio::time::sleep(Duration::from_millis(ms)).await;
                ms
            })
        };
        let limit = Duration::from_millis(400);
        let all = || vec![after(30_000), after(60), after(5)];
        assert_eq!(first_until(all(), limit, |got| got.len() == 1).await, [5]);
        assert_eq!(first_until(all(), limit, |_| false).await, [5, 60]);
        assert_eq!(first_until(vec![after(5)], limit, |_| false).await, [5]);
    }
}
