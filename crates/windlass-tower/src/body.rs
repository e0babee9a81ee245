//! [`Body`]: the body of responses, and of requests that were buffered.

use std::fmt;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http::HeaderMap;
use http_body::{Frame, SizeHint};
use pin_project_lite::pin_project;

use crate::BoxError;

/// A whole body in memory.
#[derive(Clone, Debug, Default)]
pub struct Whole {
    pub(crate) data: Bytes,
    pub(crate) trailers: Option<HeaderMap>,
}

impl From<Bytes> for Whole {
    fn from(data: Bytes) -> Whole {
        Whole {
            data,
            trailers: None,
        }
    }
}

/// What happens with the data of a body, and at its end.
pub(crate) trait AtEnd: Send {
    /// A frame of this many bytes was sent.
    fn sent(&mut self, _bytes: usize) {}

    /// Ready when the body must not be continued.
    fn poll_abort(&mut self, _cx: &mut Context<'_>) -> Poll<BoxError> {
        Poll::Pending
    }

    /// The body has ended; its last frame waits for the future. Not called if the body is dropped before its end.
    fn finish(self: Box<Self>) -> Option<Finishing>;
}

pub(crate) type Finishing = Pin<Box<dyn Future<Output = ()> + Send>>;

pin_project! {
    /// The body of the inner service, or one that the layer made.
    ///
    /// With a [`LockLayer`](crate::LockLayer) or a [`ConcurrencyLayer`](crate::ConcurrencyLayer), what the request holds
    /// lives in the body until its end. Dropping the body releases it.
    // It is moved for each response: what is rare and large is boxed.
    pub struct Body<B> {
        #[pin]
        source: Source<B>,
        at_end: Option<Box<dyn AtEnd>>,
        last: Option<Box<Last>>,
    }
}

pin_project! {
    #[project = SourceProjection]
    enum Source<B> {
        Inner { #[pin] body: B },
        // The rest of a body of which some data was read, and perhaps an error.
        Rest { read: Bytes, error: Option<BoxError>, body: Pin<Box<B>> },
        Whole { data: Option<Bytes>, trailers: Option<Box<HeaderMap>> },
    }
}

/// The last frame, which waits until what the request holds is released.
struct Last {
    frame: Option<Frame<Bytes>>,
    finishing: Finishing,
}

impl<B> Body<B> {
    /// The body of the inner service, as it is.
    pub(crate) fn inner(body: B) -> Body<B> {
        Body::new(Source::Inner { body })
    }

    /// A body of which this was read, and perhaps an error.
    pub(crate) fn resumed(read: Bytes, error: Option<BoxError>, body: Pin<Box<B>>) -> Body<B> {
        Body::new(Source::Rest { read, error, body })
    }

    fn new(source: Source<B>) -> Body<B> {
        Body {
            source,
            at_end: None,
            last: None,
        }
    }

    pub(crate) fn at_end(mut self, at_end: Box<dyn AtEnd>) -> Body<B> {
        self.at_end = Some(at_end);
        self
    }
}

impl<B> From<Whole> for Body<B> {
    fn from(whole: Whole) -> Body<B> {
        Body::new(Source::Whole {
            data: Some(whole.data).filter(|data| !data.is_empty()),
            trailers: whole.trailers.map(Box::new),
        })
    }
}

impl<B> http_body::Body for Body<B>
where
    B: http_body::Body<Data = Bytes>,
    B::Error: Into<BoxError>,
{
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let mut this = self.project();
        if this.last.is_none() {
            if let Some(at_end) = this.at_end
                && let Poll::Ready(error) = at_end.poll_abort(cx)
            {
                *this.at_end = None;
                return Poll::Ready(Some(Err(error)));
            }
            let frame = match ready!(this.source.as_mut().poll_source(cx)) {
                Some(Err(error)) => {
                    *this.at_end = None;
                    return Poll::Ready(Some(Err(error)));
                }
                Some(Ok(frame)) => Some(frame),
                None => None,
            };
            if let (Some(at_end), Some(data)) =
                (&mut *this.at_end, frame.as_ref().and_then(Frame::data_ref))
            {
                at_end.sent(data.len());
            }
            let ended = match &frame {
                None => true,
                Some(frame) => frame.is_trailers() || this.source.as_ref().get_ref().is_end(),
            };
            if !ended || this.at_end.is_none() {
                return Poll::Ready(frame.map(Ok));
            }
            match this.at_end.take().and_then(AtEnd::finish) {
                None => return Poll::Ready(frame.map(Ok)),
                Some(finishing) => *this.last = Some(Box::new(Last { frame, finishing })),
            }
        }
        let last = this.last.as_mut().expect("set above");
        ready!(last.finishing.as_mut().poll(cx));
        let frame = this.last.take().and_then(|last| last.frame);
        Poll::Ready(frame.map(Ok))
    }

    fn is_end_stream(&self) -> bool {
        self.last.is_none() && self.at_end.is_none() && self.source.is_end()
    }

    fn size_hint(&self) -> SizeHint {
        let held = self.last.as_ref().and_then(|last| last.frame.as_ref());
        let held = held.and_then(Frame::data_ref).map_or(0, Bytes::len);
        let mut hint = self.source.size_hint();
        add(&mut hint, held as u64);
        hint
    }
}

impl<B> Source<B>
where
    B: http_body::Body<Data = Bytes>,
    B::Error: Into<BoxError>,
{
    fn poll_source(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        match self.project() {
            SourceProjection::Inner { body } => {
                let frame = ready!(body.poll_frame(cx));
                Poll::Ready(frame.map(|frame| frame.map_err(Into::into)))
            }
            SourceProjection::Rest { read, error, body } => {
                if !read.is_empty() {
                    return Poll::Ready(Some(Ok(Frame::data(std::mem::take(read)))));
                }
                if let Some(error) = error.take() {
                    return Poll::Ready(Some(Err(error)));
                }
                let frame = ready!(body.as_mut().poll_frame(cx));
                Poll::Ready(frame.map(|frame| frame.map_err(Into::into)))
            }
            SourceProjection::Whole { data, trailers } => {
                let data = data.take().map(Frame::data);
                let frame =
                    data.or_else(|| trailers.take().map(|trailers| Frame::trailers(*trailers)));
                Poll::Ready(frame.map(Ok))
            }
        }
    }

    fn is_end(&self) -> bool {
        match self {
            Source::Inner { body } => body.is_end_stream(),
            Source::Rest { read, error, body } => {
                read.is_empty() && error.is_none() && body.is_end_stream()
            }
            Source::Whole { data, trailers } => data.is_none() && trailers.is_none(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Source::Inner { body } => body.size_hint(),
            Source::Rest { read, body, .. } => {
                let mut hint = body.size_hint();
                add(&mut hint, read.len() as u64);
                hint
            }
            Source::Whole { data, .. } => {
                SizeHint::with_exact(data.as_ref().map_or(0, |data| data.len() as u64))
            }
        }
    }
}

fn add(hint: &mut SizeHint, bytes: u64) {
    if let Some(upper) = hint.upper() {
        hint.set_upper(upper.saturating_add(bytes));
    }
    hint.set_lower(hint.lower().saturating_add(bytes));
}

impl<B> fmt::Debug for Body<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Body").finish_non_exhaustive()
    }
}
