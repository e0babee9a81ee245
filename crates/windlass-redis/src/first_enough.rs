//! Waiting for several replies at once, and continuing when enough have arrived.

use std::future::poll_fn;
use std::pin::Pin;
use std::task::Poll;
use std::time::Duration;

/// Awaits all futures, for at most `limit`. Once `enough` accepts the outputs so far, the others
/// get another `grace`. Returns the outputs in the order in which they arrived.
pub(super) async fn first_enough<F: Future + Unpin>(
    futures: Vec<F>,
    limit: Duration,
    grace: Duration,
    enough: impl Fn(&[F::Output]) -> bool,
) -> Vec<F::Output>
where
    F::Output: Unpin,
{
    let mut futures: Vec<Option<F>> = futures.into_iter().map(Some).collect();
    let mut outputs = Vec::with_capacity(futures.len());
    let mut grace_timer = None;
    let collecting = poll_fn(|cx| {
        for slot in &mut futures {
            if let Some(future) = slot
                && let Poll::Ready(output) = Pin::new(future).poll(cx)
            {
                outputs.push(output);
                *slot = None;
            }
        }
        if futures.iter().all(Option::is_none) {
            return Poll::Ready(());
        }
        if !enough(&outputs) {
            return Poll::Pending;
        }
        let grace_timer = grace_timer.get_or_insert_with(|| Box::pin(tokio::time::sleep(grace)));
        grace_timer.as_mut().poll(cx)
    });
    let _ = tokio::time::timeout(limit, collecting).await;
    outputs
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn slow_replies_are_not_waited_for() {
        let after = |ms: u64| {
            Box::pin(async move {
                tokio::time::sleep(Duration::from_millis(ms)).await;
                ms
            })
        };
        let limit = Duration::from_millis(400);
        let all = || vec![after(30_000), after(60), after(5)];
        let (none, some) = (Duration::ZERO, Duration::from_millis(200));
        let one = |got: &[u64]| got.len() == 1;
        assert_eq!(first_enough(all(), limit, none, one).await, [5]);
        assert_eq!(first_enough(all(), limit, some, one).await, [5, 60]);
        assert_eq!(first_enough(all(), limit, none, |_| false).await, [5, 60]);
        assert_eq!(
            first_enough(vec![after(5)], limit, none, |_| false).await,
            [5]
        );
    }
}
