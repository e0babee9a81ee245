//! [`Protected`]: the service that every layer of this crate makes, and [`ResponseFuture`], its future.
//!
//! A layer is a [`Stage`]: it decides before the inner service is called, may end the call while it runs, and completes
//! the response. What the request holds in between (a decision, a lock, an idempotency key) is a value in
//! the future: a call that is dropped at any point, by a disconnect or a panic, drops that value too, and its
//! `Drop` releases it.

use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http::{Request, Response};
use pin_project_lite::pin_project;
use tower_service::Service;

use crate::BoxError;
use crate::body::{Body, Whole};
use crate::maybe_ready::{Later, MaybeReady};

/// What a layer does with a request. Only the layers of this crate implement it.
pub trait Stage<B>: Clone + sealed::Sealed {
    /// The body of the request that the inner service gets.
    type InnerBody;
    /// What a request holds while it is handled.
    type Held;

    /// Decides on a request, and calls the inner service with it if that can be done at once.
    // The service is called from inside, because a request is large: each function that returns it copies it.
    fn enter<F>(
        &self,
        request: Request<B>,
        call: impl FnOnce(Request<Self::InnerBody>) -> F,
    ) -> StartedCall<F, Self::InnerBody, Self::Held>;

    /// Ready when the call must end, with the response.
    fn poll_interrupted(_held: &mut Self::Held, _cx: &mut Context<'_>) -> Poll<Response<Whole>> {
        Poll::Pending
    }

    /// Completes the response.
    fn leave<R>(&self, held: Self::Held, response: Response<R>) -> MaybeReady<Response<Body<R>>>
    where
        R: http_body::Body<Data = Bytes> + Send + 'static,
        R::Error: Into<BoxError>;
}

pub(crate) mod sealed {
    pub trait Sealed {}
}

/// The decision on a request.
#[derive(Debug)]
pub enum Entered<B, H> {
    /// Call the inner service.
    Serve(Request<B>, H),
    /// Answer without calling it.
    Answer(Response<Whole>),
}

/// How a call begins.
pub enum StartedCall<F, B, H> {
    /// The inner service was called.
    Serving(F, H),
    /// The request was answered without calling it.
    Answered(Box<Response<Whole>>),
    /// The decision comes later.
    Entering(Later<Entered<B, H>>),
}

impl<F, B, H> StartedCall<F, B, H> {
    /// Calls the inner service if that is decided.
    pub(crate) fn new(
        entered: MaybeReady<Entered<B, H>>,
        call: impl FnOnce(Request<B>) -> F,
    ) -> StartedCall<F, B, H> {
        match entered {
            MaybeReady::Ready(Some(Entered::Answer(response))) => {
                StartedCall::Answered(Box::new(response))
            }
            MaybeReady::Ready(Some(Entered::Serve(request, held))) => {
                StartedCall::Serving(call(request), held)
            }
            MaybeReady::Ready(None) => unreachable!("taken only when it is polled"),
            MaybeReady::Later(entering) => StartedCall::Entering(entering),
        }
    }
}

impl<F, B, H> std::fmt::Debug for StartedCall<F, B, H> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            StartedCall::Serving(..) => "Serving",
            StartedCall::Answered(_) => "Answered",
            StartedCall::Entering(_) => "Entering",
        })
    }
}

/// A service behind one of the layers of this crate.
#[derive(Clone, Debug)]
pub struct Protected<P, S> {
    stage: P,
    inner: S,
}

impl<P, S> Protected<P, S> {
    pub(crate) fn new(stage: P, inner: S) -> Protected<P, S> {
        Protected { stage, inner }
    }

    /// The inner service.
    pub fn get_ref(&self) -> &S {
        &self.inner
    }
}

impl<P, S, B, R> Service<Request<B>> for Protected<P, S>
where
    P: Stage<B>,
    S: Service<Request<P::InnerBody>, Response = Response<R>> + Clone,
    R: http_body::Body<Data = Bytes> + Send + 'static,
    R::Error: Into<BoxError>,
{
    type Response = Response<Body<R>>;
    type Error = S::Error;
    type Future = ResponseFuture<P, S, B, R>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let stage = self.stage.clone();
        let phase = match stage.enter(request, |request| self.inner.call(request)) {
            StartedCall::Serving(future, held) => Phase::Serving {
                future,
                held: Some(held),
            },
            // The inner service stays ready for the next call.
            StartedCall::Answered(response) => Phase::Answered {
                response: Some(Box::new(response.map(Body::from))),
            },
            StartedCall::Entering(entering) => {
                // Only this instance is known to be ready.
                let clone = self.inner.clone();
                Phase::Entering {
                    entering,
                    inner: std::mem::replace(&mut self.inner, clone),
                }
            }
        };
        ResponseFuture { stage, phase }
    }
}

pin_project! {
    /// The future of [`Protected`].
    #[must_use = "futures do nothing unless polled"]
    pub struct ResponseFuture<P, S, B, R>
    where
        P: Stage<B>,
        S: Service<Request<P::InnerBody>>,
    {
        stage: P,
        #[pin]
        phase: Phase<P::InnerBody, P::Held, S, S::Future, R>,
    }
}

pin_project! {
    // It is moved for each request, so what is rare is boxed.
    #[project = PhaseProjection]
    enum Phase<B, H, S, F, R> {
        Entering { entering: Later<Entered<B, H>>, inner: S },
        Serving { #[pin] future: F, held: Option<H> },
        Leaving { leaving: Later<Response<Body<R>>> },
        Answered { response: Option<Box<Response<Body<R>>>> },
    }
}

impl<P, S, B, R> Future for ResponseFuture<P, S, B, R>
where
    P: Stage<B>,
    S: Service<Request<P::InnerBody>, Response = Response<R>>,
    R: http_body::Body<Data = Bytes> + Send + 'static,
    R::Error: Into<BoxError>,
{
    type Output = Result<Response<Body<R>>, S::Error>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut this = self.project();
        loop {
            let next = match this.phase.as_mut().project() {
                PhaseProjection::Entering { entering, inner } => {
                    match ready!(entering.as_mut().poll(cx)) {
                        Entered::Answer(response) => {
                            return Poll::Ready(Ok(response.map(Body::from)));
                        }
                        Entered::Serve(request, held) => Phase::Serving {
                            future: inner.call(request),
                            held: Some(held),
                        },
                    }
                }
                PhaseProjection::Serving { future, held } => {
                    let running = held.as_mut().expect("taken only when it leaves this phase");
                    if let Poll::Ready(response) = P::poll_interrupted(running, cx) {
                        // Replacing the phase drops the call.
                        Phase::Answered {
                            response: Some(Box::new(response.map(Body::from))),
                        }
                    } else {
                        let response = ready!(future.poll(cx))?;
                        let held = held.take().expect("taken only here");
                        match this.stage.leave(held, response) {
                            MaybeReady::Ready(Some(response)) => return Poll::Ready(Ok(response)),
                            MaybeReady::Ready(None) => unreachable!("taken only when it is polled"),
                            MaybeReady::Later(leaving) => Phase::Leaving { leaving },
                        }
                    }
                }
                PhaseProjection::Leaving { leaving } => return leaving.as_mut().poll(cx).map(Ok),
                PhaseProjection::Answered { response } => {
                    let response = response.take().expect("polled after it was ready");
                    return Poll::Ready(Ok(*response));
                }
            };
            this.phase.set(next);
        }
    }
}

impl<P, S, B, R> std::fmt::Debug for ResponseFuture<P, S, B, R>
where
    P: Stage<B>,
    S: Service<Request<P::InnerBody>>,
{
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ResponseFuture").finish_non_exhaustive()
    }
}
