//! [`MaybeReady`]: a value that is mostly there already.

use std::fmt;
use std::pin::Pin;
use std::task::{Context, Poll};

/// A future that allocates only if its value is not there yet.
///
/// # Panics
///
/// When polled after it was ready.
#[must_use = "futures do nothing unless polled"]
pub enum MaybeReady<T> {
    /// The value; `None` once it was taken.
    Ready(Option<T>),
    /// The value comes later.
    Later(Later<T>),
}

/// A future on the heap.
pub(crate) type Later<T> = Pin<Box<dyn Future<Output = T> + Send>>;

impl<T> MaybeReady<T> {
    /// A value that is there.
    pub fn ready(value: T) -> MaybeReady<T> {
        MaybeReady::Ready(Some(value))
    }

    /// A value that comes later.
    pub fn later(future: impl Future<Output = T> + Send + 'static) -> MaybeReady<T> {
        MaybeReady::Later(Box::pin(future))
    }
}

impl<T> Unpin for MaybeReady<T> {}

impl<T> Future for MaybeReady<T> {
    type Output = T;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<T> {
        match &mut *self {
            MaybeReady::Ready(value) => {
                Poll::Ready(value.take().expect("polled after it was ready"))
            }
            MaybeReady::Later(future) => future.as_mut().poll(cx),
        }
    }
}

impl<T> fmt::Debug for MaybeReady<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            MaybeReady::Ready(_) => "Ready",
            MaybeReady::Later(_) => "Later",
        })
    }
}
