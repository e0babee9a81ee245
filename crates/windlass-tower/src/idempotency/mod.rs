//! [`IdempotencyLayer`]: each request runs once per `Idempotency-Key`.

mod buffer;
mod grpc_status;
mod key_header;
mod record;

use std::fmt;
use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use http::header::{
    CACHE_CONTROL, CONTENT_DISPOSITION, CONTENT_ENCODING, CONTENT_LANGUAGE, CONTENT_LOCATION,
    CONTENT_TYPE, ETAG, LAST_MODIFIED, LINK, LOCATION,
};
use http::request::Parts;
use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, Response, StatusCode};
use sha2::{Digest as _, Sha256};
use tokio_util::sync::CancellationToken;
use tower_layer::Layer;
use tracing::Instrument as _;
use windlass::{Begun, Coordinator, ErrorKind, Fence, Finished, Lease, OnFailure, Once, OnceGuard};

use self::buffer::{Buffered, buffer};
use self::key_header::KeyHeader;
use self::record::Record;
use crate::BoxError;
use crate::body::{Body, Whole};
use crate::key::{RequestKey, digest, name_in_store, original_uri};
use crate::maybe_ready::MaybeReady;
use crate::protected::{Entered, Protected, Stage, sealed};
use crate::rejection::{Protocol, Refused, Rejection, RejectionKind, Respond};

/// How long a response waits until it is stored. After that, storing it continues in the background.
const STORE_WAIT: Duration = Duration::from_secs(5);
/// How long the body of a response is awaited after the client is gone. After that, the request counts as interrupted.
const READ_WAIT: Duration = Duration::from_secs(60);
static REPLAYED: HeaderName = HeaderName::from_static("idempotent-replayed");

/// Runs a request once per `Idempotency-Key`, over all instances that share the store, and replays its response to
/// repeats (draft-ietf-httpapi-idempotency-key-header-07).
///
/// ```
/// use windlass_tower::{IdempotencyLayer, key_fn};
///
/// /// Set by the authentication.
/// #[derive(Clone)]
/// struct Account(String);
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> windlass::Result<()> {
/// # let w = windlass::connect("memory:").await?;
/// let account = key_fn(|parts| Some(parts.extensions.get::<Account>()?.0.clone()));
/// let once = IdempotencyLayer::new(&w, "payments", account).required();
/// # Ok(()) }
/// ```
///
/// | request | response |
/// |---|---|
/// | first with its key | that of the handler, which is stored |
/// | repeat | the stored one, with `Idempotent-Replayed: true` |
/// | repeat while the first runs | 409, or after a [wait](IdempotencyLayer::wait) the stored one |
/// | same key, other method, path, query or body | 422 |
/// | no key, where it is [required](IdempotencyLayer::required) | 400 |
/// | key doubled, empty, longer than 255 bytes, or not printable ASCII | 400 |
///
/// The key is a string of a structured field, `"8e03978e"`; without quotes it is the same key. It is scoped to a
/// **principal**: one client cannot read the responses of another. Use the id of the account: a token that is refreshed
/// between two attempts makes another principal of it, and the request runs twice. What is stored are digests of key, principal and
/// request, and the response.
///
/// # What is stored
///
/// By default every response but those with status 408, 425, 429 and 5xx, after which the request runs again
/// ([`store_if`](IdempotencyLayer::store_if)). A gRPC status counts as the HTTP status that it corresponds to. The
/// refusal of a layer of this crate that is further inside, such as a busy lock, is never stored. Of the headers and
/// trailers, those that describe the content ([`replay_headers`](IdempotencyLayer::replay_headers)); no cookies.
///
/// # Bodies
///
/// The request body is read before the handler runs: one of more than 1 MiB gets 413
/// ([`max_request_bytes`](IdempotencyLayer::max_request_bytes)). The response body is read before it is sent. One of
/// more than 1 MiB, and one of type `text/event-stream`, is passed on and not stored: [`OnLargeResponse`] says what a
/// repeat gets.
///
/// # Interruption
///
/// A handler that panics, or is dropped because of a timeout or a disconnect, leaves the key free by default: a repeat
/// runs the request again ([`on_interruption`](IdempotencyLayer::on_interruption)). As soon as the handler has
/// returned its response, the response is stored even if the client is gone; its body is read for up to a minute more.
/// If the lease of the key is lost, the
/// handler is dropped and the request gets 503. If the instance dies, a repeat runs the request again after the TTL.
///
/// If the response cannot be stored, the client gets it nevertheless, and the error is logged.
#[derive(Clone)]
#[must_use = "a layer does nothing until a service is wrapped in it"]
pub struct IdempotencyLayer {
    config: Arc<Config>,
}

#[derive(Clone)]
struct Config {
    coordinator: Coordinator,
    name: String,
    principal: Arc<dyn RequestKey>,
    methods: Vec<Method>,
    required: bool,
    ttl: Duration,
    retention: Duration,
    wait: Option<Duration>,
    max_request_bytes: usize,
    max_response_bytes: usize,
    on_large_response: OnLargeResponse,
    on_interruption: OnFailure,
    store_if: Arc<dyn Fn(StatusCode) -> bool + Send + Sync>,
    replay_headers: Vec<HeaderName>,
    respond: Option<Respond>,
}

/// What a repeat gets if the response was too large to store.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum OnLargeResponse {
    /// 409: the request does not run again.
    #[default]
    Refuse,
    /// The request runs again.
    RunAgain,
}

/// The idempotency key of a request, as an extension.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IdempotentRequest {
    key: String,
    fence: Fence,
}

impl IdempotentRequest {
    /// The key that the client sent.
    pub fn key(&self) -> &str {
        &self.key
    }

    /// The fencing token: send it to what the handler writes to, so that an instance that lost its lease cannot
    /// overwrite the work of its successor.
    pub fn fence(&self) -> Fence {
        self.fence
    }
}

impl IdempotencyLayer {
    /// The largest body, of a request or a response, unless another bound is set.
    pub const DEFAULT_MAX_BYTES: usize = 1 << 20;

    /// Idempotency keys under a name, scoped to the principal of the request: who sends it. A request without a
    /// principal gets 400. [`Everyone`](crate::Everyone) is one principal for all.
    pub fn new(w: &Coordinator, name: &str, principal: impl RequestKey) -> IdempotencyLayer {
        IdempotencyLayer {
            config: Arc::new(Config {
                coordinator: w.clone(),
                name: name.to_owned(),
                principal: Arc::new(principal),
                methods: vec![Method::POST, Method::PATCH],
                required: false,
                ttl: Lease::DEFAULT_TTL,
                retention: Once::DEFAULT_RETENTION,
                wait: None,
                max_request_bytes: IdempotencyLayer::DEFAULT_MAX_BYTES,
                max_response_bytes: IdempotencyLayer::DEFAULT_MAX_BYTES,
                on_large_response: OnLargeResponse::default(),
                on_interruption: OnFailure::Retry,
                store_if: Arc::new(is_final),
                replay_headers: vec![
                    CACHE_CONTROL,
                    CONTENT_DISPOSITION,
                    CONTENT_ENCODING,
                    CONTENT_LANGUAGE,
                    CONTENT_LOCATION,
                    CONTENT_TYPE,
                    ETAG,
                    LAST_MODIFIED,
                    LINK,
                    LOCATION,
                    HeaderName::from_static("grpc-status"),
                    HeaderName::from_static("grpc-message"),
                ],
                respond: None,
            }),
        }
    }

    fn with(mut self, change: impl FnOnce(&mut Config)) -> IdempotencyLayer {
        change(Arc::make_mut(&mut self.config));
        self
    }

    /// The methods that the layer applies to; POST and PATCH by default.
    pub fn methods(self, methods: impl IntoIterator<Item = Method>) -> IdempotencyLayer {
        self.with(|config| config.methods = methods.into_iter().collect())
    }

    /// Refuses requests without a key. By default they run as if the layer were not there.
    pub fn required(self) -> IdempotencyLayer {
        self.with(|config| config.required = true)
    }

    /// The TTL of the lease under which the handler runs, which is renewed. It bounds how long an instance that died
    /// blocks repeats.
    pub fn ttl(self, ttl: Duration) -> IdempotencyLayer {
        self.with(|config| config.ttl = ttl)
    }

    /// How long a response is kept; 24 hours by default.
    pub fn retention(self, retention: Duration) -> IdempotencyLayer {
        self.with(|config| config.retention = retention)
    }

    /// How long a repeat waits while the first request runs. By default it gets 409 at once.
    pub fn wait(self, wait: Duration) -> IdempotencyLayer {
        self.with(|config| config.wait = Some(wait))
    }

    /// The largest request body; a larger one gets 413.
    pub fn max_request_bytes(self, bytes: usize) -> IdempotencyLayer {
        self.with(|config| config.max_request_bytes = bytes)
    }

    /// The largest response body that is stored, at most 15 MiB.
    pub fn max_response_bytes(self, bytes: usize) -> IdempotencyLayer {
        // The rest of the largest result is for the headers.
        let most = Once::MAX_RESULT_BYTES - (1 << 20);
        self.with(|config| config.max_response_bytes = bytes.min(most))
    }

    /// What a repeat gets if the response was too large to store.
    pub fn on_large_response(self, policy: OnLargeResponse) -> IdempotencyLayer {
        self.with(|config| config.on_large_response = policy)
    }

    /// What a repeat gets if the handler panicked or was dropped: it runs the request again by default, or gets 500.
    pub fn on_interruption(self, policy: OnFailure) -> IdempotencyLayer {
        self.with(|config| config.on_interruption = policy)
    }

    /// Chooses by the status which responses are stored. After others the request runs again.
    pub fn store_if(
        self,
        is_final: impl Fn(StatusCode) -> bool + Send + Sync + 'static,
    ) -> IdempotencyLayer {
        self.with(|config| config.store_if = Arc::new(is_final))
    }

    /// Also stores and replays these response headers and trailers.
    pub fn replay_headers(self, names: impl IntoIterator<Item = HeaderName>) -> IdempotencyLayer {
        self.with(|config| {
            for name in names {
                if !config.replay_headers.contains(&name) {
                    config.replay_headers.push(name);
                }
            }
        })
    }

    /// Makes the response to a refused request.
    pub fn reject_with(
        self,
        respond: impl Fn(&Rejection) -> Response<Bytes> + Send + Sync + 'static,
    ) -> IdempotencyLayer {
        self.with(|config| config.respond = Some(Arc::new(respond)))
    }
}

/// Whether a repeat would get the same status.
fn is_final(status: StatusCode) -> bool {
    let passing = matches!(status.as_u16(), 408 | 425 | 429);
    !passing && !status.is_server_error()
}

impl<S> Layer<S> for IdempotencyLayer {
    type Service = Protected<IdempotencyLayer, S>;

    fn layer(&self, inner: S) -> Self::Service {
        Protected::new(self.clone(), inner)
    }
}

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
        let request = [parts.method.as_str(), target].map(str::as_bytes);
        let fingerprint = digest(&[request[0], request[1], &Sha256::digest(body)]);
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

    fn kept_headers(&self, headers: &HeaderMap) -> HeaderMap {
        let mut kept = HeaderMap::new();
        for name in &self.replay_headers {
            for value in headers.get_all(name) {
                kept.append(name, value.clone());
            }
        }
        kept
    }

    /// The trailers that are stored: the same names, and all of gRPC's.
    fn kept_trailers(&self, trailers: &HeaderMap) -> HeaderMap {
        let mut kept = HeaderMap::new();
        for (name, value) in trailers {
            if name.as_str().starts_with("grpc-") || self.replay_headers.contains(name) {
                kept.append(name, value.clone());
            }
        }
        kept
    }

    /// Whether a response is stored that may be one of gRPC.
    fn is_stored(&self, headers: &HeaderMap, body: &Whole) -> bool {
        let status = grpc_status::as_http(headers, body.trailers.as_ref());
        status.is_none_or(|status| (self.store_if)(status))
    }

    /// Whether the body may have no end that is worth waiting for.
    fn is_stream(headers: &HeaderMap) -> bool {
        let content = headers.get(CONTENT_TYPE).map(HeaderValue::as_bytes);
        content.is_some_and(|content| content.starts_with(b"text/event-stream"))
    }

    /// Reads the response, stores it, and returns the response that counts. `gone` is cancelled when nobody waits for
    /// it any more.
    async fn finish<R>(
        &self,
        mut running: Running,
        response: Response<R>,
        gone: CancellationToken,
    ) -> Response<Body<R>>
    where
        R: http_body::Body<Data = Bytes> + Send + 'static,
        R::Error: Into<BoxError>,
    {
        let (parts, body) = response.into_parts();
        let refused = parts.extensions.get().map(|Refused(kind)| *kind);
        if refused.is_some() || !(self.store_if)(parts.status) {
            // A lost lease interrupts a handler that has begun; any other refusal comes before the handler.
            if refused != Some(RejectionKind::LeaseLost) {
                running.outcome = OnFailure::Retry;
            }
            running.end().await;
            return Response::from_parts(parts, Body::inner(body));
        }
        let buffered = match Config::is_stream(&parts.headers) {
            true => Some(Buffered::TooLarge(Body::inner(body))),
            false => unless(waited_in_vain(gone), buffer(body, self.max_response_bytes)).await,
        };
        let Some(buffered) = buffered else {
            running.end().await;
            return Response::from_parts(parts, Body::from(Whole::default()));
        };
        let (stored, body) = match buffered {
            Buffered::Whole(whole) if !self.is_stored(&parts.headers, &whole) => {
                running.outcome = OnFailure::Retry;
                running.end().await;
                return Response::from_parts(parts, Body::from(whole));
            }
            Buffered::Whole(whole) => {
                let trailers = whole.trailers.as_ref();
                let stored = Whole {
                    data: whole.data.clone(),
                    trailers: trailers.map(|trailers| self.kept_trailers(trailers)),
                };
                (Some(stored), Body::from(whole))
            }
            Buffered::TooLarge(body) if self.on_large_response == OnLargeResponse::RunAgain => {
                running.outcome = OnFailure::Retry;
                running.end().await;
                return Response::from_parts(parts, body);
            }
            Buffered::TooLarge(body) => (None, body),
            Buffered::Failed(body) => {
                running.end().await;
                return Response::from_parts(parts, body);
            }
        };
        let record = Record {
            status: parts.status,
            headers: self.kept_headers(&parts.headers),
            body: stored,
        };
        let guard = running.take();
        // On its own, so that it continues after the wait.
        let storing = tokio::spawn(async move {
            let record = record.encode();
            let finished = guard.finish(&record).await?;
            let is_other = finished != Finished::Done(record);
            Ok::<_, windlass::Error>(is_other.then_some(finished))
        });
        match tokio::time::timeout(STORE_WAIT, storing).await {
            Ok(Ok(Ok(None))) => {}
            // The lease was lost, and another instance was faster: its response is what repeats get.
            Ok(Ok(Ok(Some(other)))) => {
                if let Ok(response) = replay(other) {
                    return response.map(Body::from);
                }
            }
            Ok(Ok(Err(error))) => {
                tracing::warn!(%error, "a request was handled, but its response is not stored");
            }
            Ok(Err(_)) | Err(_) => {
                tracing::warn!("a request was handled, but its response is not stored yet");
            }
        }
        Response::from_parts(parts, body)
    }
}

/// Ends when the client has been gone for a while, and the body of its response is still not there.
async fn waited_in_vain(gone: CancellationToken) {
    gone.cancelled().await;
    tokio::time::sleep(READ_WAIT).await;
}

/// The value of the future, unless `end` comes first.
async fn unless<T>(end: impl Future<Output = ()>, future: impl Future<Output = T>) -> Option<T> {
    let (mut end, mut future) = (pin!(end), pin!(future));
    poll_fn(|cx| {
        if let Poll::Ready(value) = future.as_mut().poll(cx) {
            return Poll::Ready(Some(value));
        }
        end.as_mut().poll(cx).map(|()| None)
    })
    .await
}

/// The stored response, marked as a repeat.
fn replay(finished: Finished) -> Result<Response<Whole>, Rejection> {
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
            "the request was handled before, but its response was too large to be stored",
        )
    })?;
    let replayed = HeaderValue::from_static("true");
    response.headers_mut().insert(&REPLAYED, replayed);
    Ok(response)
}

/// The idempotency key that a request holds; `None` if the layer does not apply to it.
pub struct IdempotencyHeld(Option<Running>);

/// A request that runs under its key. Dropping it is an interruption.
struct Running {
    // Before the guard, which it shares: it must be dropped first.
    lost: Pin<Box<dyn Future<Output = ()> + Send>>,
    guard: Option<Arc<OnceGuard>>,
    /// What becomes of the key unless a response is stored.
    outcome: OnFailure,
    protocol: Protocol,
    respond: Option<Respond>,
}

impl Running {
    fn new(guard: OnceGuard, config: &Config, protocol: Protocol) -> Running {
        let guard = Arc::new(guard);
        let observed = Arc::clone(&guard);
        Running {
            lost: Box::pin(async move { observed.lease().lost().await }),
            guard: Some(guard),
            outcome: config.on_interruption,
            protocol,
            respond: config.respond.clone(),
        }
    }

    /// The guard, which is not observed any more.
    fn take(&mut self) -> OnceGuard {
        self.lost = Box::pin(std::future::pending());
        let guard = self.guard.take().and_then(Arc::into_inner);
        guard.expect("taken once, and only the observer shares it")
    }

    /// Ends without a response.
    async fn end(mut self) {
        let outcome = self.outcome;
        end(self.take(), outcome).await;
    }
}

/// Leaves the key free or failed.
async fn end(guard: OnceGuard, outcome: OnFailure) {
    let ended = match outcome {
        OnFailure::Keep => guard.fail("interrupted").await.map(drop),
        _ => guard.forget().await,
    };
    if let Err(error) = ended {
        tracing::warn!(%error, "the end of an interrupted request could not be stored");
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if self.guard.is_none() {
            return;
        }
        let (guard, outcome) = (self.take(), self.outcome);
        // Without a runtime nothing can be sent; the TTL ends the lease.
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            runtime.spawn(end(guard, outcome));
        }
    }
}

impl sealed::Sealed for IdempotencyLayer {}

impl<B> Stage<B> for IdempotencyLayer
where
    B: http_body::Body<Data = Bytes> + Send + 'static,
    B::Error: Into<BoxError>,
{
    type InnerBody = Body<B>;
    type Held = IdempotencyHeld;

    fn enter(&self, request: Request<B>) -> MaybeReady<Entered<Body<B>, IdempotencyHeld>> {
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
            let body = match buffer(body, config.max_request_bytes).await {
                Buffered::Whole(body) => body,
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

impl fmt::Debug for IdempotencyLayer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("IdempotencyLayer")
            .field("name", &self.config.name)
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for IdempotencyHeld {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("IdempotencyHeld").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn body_without_end_is_awaited_while_the_client_is_there_and_a_minute_longer() {
        let gone = CancellationToken::new();
        let reading = unless(waited_in_vain(gone.clone()), std::future::pending::<()>());
        let mut reading = pin!(reading);
        let hour = Duration::from_secs(3_600);
        assert!(tokio::time::timeout(hour, &mut reading).await.is_err());
        gone.cancel();
        let early = READ_WAIT - Duration::from_secs(1);
        assert!(tokio::time::timeout(early, &mut reading).await.is_err());
        assert!(reading.await.is_none());
    }
}
