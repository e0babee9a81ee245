//! The requests of a stream, as they are asked for.

use std::pin::Pin;
use std::task::{Context, Poll};

use futures_core::Stream;
use tokio::sync::mpsc;

/// What is to be sent over a stream.
pub(super) struct Feed<T>(pub(super) mpsc::UnboundedReceiver<T>);

impl<T> Stream for Feed<T> {
    type Item = T;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<T>> {
        self.0.poll_recv(cx)
    }
}
