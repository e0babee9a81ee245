//! Awaiting several futures.

use std::future::poll_fn;
use std::pin::Pin;
use std::task::Poll;

/// Awaits all futures concurrently. Each is polled in order before any is waited for, so that their
/// requests leave together.
pub async fn join_all<F: Future + Unpin>(mut futures: Vec<F>) -> Vec<F::Output> {
    let mut outputs: Vec<Option<F::Output>> = futures.iter().map(|_| None).collect();
    poll_fn(|cx| {
        for (future, output) in futures.iter_mut().zip(&mut outputs) {
            if output.is_none()
                && let Poll::Ready(value) = Pin::new(future).poll(cx)
            {
                *output = Some(value);
            }
        }
        match outputs.iter().all(Option::is_some) {
            true => Poll::Ready(()),
            false => Poll::Pending,
        }
    })
    .await;
    outputs.into_iter().flatten().collect()
}
