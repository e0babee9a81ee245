//! [`Rejection`]: why a request was refused, and the response that says so.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::header::{CACHE_CONTROL, CONTENT_TYPE, RETRY_AFTER};
use http::{HeaderMap, HeaderName, HeaderValue, Method, Response, StatusCode};
use serde_json::json;
use windlass::{Decision, ErrorKind};

use crate::body::Whole;

/// Makes the response to a refused request.
pub(crate) type Respond = Arc<dyn Fn(&Rejection) -> Response<Bytes> + Send + Sync>;

/// An extension of every refusal: an outer [`IdempotencyLayer`](crate::IdempotencyLayer) must not take it for the
/// response of the handler.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Refused(pub(crate) RejectionKind);

/// Why a request was refused.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Rejection {
    /// The reason.
    pub kind: RejectionKind,
    /// The status of the response.
    pub status: StatusCode,
    /// The reason in words, for people.
    pub detail: Cow<'static, str>,
    /// How long the client should wait before it tries again, where that is known.
    pub retry_after: Option<Duration>,
    /// The decision of the limiter, if a limit was exceeded.
    pub decision: Option<Decision>,
    /// The names of the policies that were exceeded.
    pub violated_policies: Vec<String>,
}

/// The reason of a [`Rejection`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum RejectionKind {
    /// A rate limit is exceeded: 429.
    Limited,
    /// The request has no key for this layer: 400.
    MissingKey,
    /// The store cannot decide: 503.
    StoreUnavailable,
    /// Another request holds the lock: 409 or 423.
    LockBusy,
    /// The lease of the lock or of the idempotency key was lost while the request ran: 503.
    LeaseLost,
    /// As many requests as allowed are running: 503.
    TooManyConcurrent,
    /// `Idempotency-Key` is required and absent: 400.
    IdempotencyKeyMissing,
    /// `Idempotency-Key` is not a single valid key: 400.
    IdempotencyKeyInvalid,
    /// A request with the same `Idempotency-Key` is running: 409.
    IdempotencyKeyInFlight,
    /// The `Idempotency-Key` was used with another request: 422.
    IdempotencyKeyReused,
    /// The request was handled before, but its response was not stored: 409.
    ResponseNotStored,
    /// The request was interrupted before, and its failure was stored: 500.
    FailedBefore,
    /// The body of the request is larger than the layer buffers: 413.
    RequestTooLarge,
    /// The body of the request did not arrive in time: 408.
    RequestTimeout,
    /// The body of the request cannot be read: 400.
    RequestUnreadable,
}

impl RejectionKind {
    /// A word for programs: the member `code` of the problem document.
    pub fn code(self) -> &'static str {
        match self {
            RejectionKind::Limited => "rate-limited",
            RejectionKind::MissingKey => "missing-key",
            RejectionKind::StoreUnavailable => "store-unavailable",
            RejectionKind::LockBusy => "lock-busy",
            RejectionKind::LeaseLost => "lease-lost",
            RejectionKind::TooManyConcurrent => "too-many-concurrent",
            RejectionKind::IdempotencyKeyMissing => "idempotency-key-missing",
            RejectionKind::IdempotencyKeyInvalid => "idempotency-key-invalid",
            RejectionKind::IdempotencyKeyInFlight => "idempotency-key-in-flight",
            RejectionKind::IdempotencyKeyReused => "idempotency-key-reused",
            RejectionKind::ResponseNotStored => "response-not-stored",
            RejectionKind::FailedBefore => "failed-before",
            RejectionKind::RequestTooLarge => "request-too-large",
            RejectionKind::RequestTimeout => "request-timeout",
            RejectionKind::RequestUnreadable => "request-unreadable",
        }
    }

    fn status(self) -> StatusCode {
        match self {
            RejectionKind::Limited => StatusCode::TOO_MANY_REQUESTS,
            RejectionKind::MissingKey
            | RejectionKind::IdempotencyKeyMissing
            | RejectionKind::IdempotencyKeyInvalid
            | RejectionKind::RequestUnreadable => StatusCode::BAD_REQUEST,
            RejectionKind::StoreUnavailable
            | RejectionKind::LeaseLost
            | RejectionKind::TooManyConcurrent => StatusCode::SERVICE_UNAVAILABLE,
            RejectionKind::LockBusy
            | RejectionKind::IdempotencyKeyInFlight
            | RejectionKind::ResponseNotStored => StatusCode::CONFLICT,
            RejectionKind::IdempotencyKeyReused => StatusCode::UNPROCESSABLE_ENTITY,
            RejectionKind::FailedBefore => StatusCode::INTERNAL_SERVER_ERROR,
            RejectionKind::RequestTooLarge => StatusCode::PAYLOAD_TOO_LARGE,
            RejectionKind::RequestTimeout => StatusCode::REQUEST_TIMEOUT,
        }
    }

    /// The type of the problem document, where one is registered with IANA.
    fn problem_type(self) -> &'static str {
        match self {
            RejectionKind::Limited => {
                "https://iana.org/assignments/http-problem-types#quota-exceeded"
            }
            RejectionKind::TooManyConcurrent => {
                "https://iana.org/assignments/http-problem-types#temporary-reduced-capacity"
            }
            _ => "about:blank",
        }
    }

    fn grpc_status(self) -> GrpcStatus {
        match self {
            RejectionKind::Limited | RejectionKind::TooManyConcurrent => {
                GrpcStatus::ResourceExhausted
            }
            RejectionKind::MissingKey
            | RejectionKind::IdempotencyKeyMissing
            | RejectionKind::IdempotencyKeyInvalid
            | RejectionKind::RequestTooLarge
            | RejectionKind::RequestUnreadable => GrpcStatus::InvalidArgument,
            RejectionKind::StoreUnavailable | RejectionKind::LeaseLost => GrpcStatus::Unavailable,
            RejectionKind::LockBusy | RejectionKind::IdempotencyKeyInFlight => GrpcStatus::Aborted,
            RejectionKind::IdempotencyKeyReused | RejectionKind::ResponseNotStored => {
                GrpcStatus::FailedPrecondition
            }
            RejectionKind::FailedBefore => GrpcStatus::Internal,
            RejectionKind::RequestTimeout => GrpcStatus::DeadlineExceeded,
        }
    }
}

/// The status codes of gRPC that a refusal can have.
#[derive(Clone, Copy)]
enum GrpcStatus {
    InvalidArgument = 3,
    DeadlineExceeded = 4,
    ResourceExhausted = 8,
    FailedPrecondition = 9,
    Aborted = 10,
    Internal = 13,
    Unavailable = 14,
}

impl Rejection {
    pub(crate) fn new(kind: RejectionKind, detail: impl Into<Cow<'static, str>>) -> Rejection {
        Rejection {
            kind,
            status: kind.status(),
            detail: detail.into(),
            retry_after: None,
            decision: None,
            violated_policies: Vec::new(),
        }
    }

    /// The store failed. Its error is logged; the client does not see it, because it may name hosts.
    pub(crate) fn store_error(error: &windlass::Error) -> Rejection {
        match error.kind() {
            ErrorKind::WrongType | ErrorKind::Unsupported | ErrorKind::InvalidInput => {
                tracing::error!(
                    %error,
                    "a request was refused: the layer does not suit the store, or what is stored"
                );
            }
            _ => tracing::warn!(%error, "a request was refused because the store failed"),
        }
        Rejection::new(
            RejectionKind::StoreUnavailable,
            "the service cannot decide now",
        )
        .retry_after(Some(Duration::from_secs(1)))
    }

    /// The lease was lost while the handler ran.
    pub(crate) fn lease_lost() -> Rejection {
        Rejection::new(
            RejectionKind::LeaseLost,
            "the lease was lost while the request was handled, which may have been done in part",
        )
    }

    pub(crate) fn status(mut self, status: StatusCode) -> Rejection {
        self.status = status;
        self
    }

    pub(crate) fn retry_after(mut self, wait: Option<Duration>) -> Rejection {
        self.retry_after = wait;
        self
    }

    /// The problem document that is sent by default.
    pub fn problem(&self) -> serde_json::Value {
        let mut problem = json!({
            "type": self.kind.problem_type(),
            "title": self.status.canonical_reason().unwrap_or("Refused"),
            "status": self.status.as_u16(),
            "detail": self.detail,
            "code": self.kind.code(),
        });
        if self.kind == RejectionKind::Limited {
            problem["violated-policies"] = json!(self.violated_policies);
        }
        if let Some(wait) = self.retry_after {
            problem["retry-after"] = json!(whole_seconds(wait));
        }
        problem
    }

    /// The response, in the form that the client understands.
    pub(crate) fn response(
        &self,
        respond: Option<&Respond>,
        protocol: Protocol,
    ) -> Response<Whole> {
        let mut response = match protocol {
            Protocol::Grpc => self.grpc_response(),
            Protocol::Http => match respond {
                Some(respond) => respond(self).map(Whole::from),
                None => self.problem_response(),
            },
        };
        if let Some(wait) = self.retry_after {
            let seconds = HeaderValue::from(whole_seconds(wait));
            response.headers_mut().entry(RETRY_AFTER).or_insert(seconds);
        }
        // Some statuses, such as gRPC's 200, may be cached by default.
        let no_store = HeaderValue::from_static("no-store");
        let headers = response.headers_mut();
        headers.entry(CACHE_CONTROL).or_insert(no_store);
        response.extensions_mut().insert(Refused(self.kind));
        response
    }

    fn problem_response(&self) -> Response<Whole> {
        let mut response = Response::new(Whole::from(Bytes::from(self.problem().to_string())));
        *response.status_mut() = self.status;
        let problem = HeaderValue::from_static("application/problem+json");
        response.headers_mut().insert(CONTENT_TYPE, problem);
        response
    }

    /// A response without a body, whose headers are the trailers: HTTP status 200 and a gRPC status.
    fn grpc_response(&self) -> Response<Whole> {
        let mut response = Response::new(Whole::default());
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
        let status = self.kind.grpc_status() as u16;
        headers.insert(HeaderName::from_static("grpc-status"), status.into());
        if let Ok(message) = HeaderValue::from_str(&percent_encoded(&self.detail)) {
            headers.insert(HeaderName::from_static("grpc-message"), message);
        }
        if let Some(wait) = self.retry_after {
            let millis = u64::try_from(wait.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX);
            let name = HeaderName::from_static("grpc-retry-pushback-ms");
            headers.insert(name, millis.into());
        }
        response
    }
}

/// The form in which a client understands a refusal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Protocol {
    Http,
    Grpc,
}

impl Protocol {
    /// The protocol of a request. A gRPC client reads the status 200 with another one inside; any other client would
    /// take that for success.
    pub(crate) fn of(method: &Method, headers: &HeaderMap) -> Protocol {
        let content = headers.get(CONTENT_TYPE).map(HeaderValue::as_bytes);
        let rest = content.and_then(|content| content.strip_prefix(b"application/grpc"));
        match rest {
            // Not gRPC-Web, whose clients read HTTP statuses.
            Some([] | [b'+' | b';', ..]) if method == Method::POST => Protocol::Grpc,
            _ => Protocol::Http,
        }
    }
}

/// Whole seconds, rounded up, at least one: a client that waits that long is not too early.
pub(crate) fn whole_seconds(wait: Duration) -> u64 {
    let up = u64::from(wait.subsec_nanos() > 0);
    wait.as_secs().saturating_add(up).max(1)
}

/// As gRPC encodes messages.
fn percent_encoded(text: &str) -> String {
    let mut encoded = String::with_capacity(text.len());
    for byte in text.bytes() {
        match byte {
            b' '..=b'~' if byte != b'%' => encoded.push(char::from(byte)),
            _ => encoded.push_str(&format!("%{byte:02X}")),
        }
    }
    encoded
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn retry_after_is_rounded_up_and_at_least_one_second() {
        for (wait, seconds) in [
            (0, 1),
            (1, 1),
            (999, 1),
            (1_000, 1),
            (1_001, 2),
            (59_999, 60),
        ] {
            assert_eq!(
                whole_seconds(Duration::from_millis(wait)),
                seconds,
                "{wait} ms"
            );
        }
    }
}
