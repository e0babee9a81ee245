//! Reading a body into memory, up to a bound.

use std::collections::VecDeque;
use std::future::poll_fn;

use bytes::{Bytes, BytesMut};

use crate::BoxError;
use crate::body::{Body, Whole};

/// What was read of a body.
pub(super) enum Buffered<B> {
    /// All of it.
    Whole(Whole),
    /// It is larger than the bound. The body has what was read and the rest.
    TooLarge(Body<B>),
    /// It ended with an error, which the body repeats after what was read.
    Failed(Body<B>),
}

/// Reads a body, up to `most` bytes.
pub(super) async fn buffer<B>(body: B, most: usize) -> Buffered<B>
where
    B: http_body::Body<Data = Bytes>,
    B::Error: Into<BoxError>,
{
    if body.size_hint().lower() > most as u64 {
        return Buffered::TooLarge(Body::inner(body));
    }
    // Boxed, so that it can be passed on after it was polled.
    let mut body = Box::pin(body);
    let mut frames = VecDeque::new();
    let mut length = 0;
    let mut trailers = None;
    loop {
        let frame = match poll_fn(|cx| body.as_mut().poll_frame(cx)).await {
            None => break,
            Some(Ok(frame)) => frame,
            Some(Err(error)) => {
                return Buffered::Failed(Body::resumed(frames, Some(error.into()), body));
            }
        };
        match frame.into_data() {
            Ok(data) => {
                length += data.len();
                frames.push_back(data);
                if length > most {
                    return Buffered::TooLarge(Body::resumed(frames, None, body));
                }
            }
            Err(frame) => trailers = frame.into_trailers().ok(),
        }
    }
    Buffered::Whole(Whole {
        data: concatenated(frames, length),
        trailers,
    })
}

fn concatenated(mut frames: VecDeque<Bytes>, length: usize) -> Bytes {
    if frames.len() <= 1 {
        return frames.pop_front().unwrap_or_default();
    }
    let mut all = BytesMut::with_capacity(length);
    for frame in frames {
        all.extend_from_slice(&frame);
    }
    all.freeze()
}
