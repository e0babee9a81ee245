//! What an [`IdempotencyLayer`] does with a request and its response: looks up the key, refuses, replays, stores.

use std::fmt;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http::header::CONTENT_TYPE;
use http::request::Parts;
use http::{HeaderName, HeaderValue, Request, Response};
use sha2::{Digest as _, Sha256};
use tokio_util::sync::CancellationToken;
use tracing::Instrument as _;
use windlass::{Begun, ErrorKind, Finished, OnceGuard};

use super::buffer::{Buffered, buffer};
use super::key_header::{self, KeyHeader};
use super::record::Record;
use super::running::Running;
use super::{Config, IdempotencyLayer, IdempotentRequest};
use crate::BoxError;
use crate::body::{Body, Whole};
use crate::key::{digest, name_in_store, original_uri};
use crate::maybe_ready::MaybeReady;
use crate::protected::{Entered, Stage, StartedCall, sealed};
use crate::rejection::{Protocol, Rejection, RejectionKind};

static REPLAYED: HeaderName = HeaderName::from_static("idempotent-replayed");

/// Where a request that has a key goes from here.
enum Start {
    Run(OnceGuard),
    Answer(Response<Whole>),
}

impl Config {
    fn refuse<T>(&self, kind: RejectionKind, detail: &'static str) -> Result<T, Rejection> {
        Err(Rejection::new(kind, detail))
    }

    async fn start(
        &self,
        parts: &Parts,
        principal: &str,
        key: &str,
        body: &Bytes,
    ) -> Result<Start, Rejection> {
        let key = digest(&[principal.as_bytes(), key.as_bytes()]);
        let target = original_uri(parts).path_and_query();
        let target = target.map_or("", |target| target.as_str());
        let content_type = parts.headers.get(CONTENT_TYPE);
        let fingerprint = digest(&[
            parts.method.as_str().as_bytes(),
            target.as_bytes(),
            content_type.map_or(b"", HeaderValue::as_bytes),
            &Sha256::digest(body),
        ]);
        let once = self
            .coordinator
            .once(&name_in_store(&self.name, &key))
            .payload(fingerprint)
            .ttl(self.ttl)
            .retention(self.retention);
        let begun = match self.wait {
            None => once.try_begin().await,
            Some(wait) => once.wait(wait).begin().await,
        };
        match begun {
            Ok(Begun::Mine(guard)) => Ok(Start::Run(guard)),
            Ok(Begun::Again(finished)) => replay(finished).map(Start::Answer),
            Ok(Begun::Busy(_)) => self.refuse(
                RejectionKind::IdempotencyKeyInFlight,
                "a request with this Idempotency-Key is being handled",
            ),
            Err(error) if error.kind() == ErrorKind::Mismatch => self.refuse(
                RejectionKind::IdempotencyKeyReused,
                "this Idempotency-Key was used with another request",
            ),
            Err(error) => Err(Rejection::store_error(&error)),
        }
    }
}

/// The stored response, marked as a repeat.
pub(super) fn replay(finished: Finished) -> Result<Response<Whole>, Rejection> {
    let stored = match finished {
        Finished::Done(stored) => stored,
        Finished::Failed(_) => {
            return Err(Rejection::new(
                RejectionKind::FailedBefore,
                "the request was interrupted when it was handled before; use another Idempotency-Key",
            ));
        }
    };
    let response = Record::decode(stored).and_then(Record::into_response);
    let mut response = response.ok_or_else(|| {
        Rejection::new(
            RejectionKind::ResponseNotStored,
            "the request was handled before, but its response was too large or too slow to be stored",
        )
    })?;
    let replayed = HeaderValue::from_static("true");
    response.headers_mut().insert(&REPLAYED, replayed);
    Ok(response)
}

/// The idempotency key that a request holds; `None` if the layer does not apply to it.
pub struct IdempotencyHeld(Option<Running>);

impl sealed::Sealed for IdempotencyLayer {}

impl<B> Stage<B> for IdempotencyLayer
where
    B: http_body::Body<Data = Bytes> + Send + 'static,
    B::Error: Into<BoxError>,
{
    type InnerBody = Body<B>;
    type Held = IdempotencyHeld;

    fn enter<F>(
        &self,
        request: Request<B>,
        call: impl FnOnce(Request<Body<B>>) -> F,
    ) -> StartedCall<F, Body<B>, IdempotencyHeld> {
        StartedCall::new(self.decide(request), call)
    }

    fn poll_interrupted(held: &mut IdempotencyHeld, cx: &mut Context<'_>) -> Poll<Response<Whole>> {
        let Some(running) = &mut held.0 else {
            return Poll::Pending;
        };
        ready!(running.lost.as_mut().poll(cx));
        let rejection = Rejection::lease_lost();
        Poll::Ready(rejection.response(running.respond.as_ref(), running.protocol))
    }

    fn leave<R>(
        &self,
        held: IdempotencyHeld,
        response: Response<R>,
    ) -> MaybeReady<Response<Body<R>>>
    where
        R: http_body::Body<Data = Bytes> + Send + 'static,
        R::Error: Into<BoxError>,
    {
        let Some(running) = held.0 else {
            return MaybeReady::ready(response.map(Body::inner));
        };
        let config = Arc::clone(&self.config);
        MaybeReady::later(async move {
            let gone = CancellationToken::new();
            let _waiting = gone.clone().drop_guard();
            // On its own: the handler has returned, so a client that is gone does not prevent that its response is read
            // and stored.
            let finishing = async move { config.finish(running, response, gone).await };
            let finishing = finishing.in_current_span();
            match tokio::spawn(finishing).await {
                Ok(response) => response,
                // The body panicked, as it would have in this task.
                Err(error) if error.is_panic() => std::panic::resume_unwind(error.into_panic()),
                // The runtime shuts down, and this task with it.
                Err(_) => std::future::pending().await,
            }
        })
    }
}

impl IdempotencyLayer {
    fn decide<B>(&self, request: Request<B>) -> MaybeReady<Entered<Body<B>, IdempotencyHeld>>
    where
        B: http_body::Body<Data = Bytes> + Send + 'static,
        B::Error: Into<BoxError>,
    {
        let config = Arc::clone(&self.config);
        let (mut parts, body) = request.into_parts();
        let protocol = Protocol::of(&parts.method, &parts.headers);
        let refused = {
            let config = Arc::clone(&config);
            move |rejection: Rejection| {
                Entered::Answer(rejection.response(config.respond.as_ref(), protocol))
            }
        };
        let key = match key_header::read(&parts.headers) {
            _ if !config.methods.contains(&parts.method) => None,
            KeyHeader::Key(key) => Some(key),
            KeyHeader::Absent if !config.required => None,
            KeyHeader::Absent => {
                let detail = "this request needs an Idempotency-Key";
                let rejection = Rejection::new(RejectionKind::IdempotencyKeyMissing, detail);
                return MaybeReady::ready(refused(rejection));
            }
            KeyHeader::Invalid(detail) => {
                let rejection = Rejection::new(RejectionKind::IdempotencyKeyInvalid, detail);
                return MaybeReady::ready(refused(rejection));
            }
        };
        let Some(key) = key else {
            let request = Request::from_parts(parts, Body::inner(body));
            return MaybeReady::ready(Entered::Serve(request, IdempotencyHeld(None)));
        };
        let principal = config.principal.key(&parts);
        MaybeReady::later(async move {
            let Some(principal) = principal.await else {
                let detail = "the request does not say who sends it";
                return refused(Rejection::new(RejectionKind::MissingKey, detail));
            };
            let body = buffer(body, config.max_request_bytes, config.max_request_time);
            let body = match body.await {
                Buffered::Whole(body) => body,
                Buffered::TooSlow(_) => {
                    let detail = "the body of the request did not arrive in time";
                    return refused(Rejection::new(RejectionKind::RequestTimeout, detail));
                }
                Buffered::TooLarge(_) => {
                    let detail = "the body is too large for a request with an Idempotency-Key";
                    return refused(Rejection::new(RejectionKind::RequestTooLarge, detail));
                }
                Buffered::Failed(_) => {
                    let detail = "the body of the request could not be read";
                    return refused(Rejection::new(RejectionKind::RequestUnreadable, detail));
                }
            };
            let start = config.start(&parts, &principal, &key, &body.data).await;
            let guard = match start {
                Ok(Start::Run(guard)) => guard,
                Ok(Start::Answer(response)) => return Entered::Answer(response),
                Err(rejection) => return refused(rejection),
            };
            let fence = guard.fence();
            parts.extensions.insert(IdempotentRequest { key, fence });
            let running = Running::new(guard, &config, protocol);
            let request = Request::from_parts(parts, Body::from(body));
            Entered::Serve(request, IdempotencyHeld(Some(running)))
        })
    }
}

impl fmt::Debug for IdempotencyHeld {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("IdempotencyHeld").finish_non_exhaustive()
    }
}
