//! `IdempotencyLayer`: replays, conflicts, and what is stored.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use axum::body::Body;
use axum::extract::DefaultBodyLimit;
use axum::response::IntoResponse as _;
use axum::routing::post;
use axum::{Extension, Router};
use bytes::Bytes;
use http::header::CONTENT_TYPE;
use http::{HeaderMap, HeaderName, HeaderValue, Request, StatusCode};
use http_body_util::{BodyExt as _, Full};
use tokio::sync::Semaphore;
use tower::ServiceExt as _;
use windlass::Coordinator;
use windlass_tower::{Header, IdempotencyLayer, IdempotentRequest, OnLargeResponse, Rejection};

use crate::fixture::{Reply, Store, ask, frames};

pub(crate) fn layer(w: &Coordinator) -> IdempotencyLayer {
    IdempotencyLayer::new(w, "payments", Header::named("x-account"))
}

/// A payment with a key, by ann.
pub(crate) fn payment(key: &str, body: impl Into<Body>) -> Request<Body> {
    Request::post("/pay")
        .header("x-account", "ann")
        .header("idempotency-key", key)
        .body(body.into())
        .unwrap()
}

/// A handler that counts, and the count.
fn counting() -> (Router, Arc<AtomicU64>) {
    let count = Arc::new(AtomicU64::new(0));
    let counted = Arc::clone(&count);
    let handler = move |body: String| async move {
        let n = counted.fetch_add(1, Ordering::Relaxed) + 1;
        let headers = [
            ("location", format!("/payments/{n}")),
            ("set-cookie", "session=secret".to_owned()),
            ("x-trace", n.to_string()),
        ];
        (
            StatusCode::CREATED,
            headers,
            format!("{n}: {} bytes", body.len()),
        )
    };
    let handler = post(handler)
        .patch(|| async { "patched" })
        .put(|| async { "put" });
    let app = Router::new()
        .route("/pay", handler.clone())
        .route("/other", handler);
    (app.layer(DefaultBodyLimit::disable()), count)
}

fn is_replay(reply: &Reply) -> bool {
    reply.header("idempotent-replayed") == Some("true")
}

#[tokio::test]
async fn repeat_replays_status_headers_and_body() {
    for store in Store::each().await {
        let (app, count) = counting();
        let app = app.layer(layer(&store.w));
        let first = ask(&app, payment("\"key-1\"", "order 42")).await;
        assert_eq!(first.status, StatusCode::CREATED);
        assert!(!is_replay(&first));
        assert!(first.header("set-cookie").is_some());
        // Another instance, and the key without quotes.
        let (other, never) = counting();
        let other = other.layer(layer(&store.another().await));
        for app in [&app, &other] {
            let again = ask(app, payment("key-1", "order 42")).await;
            assert!(is_replay(&again), "{again:?}");
            assert_eq!((again.status, &again.body), (first.status, &first.body));
            assert_eq!(again.header("location"), Some("/payments/1"));
            assert_eq!(again.header("content-type"), first.header("content-type"));
            assert_eq!(again.header("set-cookie"), None, "cookies are not stored");
            assert_eq!(again.header("x-trace"), None);
        }
        assert_eq!(count.load(Ordering::Relaxed), 1);
        assert_eq!(never.load(Ordering::Relaxed), 0);
        let another = ask(&app, payment("key-2", "order 42")).await;
        assert_eq!(another.body, "2: 8 bytes");
        // Without a key, and with another method, the layer does nothing.
        let mut without = payment("x", "order 42");
        without.headers_mut().remove("idempotency-key");
        assert_eq!(ask(&app, without).await.body, "3: 8 bytes");
        let mut put = payment("key-1", "");
        *put.method_mut() = http::Method::PUT;
        assert_eq!(ask(&app, put).await.body, "put");
    }
}

#[tokio::test]
async fn key_belongs_to_its_principal() {
    let store = Store::memory().await;
    let (app, _) = counting();
    let app = app.layer(layer(&store.w));
    assert_eq!(ask(&app, payment("key", "a")).await.body, "1: 1 bytes");
    let mut bob = payment("key", "a");
    bob.headers_mut()
        .insert("x-account", HeaderValue::from_static("bob"));
    assert_eq!(ask(&app, bob).await.body, "2: 1 bytes");
    let mut nobody = payment("key", "a");
    nobody.headers_mut().remove("x-account");
    let reply = ask(&app, nobody).await;
    assert_eq!(
        (reply.status, reply.code()),
        (StatusCode::BAD_REQUEST, "missing-key".into())
    );
}

#[tokio::test]
async fn same_key_with_another_request_gets_422() {
    for store in Store::each().await {
        let (app, count) = counting();
        let app = app.layer(layer(&store.w));
        assert_eq!(
            ask(&app, payment("key", "order 42")).await.status,
            StatusCode::CREATED
        );
        let uri = |uri: &str| {
            let mut request = payment("key", "order 42");
            *request.uri_mut() = uri.parse().unwrap();
            request
        };
        let mut patch = payment("key", "order 42");
        *patch.method_mut() = http::Method::PATCH;
        let others = [
            payment("key", "order 43"),
            payment("key", ""),
            uri("/other"),
            uri("/pay?amount=2"),
            patch,
        ];
        for other in others {
            let reply = ask(&app, other).await;
            assert_eq!(reply.status, StatusCode::UNPROCESSABLE_ENTITY);
            assert_eq!(reply.code(), "idempotency-key-reused");
        }
        assert_eq!(count.load(Ordering::Relaxed), 1);
    }
}

#[tokio::test]
async fn bad_headers_get_400() {
    let store = Store::memory().await;
    let (app, count) = counting();
    let app = app.layer(layer(&store.w).required());
    let long = vec![b'k'; 8 * 1024];
    let cases: &[(&[&[u8]], &str)] = &[
        (&[], "idempotency-key-missing"),
        (&[b"a", b"a"], "idempotency-key-invalid"),
        (&[&long], "idempotency-key-invalid"),
        (&[b"\xff\xfe"], "idempotency-key-invalid"),
        (&[b""], "idempotency-key-invalid"),
    ];
    for (values, code) in cases {
        let mut request = payment("x", "a");
        request.headers_mut().remove("idempotency-key");
        for value in *values {
            let value = HeaderValue::from_bytes(value).unwrap();
            request.headers_mut().append("idempotency-key", value);
        }
        let reply = ask(&app, request).await;
        assert_eq!(
            (reply.status, reply.code()),
            (StatusCode::BAD_REQUEST, (*code).to_owned())
        );
    }
    assert_eq!(count.load(Ordering::Relaxed), 0);
}

/// A handler that waits until it is let go.
fn gated(gate: &Arc<Semaphore>, entered: &Arc<Semaphore>) -> Router {
    let (gate, entered) = (Arc::clone(gate), Arc::clone(entered));
    let handler = move || async move {
        entered.add_permits(1);
        gate.acquire().await.unwrap().forget();
        "done"
    };
    Router::new().route("/pay", post(handler))
}

#[tokio::test]
async fn repeat_in_flight_gets_409_or_waits() {
    for store in Store::each().await {
        let gate = Arc::new(Semaphore::new(0));
        let entered = Arc::new(Semaphore::new(0));
        let app = gated(&gate, &entered).layer(layer(&store.w));
        let first = tokio::spawn({
            let app = app.clone();
            async move { ask(&app, payment("key", "a")).await }
        });
        entered.acquire().await.unwrap().forget();
        let (other, _) = counting();
        let w = store.another().await;
        let busy = ask(&other.clone().layer(layer(&w)), payment("key", "a")).await;
        assert_eq!(
            (busy.status, busy.code()),
            (StatusCode::CONFLICT, "idempotency-key-in-flight".into())
        );
        let mismatch = ask(&other.clone().layer(layer(&w)), payment("key", "b")).await;
        assert_eq!(mismatch.status, StatusCode::UNPROCESSABLE_ENTITY);
        let waiting = tokio::spawn(async move {
            let app = other.layer(layer(&w).wait(crate::fixture::SOON));
            ask(&app, payment("key", "a")).await
        });
        gate.add_permits(1);
        assert_eq!(first.await.unwrap().body, "done");
        let replayed = waiting.await.unwrap();
        assert!(is_replay(&replayed));
        assert_eq!(replayed.body, "done");
    }
}

#[tokio::test]
async fn bodies_up_to_the_bound_are_stored_and_larger_requests_get_413() {
    const BOUND: usize = IdempotencyLayer::DEFAULT_MAX_BYTES;
    for store in Store::each().await {
        let echo = Router::new()
            .route("/pay", post(|body: bytes::Bytes| async { body }))
            .layer(DefaultBodyLimit::disable())
            .layer(layer(&store.w));
        let body = vec![b'x'; BOUND];
        for replayed in [false, true] {
            let reply = ask(&echo, payment("whole", body.clone())).await;
            assert_eq!(reply.status, StatusCode::OK);
            assert_eq!((reply.body.len(), is_replay(&reply)), (BOUND, replayed));
        }
        let too_large = vec![b'x'; BOUND + 1];
        let reply = ask(&echo, payment("large", too_large)).await;
        assert_eq!(
            (reply.status, reply.code()),
            (StatusCode::PAYLOAD_TOO_LARGE, "request-too-large".into())
        );
        // Without a length in advance.
        let endless = Body::new(frames(std::iter::repeat("0123456789abcdef")));
        let reply = ask(&echo, payment("endless", endless)).await;
        assert_eq!(reply.status, StatusCode::PAYLOAD_TOO_LARGE);
    }
}

#[tokio::test]
async fn response_that_is_too_large_is_passed_on_and_not_run_again() {
    let store = Store::memory().await;
    let count = Arc::new(AtomicU64::new(0));
    let counted = Arc::clone(&count);
    let handler = move |kind: String| async move {
        counted.fetch_add(1, Ordering::Relaxed);
        let many = std::iter::repeat_n("0123456789", 20);
        match kind.as_str() {
            "known" => "0123456789".repeat(20).into_response(),
            "unknown" => Body::new(frames(many)).into_response(),
            _ => ([("content-type", "text/event-stream")], "data: 1\n\n").into_response(),
        }
    };
    let app = Router::new().route("/pay", post(handler));
    let refuse = layer(&store.w).max_response_bytes(100);
    let again = refuse.clone().on_large_response(OnLargeResponse::RunAgain);
    for kind in ["known", "unknown", "events"] {
        count.store(0, Ordering::Relaxed);
        let length = if kind == "events" { 9 } else { 200 };
        let app_refuse = app.clone().layer(refuse.clone());
        let reply = ask(&app_refuse, payment(kind, kind)).await;
        assert_eq!((reply.status, reply.body.len()), (StatusCode::OK, length));
        let repeat = ask(&app_refuse, payment(kind, kind)).await;
        assert_eq!(
            (repeat.status, repeat.code()),
            (StatusCode::CONFLICT, "response-not-stored".into())
        );
        assert_eq!(count.load(Ordering::Relaxed), 1);
        let app_again = app.clone().layer(again.clone());
        for n in 2..4 {
            let reply = ask(&app_again, payment(&format!("{kind}-again"), kind)).await;
            assert_eq!((reply.status, reply.body.len()), (StatusCode::OK, length));
            assert_eq!(count.load(Ordering::Relaxed), n);
        }
    }
}

#[tokio::test]
async fn passing_failures_are_not_stored() {
    let store = Store::memory().await;
    let statuses = [500, 503, 429, 408, 404].map(|code| StatusCode::from_u16(code).unwrap());
    for status in statuses {
        let count = Arc::new(AtomicU64::new(0));
        let counted = Arc::clone(&count);
        let handler = move || async move {
            counted.fetch_add(1, Ordering::Relaxed);
            status
        };
        let app = Router::new().route("/pay", post(handler));
        let default = app.clone().layer(layer(&store.w));
        let key = status.as_str();
        for _ in 0..2 {
            assert_eq!(ask(&default, payment(key, "a")).await.status, status);
        }
        let runs = if status == StatusCode::NOT_FOUND {
            1
        } else {
            2
        };
        assert_eq!(count.load(Ordering::Relaxed), runs, "{status}");
        // After a failure that is not stored, the key may be used for another payload.
        if runs == 2 {
            assert_eq!(ask(&default, payment(key, "b")).await.status, status);
        }
        let all = app.layer(layer(&store.w).store_if(|_| true));
        count.store(0, Ordering::Relaxed);
        for _ in 0..2 {
            assert_eq!(
                ask(&all, payment(&format!("all-{key}"), "a")).await.status,
                status
            );
        }
        assert_eq!(count.load(Ordering::Relaxed), 1);
    }
}

#[tokio::test]
async fn headers_methods_and_refusals_can_be_chosen() {
    let store = Store::memory().await;
    let (app, _) = counting();
    let layer = layer(&store.w)
        .methods([http::Method::POST])
        .replay_headers([HeaderName::from_static("x-trace"), CONTENT_TYPE])
        .reject_with(|rejection: &Rejection| {
            let text = bytes::Bytes::from(rejection.kind.code());
            http::Response::builder()
                .status(rejection.status)
                .body(text)
                .unwrap()
        });
    let app = app.layer(layer);
    let _ = ask(&app, payment("key", "a")).await;
    let again = ask(&app, payment("key", "a")).await;
    assert_eq!(again.header("x-trace"), Some("1"));
    let types = again.headers.get_all(CONTENT_TYPE).iter().count();
    assert_eq!(types, 1, "{again:?}");
    let mismatch = ask(&app, payment("key", "b")).await;
    assert_eq!(mismatch.body, "idempotency-key-reused");
}

#[tokio::test]
async fn handler_sees_key_and_fence() {
    let store = Store::memory().await;
    let handler = |Extension(request): Extension<IdempotentRequest>| async move {
        format!("{} {}", request.key(), request.fence())
    };
    let app = Router::new()
        .route("/pay", post(handler))
        .layer(layer(&store.w));
    let fence = |reply: Reply| -> u64 {
        let text = String::from_utf8(reply.body.to_vec()).unwrap();
        let (key, fence) = text.split_once(' ').unwrap();
        assert!(key.starts_with("key-"));
        fence.parse().unwrap()
    };
    let first = fence(ask(&app, payment("key-1", "a")).await);
    assert!(fence(ask(&app, payment("key-2", "a")).await) >= 1 && first >= 1);
}

#[tokio::test]
async fn trailers_are_chosen_like_headers() {
    let store = Store::memory().await;
    let handler = || async {
        let mut trailers = HeaderMap::new();
        for name in [
            "grpc-status",
            "grpc-status-details-bin",
            "etag",
            "set-cookie",
        ] {
            trailers.insert(name, HeaderValue::from_static("0"));
        }
        let trailers = async { Some(Ok(trailers)) };
        Body::new(Full::new(Bytes::from_static(b"text")).with_trailers(trailers))
    };
    let app = Router::new()
        .route("/pay", post(handler))
        .layer(layer(&store.w));
    for sent in [4, 3] {
        let response = app.clone().oneshot(payment("key", "a")).await.unwrap();
        let body = response.into_body().collect().await.unwrap();
        let trailers = body.trailers().unwrap();
        assert_eq!(trailers.len(), sent, "{trailers:?}");
        assert_eq!(trailers.contains_key("set-cookie"), sent == 4);
    }
}

#[tokio::test]
async fn same_key_with_another_content_type_gets_422() {
    let store = Store::memory().await;
    let (app, count) = counting();
    let app = app.layer(layer(&store.w));
    let typed = |content: &'static str| {
        let mut request = payment("key", "a=1");
        let content = HeaderValue::from_static(content);
        request.headers_mut().insert(CONTENT_TYPE, content);
        request
    };
    let form = "application/x-www-form-urlencoded";
    assert_eq!(ask(&app, typed(form)).await.status, StatusCode::CREATED);
    assert!(is_replay(&ask(&app, typed(form)).await));
    let other = ask(&app, typed("text/plain")).await;
    assert_eq!(other.status, StatusCode::UNPROCESSABLE_ENTITY);
    assert_eq!(count.load(Ordering::Relaxed), 1);
}

/// What a client needs to understand the response.
#[tokio::test]
async fn headers_that_complete_the_status_are_replayed() {
    let store = Store::memory().await;
    let headers = [
        ("vary", "accept"),
        ("allow", "GET"),
        ("www-authenticate", "Bearer"),
        ("grpc-status-details-bin", "AAAA"),
    ];
    let handler = move || async move { headers };
    let app = Router::new().route("/pay", post(handler));
    let app = app.layer(layer(&store.w));
    ask(&app, payment("key", "a")).await;
    let repeat = ask(&app, payment("key", "a")).await;
    assert!(is_replay(&repeat));
    for (name, value) in headers {
        assert_eq!(repeat.header(name), Some(value), "{name}");
    }
}

/// A call that was cut off has no status: it is not known to have succeeded.
#[tokio::test]
async fn grpc_response_without_a_status_is_not_stored() {
    let store = Store::memory().await;
    let count = Arc::new(AtomicU64::new(0));
    let counted = Arc::clone(&count);
    let handler = move || async move {
        counted.fetch_add(1, Ordering::Relaxed);
        ([(CONTENT_TYPE, "application/grpc")], "message")
    };
    let app = Router::new().route("/pay", post(handler));
    let app = app.layer(layer(&store.w));
    for runs in 1..=2 {
        let mut request = payment("key", "a");
        let content = HeaderValue::from_static("application/grpc");
        request.headers_mut().insert(CONTENT_TYPE, content);
        let reply = ask(&app, request).await;
        assert!(!is_replay(&reply), "{reply:?}");
        assert_eq!(count.load(Ordering::Relaxed), runs);
    }
}
