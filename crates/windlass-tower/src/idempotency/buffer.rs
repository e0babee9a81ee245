//! Reading a body into memory, up to a bound.

use std::future::poll_fn;
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

use bytes::{Bytes, BytesMut};

use crate::BoxError;
use crate::body::{Body, Whole};

/// What was read of a body.
pub(super) enum Buffered<B> {
    /// All of it.
    Whole(Whole),
    /// It is larger than the bound. The body has what was read and the rest.
    TooLarge(Body<B>),
    /// It did not end in time. The body has what was read and the rest.
    TooSlow(Body<B>),
    /// It ended with an error, which the body repeats after what was read.
    Failed(Body<B>),
}

/// Reads a body, up to `most` bytes, for at most `limit`.
pub(super) async fn buffer<B>(body: B, most: usize, limit: Duration) -> Buffered<B>
where
    B: http_body::Body<Data = Bytes>,
    B::Error: Into<BoxError>,
{
    if body.size_hint().lower() > most as u64 {
        return Buffered::TooLarge(Body::inner(body));
    }
    // Boxed, so that it can be passed on after it was polled.
    let mut body = Box::pin(body);
    let mut read = Read::default();
    let mut trailers = None;
    let mut end = pin!(tokio::time::sleep(limit));
    loop {
        let frame = poll_fn(|cx| match body.as_mut().poll_frame(cx) {
            Poll::Ready(frame) => Poll::Ready(Some(frame)),
            Poll::Pending => end.as_mut().poll(cx).map(|()| None),
        });
        let frame = match frame.await {
            None => return Buffered::TooSlow(Body::resumed(read.into_bytes(), None, body)),
            Some(None) => break,
            Some(Some(Ok(frame))) => frame,
            Some(Some(Err(error))) => {
                let read = read.into_bytes();
                return Buffered::Failed(Body::resumed(read, Some(error.into()), body));
            }
        };
        match frame.into_data() {
            Ok(data) => {
                read.append(data);
                if read.len() > most {
                    return Buffered::TooLarge(Body::resumed(read.into_bytes(), None, body));
                }
            }
            Err(frame) => trailers = frame.into_trailers().ok(),
        }
    }
    Buffered::Whole(Whole {
        data: read.into_bytes(),
        trailers,
    })
}

/// What was read. One frame is kept as it is; more are copied together, because a client that sends a byte at a time
/// would fill the memory with the frames around them.
#[derive(Default)]
struct Read {
    first: Bytes,
    joined: BytesMut,
}

impl Read {
    fn append(&mut self, data: Bytes) {
        if self.len() == 0 {
            self.first = data;
        } else if !data.is_empty() {
            self.joined
                .extend_from_slice(&std::mem::take(&mut self.first));
            self.joined.extend_from_slice(&data);
        }
    }

    fn len(&self) -> usize {
        self.first.len() + self.joined.len()
    }

    fn into_bytes(self) -> Bytes {
        match self.joined.is_empty() {
            true => self.first,
            false => self.joined.freeze(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_are_joined_in_order_and_a_single_one_is_not_copied() {
        let mut read = Read::default();
        let frame = Bytes::from("one frame".to_owned());
        for data in [Bytes::new(), frame.clone(), Bytes::new()] {
            read.append(data);
        }
        assert_eq!(read.len(), 9);
        assert_eq!(read.into_bytes().as_ptr(), frame.as_ptr());
        let mut read = Read::default();
        for data in ["", "a", "", "bc", "d", ""] {
            read.append(Bytes::from(data));
        }
        assert_eq!(read.len(), 4);
        assert_eq!(read.into_bytes(), "abcd");
    }
}
