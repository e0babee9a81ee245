//! [`IdempotencyLayer`]: each request runs once per `Idempotency-Key`.

mod buffer;
mod finish;
mod key_header;
mod record;
mod running;
mod stage;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::header::{
    ALLOW, CACHE_CONTROL, CONTENT_DISPOSITION, CONTENT_ENCODING, CONTENT_LANGUAGE,
    CONTENT_LOCATION, CONTENT_TYPE, ETAG, LAST_MODIFIED, LINK, LOCATION, VARY, WWW_AUTHENTICATE,
};
use http::{HeaderName, Method, Response, StatusCode};
use tower_layer::Layer;
use windlass::{Coordinator, Fence, Lease, OnFailure, Once};

use crate::key::RequestKey;
use crate::protected::Protected;
use crate::rejection::{Rejection, Respond};

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
/// | same key, other method, path, query, content type or body | 422 |
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
/// ([`max_request_bytes`](IdempotencyLayer::max_request_bytes)), one that takes more than 30 seconds gets 408
/// ([`max_request_time`](IdempotencyLayer::max_request_time)). The response body is read before it is sent. One of
/// more than 1 MiB, one that takes more than 10 seconds
/// ([`max_response_time`](IdempotencyLayer::max_response_time)), and one of type `text/event-stream`, is passed on and not
/// stored: [`OnLargeResponse`] says what a repeat gets.
///
/// # Interruption
///
/// A handler that panics, or is dropped because of a timeout or a disconnect, leaves the key free by default: a repeat
/// runs the request again ([`on_interruption`](IdempotencyLayer::on_interruption)). As soon as the handler has
/// returned its response, the response is stored even if the client is gone. If the lease of the key is lost, the
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
    max_request_time: Duration,
    max_response_time: Duration,
    on_large_response: OnLargeResponse,
    on_interruption: OnFailure,
    store_if: Arc<dyn Fn(StatusCode) -> bool + Send + Sync>,
    replay_headers: Vec<HeaderName>,
    respond: Option<Respond>,
}

/// What a repeat gets if the response was too large, or too slow, to store.
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
    /// How long the body of a request may take, unless another bound is set.
    pub const DEFAULT_MAX_REQUEST_TIME: Duration = Duration::from_secs(30);
    /// How long a response is held back until its body has ended, unless another bound is set.
    pub const DEFAULT_MAX_RESPONSE_TIME: Duration = Duration::from_secs(10);

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
                max_request_time: IdempotencyLayer::DEFAULT_MAX_REQUEST_TIME,
                max_response_time: IdempotencyLayer::DEFAULT_MAX_RESPONSE_TIME,
                on_large_response: OnLargeResponse::default(),
                on_interruption: OnFailure::Retry,
                store_if: Arc::new(is_final),
                replay_headers: vec![
                    ALLOW,
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
                    VARY,
                    WWW_AUTHENTICATE,
                    HeaderName::from_static("grpc-status"),
                    HeaderName::from_static("grpc-message"),
                    HeaderName::from_static("grpc-status-details-bin"),
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

    /// How long the body of a request may take; a slower one gets 408.
    pub fn max_request_time(self, limit: Duration) -> IdempotencyLayer {
        self.with(|config| config.max_request_time = limit)
    }

    /// How long a response is held back until its body has ended. After that, it is passed on and not stored, as one
    /// that is too large.
    pub fn max_response_time(self, limit: Duration) -> IdempotencyLayer {
        self.with(|config| config.max_response_time = limit)
    }

    /// What a repeat gets if the response was too large, or too slow, to store.
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

impl fmt::Debug for IdempotencyLayer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("IdempotencyLayer")
            .field("name", &self.config.name)
            .finish_non_exhaustive()
    }
}
